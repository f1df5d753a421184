// What a call asks of its scores, as kernels are compiled for it.
#pragma once

#include <cstdint>

#include "core/shape.hpp"
#include "portable/score_config.hpp"

namespace tessella::cuda {

// All but series_terms, which depend on the kernel's head dims.
portable::ScoreConfig score_config(const core::AttentionShape& shape);

// Terms of the series that serves a softcap's small scores, or 0. head_dim_v: as compiled.
int32_t series_terms(const portable::ScoreConfig& config, const core::AttentionShape& shape, int32_t head_dim_v);

}  // namespace tessella::cuda
