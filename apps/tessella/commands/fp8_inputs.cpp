#include "commands/fp8_inputs.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "commands/attend_inputs.hpp"
#include "files/input_error.hpp"

namespace tessella::cli {
namespace {

Array bf16_array(const char* name, int64_t rows, const Fp8Sizes& sizes, const std::function<float()>& draw) {
  const int64_t shape[] = {1, rows, sizes.heads, sizes.head_dim};
  Array array = allocate_array(name, TESSELLA_BF16, shape);
  for (int64_t i = 0; i < num_elements(array.tensor); ++i) {
    store_element(array.tensor.data, TESSELLA_BF16, i, draw());
  }
  return array;
}

// One key in the middle, which is orthogonal to all others, gets this part of every row's weight.
void add_needle(Fp8Inputs& inputs, const Fp8Sizes& sizes, double weight) {
  constexpr float kOfQuery = 4;  // times the key's, in column 0
  // Scores of normal q and k are normal, and the mean of e^x is e^(1/2).
  const double others = static_cast<double>(sizes.seqlen) * std::exp(0.5);
  const double score = std::log(weight / (1 - weight) * others);
  const auto of_key = static_cast<float>(score * std::sqrt(static_cast<double>(sizes.head_dim)) / kOfQuery);
  const auto set = [&](Array& array, int64_t row, int64_t column, float value) {
    for (int64_t head = 0; head < sizes.heads; ++head) {
      const int64_t at = (row * sizes.heads + head) * sizes.head_dim + column;
      store_element(array.tensor.data, TESSELLA_BF16, at, value);
    }
  };
  for (int64_t i = 0; i < sizes.queries; ++i) set(inputs.q, i, 0, kOfQuery);
  for (int64_t j = 0; j < sizes.seqlen; ++j) set(inputs.k, j, 0, 0);
  for (int64_t c = 0; c < sizes.head_dim; ++c) set(inputs.k, sizes.seqlen / 2, c, c == 0 ? of_key : 0);
}

}  // namespace

const std::vector<Fp8Data>& fp8_data() {
  static const std::vector<Fp8Data> kData = {
      {"normal", "N(0,1)"},
      {"outliers", "N(0,1) + N(0,100) Bernoulli(0.001), FlashAttention-3's"},
      {"mean-1", "v of N(1,1)"},
      {"needle-5", "v of N(1,1), and one key has 5 % of the weight"},
      {"needle-50", "one key has half the weight"},
  };
  return kData;
}

void check_fp8_data(std::string_view what, const std::string& name) {
  std::string names;
  for (const Fp8Data& data : fp8_data()) {
    if (name == data.name) return;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", data.name);
  }
  throw InputError(fmt::format("{} is '{}', expected some of {}", what, name, names));
}

Fp8Inputs random_fp8_inputs(const std::string& name, const Fp8Sizes& sizes, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::bernoulli_distribution is_outlier(0.001);
  const bool has_outliers = name == "outliers";
  const auto draw = [&] { return normal(random) + (has_outliers && is_outlier(random) ? 10 * normal(random) : 0.0f); };
  const float mean = name == "mean-1" || name == "needle-5" ? 1 : 0;
  Fp8Inputs inputs{bf16_array("q", sizes.queries, sizes, draw), bf16_array("k", sizes.seqlen, sizes, draw),
                   bf16_array("v", sizes.seqlen, sizes, [&] { return mean + draw(); })};
  if (name == "needle-5") add_needle(inputs, sizes, 0.05);
  if (name == "needle-50") add_needle(inputs, sizes, 0.5);
  return inputs;
}

Fp8Inputs read_fp8_inputs(const std::string& file, int64_t queries) {
  Call call;
  read_inputs({.files = {file}}, call);
  const auto rounded = [](const char* name, const tessella_tensor& from, int64_t first) {
    const int64_t shape[] = {from.shape[0], from.shape[1] - first, from.shape[2], from.shape[3]};
    Array array = allocate_array(name, TESSELLA_BF16, shape);
    tessella_tensor rows = from;
    rows.shape[1] = shape[1];
    for (int64_t i = 0; i < num_elements(array.tensor); ++i) {
      const double value = load_element(from.data, from.dtype, first * from.strides[1] + element_index(rows, i));
      store_element(array.tensor.data, TESSELLA_BF16, i, static_cast<float>(value));
    }
    return array;
  };
  for (const tessella_tensor* tensor : {call.args.q, call.args.k, call.args.v}) {
    if (tensor->ndim != 4 || tensor->shape[0] != 1) {
      throw InputError(
          fmt::format("{}: has shape {}, expected (1, seqlen, heads, head_dim)", file, shape_string(*tensor)));
    }
  }
  const auto expect_same = [&](const char* name, const tessella_tensor& tensor, const char* axis, int at,
                               const tessella_tensor& other, const char* of) {
    if (tensor.shape[at] == other.shape[at]) return;
    throw InputError(
        fmt::format("{}: {} has {} {}, expected {} as {}", file, name, axis, tensor.shape[at], other.shape[at], of));
  };
  expect_same("k", *call.args.k, "heads", 2, *call.args.q, "q");
  expect_same("k", *call.args.k, "head_dim", 3, *call.args.q, "q");
  expect_same("v", *call.args.v, "seqlen", 1, *call.args.k, "k");
  expect_same("v", *call.args.v, "heads", 2, *call.args.q, "q");
  expect_same("v", *call.args.v, "head_dim", 3, *call.args.q, "q");
  const int64_t first = std::max<int64_t>(0, call.args.q->shape[1] - queries);
  return {rounded("q", *call.args.q, first), rounded("k", *call.args.k, 0), rounded("v", *call.args.v, 0)};
}

}  // namespace tessella::cli
