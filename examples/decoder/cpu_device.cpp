#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "device.hpp"

namespace {

template <typename Element>
class CpuDevice : public Device {
 public:
  tessella::Device id() const override { return {TESSELLA_CPU, 0}; }
  void* stream() const override { return nullptr; }
  Memory allocate(size_t bytes) override {
    const size_t size = (bytes + 255) / 256 * 256;
    auto* data = static_cast<std::byte*>(std::aligned_alloc(256, size));
    if (data == nullptr) throw std::runtime_error("no memory for " + std::to_string(bytes) + " bytes");
    std::memset(data, 0, size);
    return {data, std::free};
  }
  void upload(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }

  void run(const Embedding& step, int rows) override { run_rows(step, rows); }
  void run(const RmsNorm& step, int rows) override { run_rows(step, rows); }
  void run(const NextToken& step, int rows) override { run_rows(step, rows); }
  std::function<void()> repeated(std::function<void()> step) override { return step; }

 private:
  template <typename Step>
  static void run_rows(const Step& step, int rows) {
    for (int row = 0; row < rows; ++row) compute<Element>(step, row, Team());
  }
};

}  // namespace

std::unique_ptr<Device> Device::cpu(tessella::DType dtype) {
  if (dtype == tessella::bf16) return std::make_unique<CpuDevice<BFloat16>>();
  return std::make_unique<CpuDevice<float>>();
}
