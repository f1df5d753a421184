// The numbers by which a kernel computes a softcap.
#pragma once

#include "core/problem.hpp"
#include "portable/forward_config.hpp"
#include "portable/forward_params.hpp"

namespace tessella::cuda {

portable::SoftcapParams softcap_params(const core::Problem& p, const portable::ForwardConfig& config);

}  // namespace tessella::cuda
