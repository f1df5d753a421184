// The numbers by which a kernel computes a softcap.
#pragma once

#include "core/arguments.hpp"
#include "portable/forward_params.hpp"
#include "portable/score_config.hpp"

namespace tessella::cuda {

// scales_q: queries are multiplied by a power of two (ForwardSm90Config).
portable::SoftcapParams softcap_params(const core::AttentionArguments& p, const portable::ScoreConfig& config,
                                       bool scales_q);

}  // namespace tessella::cuda
