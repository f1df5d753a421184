// How far rounding alone may move a row of attention: the error bounds of the plain computation, from the row as the
// oracle has it (attention.hpp). They are the rounding floor of every comparison (compare.hpp, docs/numerics.md).
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

// Of query i of a head, whose softmax and out attention_row has computed.
RowNoise row_noise(const core::AttentionArguments& arguments, const core::Sequence& sequence, int64_t head, int64_t i,
                   const RowSoftmax<double>& softmax, const double* out);

// Of a partial sum over keys or queries. The oracle rounds its own in float64: nothing beside f32, as much as kernels
// do in f64.
double sum_unit(const core::AttentionArguments& arguments);

// How far rounding alone moves the score of q and k, as a part of its probability: exp is given exponent.
double score_error(const core::AttentionArguments& arguments, double score, double exponent, const double* q,
                   const double* k);

}  // namespace tessella::reference
