// Tensors of a GPU copied to the host, where validate() and the reference can read them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "core/arguments.hpp"

namespace tessella::api {

enum class Copied {
  tables,  // lengths, offsets and prefixes: what validate() reads
  all,
};

// Host copies of tensors, with the strides of the original; gaps between elements hold no values. A copy waits for the
// stream's earlier work.
class HostMemory {
 public:
  HostMemory(core::Device device, void* stream) : device_(device), stream_(stream) {}
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  template <typename T>
  void copy(core::Table<T>& table, int64_t batch, int64_t count);
  void copy(core::Operand& operand, int64_t batch, int64_t rows, int64_t heads, int64_t dim);
  void copy(core::ScoreOperand& operand, int64_t batch, int64_t heads, int64_t queries, int64_t keys);
  void copy(int64_t& value, const int64_t* data);

 private:
  struct Axis {
    int64_t size = 1;
    int64_t stride = 0;
  };
  // Copies the bytes that the axes cover.
  std::byte* copy(const void* data, int64_t element_bytes, std::span<Axis> axes);
  void copy_axes(std::byte* to, const std::byte* from, int64_t element_bytes, std::span<const Axis> axes);

  core::Device device_;
  void* stream_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

// Whether tables in the device's memory are to be copied and checked: as the option or the environment says, which must
// mean something on a CPU too.
bool checks_values(core::Device device, int32_t option);

// Calls made of the copies are calls of the CPU.
template <typename Arguments>
class HostCopy {
 public:
  HostCopy(const Arguments& arguments, Copied copied, void* stream)
      : host_(arguments), memory_(arguments.device, stream) {
    host_.device = {};
    copy(copied);
  }
  const Arguments& arguments() const { return host_; }

 private:
  void copy(Copied copied);

  Arguments host_;
  HostMemory memory_;
};
template <>
void HostCopy<core::AttentionArguments>::copy(Copied copied);
template <>
void HostCopy<core::MergeArguments>::copy(Copied copied);
template <>
void HostCopy<core::AppendArguments>::copy(Copied copied);
template <>
void HostCopy<core::CopyPagesArguments>::copy(Copied copied);
template <>
void HostCopy<core::QuantizeArguments>::copy(Copied copied);

}  // namespace tessella::api
