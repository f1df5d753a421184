// The score configuration of a call, which kernels are compiled for.
#pragma once

#include "operations/attention/shape.hpp"
#include "portable/score_config.hpp"

namespace tessella::cuda {

portable::ScoreConfig score_config(const core::AttentionShape& shape);

}  // namespace tessella::cuda
