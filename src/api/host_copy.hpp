// Tensors of a GPU copied to the host, where validate() and the reference can read them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "core/arguments.hpp"

namespace tessella::api {

enum class Copied {
  tables,  // lengths, offsets and prefixes: what validate() looks at
  all,
};

// Copies what the stream has left behind, and waits for it. The call made of it is one of the CPU, with the strides
// of the original; gaps between elements hold no values.
class HostCopy {
 public:
  HostCopy(const core::AttentionArguments& arguments, Copied copied, void* stream);
  HostCopy(const HostCopy&) = delete;
  HostCopy& operator=(const HostCopy&) = delete;
  const core::AttentionArguments& arguments() const { return host_; }

 private:
  struct Axis {
    int64_t size = 1;
    int64_t stride = 0;
  };
  void copy_seed();

  template <typename T>
  void copy(core::Table<T>& table, int64_t batch, int64_t count);
  void copy(core::Operand& operand, int64_t batch, int64_t rows, int64_t heads, int64_t dim);
  void copy(core::ScoreOperand& operand, int64_t queries, int64_t keys);
  // The same bytes on the host, as far as the axes reach.
  std::byte* copy(const void* data, int64_t element_bytes, std::span<Axis> axes);
  void copy_axes(std::byte* to, const std::byte* from, int64_t element_bytes, std::span<const Axis> axes);

  core::AttentionArguments host_;
  core::Device device_;
  void* stream_;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
};

}  // namespace tessella::api
