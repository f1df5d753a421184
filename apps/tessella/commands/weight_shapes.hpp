// Which matrices of weights a command measures.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessella::cli {

// w as it lies in memory, (rows, columns).
struct WeightShape {
  int64_t rows = 0;
  int64_t columns = 0;

  std::string name() const;  // "12288x4096"
};

// Words are "12288x4096", or a model for the matrices of its layer. InputError for any other; is_gated: with an odd
// number of rows too.
std::vector<WeightShape> parse_weight_shapes(const std::vector<std::string>& words, bool is_gated);

// What --help says of these words.
std::string weight_shapes_help();

}  // namespace tessella::cli
