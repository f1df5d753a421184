// Tensors of a call with poison around and inside them, and what of them a call has written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cases/call.hpp"
#include "cases/gpu_twin.hpp"
#include "cases/tensor_places.hpp"
#include "tessella/tessella.h"

namespace tessella::tests {

// Byte of element (b, row, head, 0); of packed tensors b is 0.
inline int64_t byte_at(const tessella_tensor& t, int64_t b, int64_t row, int64_t head) {
  return bytes_of(t.dtype, element(t, b, row, head));
}

// Tensors of a call, their memory, and what they held before it.
class Tensors {
 public:
  struct Tensor {
    Memory memory;
    tessella_tensor tensor{};
    bool is_written = false;
    std::vector<std::byte> before;
  };
  // Filled with poison. gap: elements behind each of the innermost axis; before: elements in front.
  Tensor& add(int32_t dtype, const std::vector<int64_t>& shape, bool heads_first, int64_t gap, int64_t before,
              bool guard, bool is_written);
  Tensor& add_table(const std::vector<int32_t>& values, const std::vector<int64_t>& shape);
  void remember();
  const std::vector<std::unique_ptr<Tensor>>& all() const { return all_; }

  // Bytes of a tensor's memory.
  using Bytes = std::vector<bool>;
  struct Written {
    const Tensor* tensor;
    Bytes bytes;
  };
  // "" or what has changed that is not written.
  std::string spoiled(const std::vector<Written>& written) const;
  // All elements of what may be written.
  std::vector<Written> all_elements() const;

  // On twins of the tensors in a GPU's memory, where run() gets them by the tensors. What was written comes back; "" or
  // what else changed. exact: as of GpuTwin.
  std::string run_on_gpu(bool exact, const std::function<tessella_status(GpuTwin&)>& run) const;

 private:
  std::vector<std::unique_ptr<Tensor>> all_;
};

}  // namespace tessella::tests
