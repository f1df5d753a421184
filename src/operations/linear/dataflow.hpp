// The dataflow of linear (FlashDecoding++, arXiv 2311.01282, section 5): a model has few matrices of weights, so which
// kernel is fastest for how many rows is measured once for each, and looked up from then on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "operations/linear/shape.hpp"

namespace tessella::core {

// A matrix of weights on a machine, as a line says it before its choices.
std::string dataflow_key(const LinearShape& shape, std::string_view device_name);

// Up to so many rows this kernel is the fastest.
struct DataflowChoice {
  int64_t rows = 0;
  std::string kernel;
};

// What was measured: a line a matrix, "KEY<tab>1 cuda.linear_gemv<tab>64 cuda.linear_sm90<tab>128 cuda.linear_blas".
class Dataflow {
 public:
  Dataflow() = default;
  // Lines that mean nothing are left out.
  explicit Dataflow(std::string_view lines);

  std::string string() const;
  // Replaces what is there.
  void set(const std::string& key, std::vector<DataflowChoice> choices);
  // Nothing where the matrix was not measured for so many rows.
  std::optional<DataflowChoice> find(const std::string& key, int64_t rows) const;

 private:
  struct Line {
    std::string key;
    std::vector<DataflowChoice> choices;
  };
  std::vector<Line> lines_;
};

}  // namespace tessella::core
