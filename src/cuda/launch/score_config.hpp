// What a call asks of its scores, as kernels are compiled for it.
#pragma once

#include "core/shape.hpp"
#include "portable/score_config.hpp"

namespace tessella::cuda {

portable::ScoreConfig score_config(const core::AttentionShape& shape);

}  // namespace tessella::cuda
