// What backward reads first: the arguments of the forward call.
#pragma once

#include "operations/attention/attention.hpp"

namespace tessella::core {

// Like Forward::read(), but a cache of 8 or 4 bits may lack its scales.
AttentionArguments read_forward(const Forward::Args& args, const Forward::Options& options, const Reading& reading);

}  // namespace tessella::core
