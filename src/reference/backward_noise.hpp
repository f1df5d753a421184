// The error that rounding alone may cause in gradients: bounds for the plain computation, from the oracle's rows
// (backward.hpp). They are the rounding floor of every comparison (compare.hpp, docs/numerics.md).
#pragma once

#include <cstdint>
#include <vector>

#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"
#include "reference/backward.hpp"

namespace tessella::reference {

// Bounds for dq, dk and dv of one KV head of a sequence, from the oracle's gradients.
HeadGradients<double> head_noise(const core::AttentionArguments& arguments, const core::Sequence& sequence,
                                 int64_t kv_head, const HeadGradients<double>& of);

// Bounds for a row of the gradient of a tensor that scores read, from the oracle's sums (score_gradient).
std::vector<double> score_noise(const core::AttentionArguments& arguments, core::Gradient gradient, int64_t b,
                                int64_t head, int64_t i, const std::vector<double>& of);

}  // namespace tessella::reference
