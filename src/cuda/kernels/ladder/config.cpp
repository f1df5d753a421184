#include "cuda/kernels/ladder/config.hpp"

#include <algorithm>

#include "core/message.hpp"
#include "cuda/compile/expression.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"

namespace tessella::cuda {

portable::LadderConfig ladder_config(const core::AttentionShape& p, const DeviceInfo& device) {
  const portable::ForwardSm80Config c = forward_sm80_config(p, device);
  return {.score = c.score,
          .head_dim_qk = c.head_dim_qk,
          .head_dim_v = c.head_dim_v,
          .tile_q = std::min(c.tile_q, c.num_warps * 16),
          .tile_kv = std::min(c.tile_kv, 32),
          .num_warps = c.num_warps,
          .vector_loads = c.vector_loads,
          .paged = c.paged};
}

Program ladder_program(const char* file, const char* kernel, const portable::LadderConfig& config,
                       const std::string& user_source) {
  return {.header = core::message("cuda/kernels/ladder/", file),
          .expression = expression(kernel, config),
          .user_source = user_source};
}

}  // namespace tessella::cuda
