#include "cuda/kernels/forward_f8_sm90/config.hpp"

#include "cuda/compile/expression.hpp"
#include "cuda/kernels/forward_sm90/hopper_forward.hpp"
#include "cuda/launch/score_config.hpp"

namespace tessella::cuda {
namespace {

using core::AttentionShape;
using core::DType;
using core::Feature;
using core::Name;
using portable::ForwardSm90Config;
using portable::KeyScales;

// One factor serves a tile of keys where blocks of rows are whole tiles of each sequence.
KeyScales key_scales(const AttentionShape& p) {
  const bool has_any = p.operands[Name::k_scale].dtype != DType::none || p.operands[Name::v_scale].dtype != DType::none;
  if (!has_any) return KeyScales::tile;
  if (p.features.has(Feature::paged_kv)) return KeyScales::key;  // pages have factors of their own
  if (p.scale_block == 0) return KeyScales::tile;
  const bool begins_blocks = !p.features.has_any(Feature::packed_kv | Feature::leftpad_kv);
  return begins_blocks && p.scale_block % portable::kKeyTile == 0 ? KeyScales::tile : KeyScales::key;
}

}  // namespace

ForwardSm90Config forward_f8_sm90_config(const AttentionShape& p) {
  const bool is_wide = p.head_dim_qk > 128 || p.head_dim_v > 128;  // registers hold the scores of fewer keys
  return {.score = score_config(p),
          .head_dim_qk = hopper_head_dim(p.head_dim_qk),
          .head_dim_v = hopper_head_dim(p.head_dim_v),
          .tile_q = 2 * portable::kWarpgroupRows,
          .tile_kv = is_wide ? portable::kKeyTile / 2 : portable::kKeyTile,
          .paged = p.features.has(Feature::paged_kv),
          .scales = key_scales(p)};
}

Program forward_f8_sm90_program(const ForwardSm90Config& config, const std::string& user_source) {
  return {.header = "cuda/kernels/forward_f8_sm90/forward_f8_sm90.cuh",
          .expression = expression("forward_f8_sm90", config),
          .user_source = user_source,
          .arch_specific = true};
}

Program transpose_v_program(const portable::TransposeVConfig& config) {
  return {.header = "cuda/kernels/forward_f8_sm90/transpose_v.cuh", .expression = expression("transpose_v", config)};
}

}  // namespace tessella::cuda
