// The numbers by which a kernel computes a softcap.
#pragma once

#include "operations/attention/arguments.hpp"
#include "portable/scores_params.hpp"

namespace tessella::cuda {

portable::SoftcapParams softcap_params(const core::AttentionArguments& p);

}  // namespace tessella::cuda
