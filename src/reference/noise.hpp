// The error that rounding alone may cause in a row of attention: bounds for the plain computation, from the oracle's
// row (attention.hpp). They are the rounding floor of every comparison (compare.hpp, docs/numerics.md).
#pragma once

#include <cstdint>
#include <vector>

#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"
#include "reference/attention.hpp"

namespace tessella::reference {

// Standard errors of a row before its results are rounded.
struct RowErrors {
  std::vector<double> probs;     // of P_j of every key, and of the sink behind them
  std::vector<double> products;  // of every key: of q.k
  std::vector<double> out;       // one per element of the row
  double lse = 0;
};

// Of query i of a head, from attention_row()'s softmax and out.
RowErrors row_errors(const core::AttentionArguments& arguments, const core::Sequence& sequence, int64_t head, int64_t i,
                     const RowSoftmax<double>& softmax, const double* out);

struct RowNoise {
  std::vector<double> result;  // one per element of the row
  std::vector<double> out;     // beside it, of its rounding
  double lse = 0;
};

// Bounds for the same row.
RowNoise row_noise(const core::AttentionArguments& arguments, const core::Sequence& sequence, int64_t head, int64_t i,
                   const RowSoftmax<double>& softmax, const double* out);

// The rounding of a partial sum over keys or queries. The oracle sums in float64: negligible beside f32 results, but as
// large as a kernel's own error beside f64.
double sum_unit(const core::AttentionArguments& arguments);

}  // namespace tessella::reference
