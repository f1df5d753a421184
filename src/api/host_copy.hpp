// Tensors of a GPU copied to the host, where validate_tables() and the reference can read them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "core/access.hpp"
#include "core/device.hpp"
#include "core/fields.hpp"
#include "core/operand.hpp"

namespace tessella::api {

enum class Copied {
  tables,  // lengths, offsets and prefixes: what validate_tables() reads
  all,
};

// Host copies of tensors, with the strides of the original; gaps between elements hold no values. A copy waits for the
// stream's earlier work.
class HostMemory {
 public:
  HostMemory(core::Device device, void* stream) : device_(device), stream_(stream) {}
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // What Arguments::memory() lists; each then points into the copy.
  template <typename T>
  void copy(core::Table<T>& table, int64_t batch, int64_t count);
  void copy(core::Operand& operand, int64_t batch, int64_t rows, int64_t heads, int64_t dim);
  template <typename Byte>
  void copy(core::ScoreTensor<Byte>& tensor, int64_t batch, int64_t heads, int64_t queries, int64_t keys);
  void copy(core::RangeOperand& ranges, int64_t batch, int64_t heads, int64_t rows);
  void copy(const int64_t*& value);
  void copy(const core::Bytes&) {}  // no check reads it

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
    Arguments::memory(host_, [&](const core::FieldName&, auto&& member, core::Access access, auto... sizes) {
      if (copied == Copied::all || access == core::Access::table) memory_.copy(member, sizes...);
    });
    if constexpr (requires { host_.read_seeds(); }) {
      if (copied == Copied::all) host_.read_seeds();
    }
  }
  const Arguments& arguments() const { return host_; }

 private:
  Arguments host_;
  HostMemory memory_;
};

}  // namespace tessella::api
