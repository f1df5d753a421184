// The error that rounding alone may cause in a row of attention: bounds for the plain computation, from the oracle's
// row (attention.hpp). They are the rounding floor of every comparison (compare.hpp, docs/numerics.md).
#pragma once

#include <cstdint>
#include <vector>

#include "core/arguments.hpp"
#include "core/sequence.hpp"
#include "reference/attention.hpp"

namespace tessella::reference {

struct RowNoise {
  std::vector<double> out;  // one per element of the row
  double lse = 0;
};

// Bounds for query i of a head, from attention_row()'s softmax and out.
RowNoise row_noise(const core::AttentionArguments& arguments, const core::Sequence& sequence, int64_t head, int64_t i,
                   const RowSoftmax<double>& softmax, const double* out);

// The rounding of a partial sum over keys or queries. The oracle sums in float64: negligible beside f32 results, but as
// large as a kernel's own error beside f64.
double sum_unit(const core::AttentionArguments& arguments);

// The relative error that rounding alone may cause in exp of the score of q and k. exponent: the argument of exp.
double score_error(const core::AttentionArguments& arguments, double score, double exponent, const double* q,
                   const double* k);

}  // namespace tessella::reference
