// Forward of q, k and v of fp8, of caches of fewer bits than q, and with out of fp8 or amax: copies in fp32 (q, k and v
// times their scales) that another kernel of the table computes, then out from a copy, rounded once.
#pragma once

#include <string>

#include "core/kernel.hpp"
#include "core/plan.hpp"

namespace tessella::cpu {

// Its recipe is the plan of the kernel that computes the copies.
core::Offer offer_widened(const core::Shape& shape, int num_threads);
std::string describe_widened(const core::Plan& plan);
void run_widened(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void* stream);

}  // namespace tessella::cpu
