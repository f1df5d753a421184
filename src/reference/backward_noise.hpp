// How far rounding alone may move gradients: the error bounds of the plain computation, from the rows as the oracle has
// them (backward.hpp). They are the rounding floor of every comparison (compare.hpp, docs/numerics.md).
#pragma once

#include <cstdint>
#include <vector>

#include "core/arguments.hpp"
#include "core/sequence.hpp"
#include "reference/backward.hpp"

namespace tessella::reference {

// Of dq, dk and dv of one KV head of a sequence, whose gradients the oracle has computed.
HeadGradients<double> head_noise(const core::AttentionArguments& arguments, const core::Sequence& sequence,
                                 int64_t kv_head, const HeadGradients<double>& of);

// Of a row of a gradient of what scores read, whose sums the oracle has computed (score_gradient).
std::vector<double> score_noise(const core::AttentionArguments& arguments, core::Gradient gradient, int64_t b,
                                int64_t head, int64_t i, const std::vector<double>& of);

}  // namespace tessella::reference
