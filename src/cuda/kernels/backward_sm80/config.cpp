#include "cuda/kernels/backward_sm80/config.hpp"

#include <algorithm>
#include <array>

#include "core/message.hpp"
#include "cuda/compile/expression.hpp"
#include "cuda/launch/forward_tiles.hpp"
#include "cuda/launch/score_config.hpp"

namespace tessella::cuda {
namespace {

using portable::BackwardSm80Config;
using portable::Element;

int32_t padded(int64_t head_dim) { return compiled_head_dim(head_dim, {32, 64, 96, 128, 192, 256}); }

// Tiles, best first. Long tiles of keys spare adds to dQ in memory; long ones of queries spare barriers. A block's K
// and V stay in shared memory and its dK and dV in registers, so wide rows have short ones.
struct Tiles {
  int32_t tile_q, tile_kv, num_warps;
};
constexpr std::array kTiles = {Tiles{128, 128, 8}, Tiles{64, 128, 8}, Tiles{32, 128, 8}, Tiles{64, 64, 8},
                               Tiles{32, 64, 8},   Tiles{32, 32, 8},  Tiles{16, 32, 4},  Tiles{16, 16, 4}};

// A weight for the registers that features add between the products.
int weight(const BackwardSm80Config& c) {
  const portable::ScoreConfig& score = c.score;
  const bool has_bits = score.mask == portable::MaskLevel::bits;
  return (score.alibi ? 1 : 0) + (score.dropout ? 2 : 0) + (has_bits ? 2 : 0) + (score.score_mod ? 2 : 0) +
         (score.bias ? 2 : 0);
}

// Registers that a kernel may spend by its accumulators: the first row whose bounds hold the call. Found with the
// assembler: with so many none spills (tests/gpu/kernel_matrix_test.cpp).
struct Limit {
  bool is_f32;
  int32_t max_dim;  // the larger head dim, as compiled
  int max_weight;
  int registers;
};
constexpr int kAnyWeight = 100;
constexpr std::array kLimits = {Limit{true, 128, 1, 160},           // operands are split in two
                                Limit{true, 256, kAnyWeight, 112},  // beside features or the addresses of wide rows
                                Limit{false, 128, 0, 256},          // plain and softcap
                                Limit{false, 128, 1, 224},          // the slope and distances
                                Limit{false, 256, 3, 176},          // addresses of loads, or random bits
                                Limit{false, 256, kAnyWeight, 120}};

int limit(const BackwardSm80Config& c) {
  return std::ranges::find_if(kLimits,
                              [&](const Limit& row) {
                                return row.is_f32 == (c.score.elements.q == Element::f32) &&
                                       std::max(c.head_dim_qk, c.head_dim_v) <= row.max_dim &&
                                       weight(c) <= row.max_weight;
                              })
      ->registers;
}

// Accumulators of S and dP together.
int score_accumulators(const BackwardSm80Config& c) {
  const int warps = std::min(c.num_warps, c.tile_kv / 16 * (c.tile_q / 16));
  return 2 * c.tile_kv * c.tile_q / (warps * 32);
}

// dK and dV, and scores, which want half as many more for what becomes of them.
int registers(const BackwardSm80Config& c) {
  return c.tile_kv * (c.head_dim_qk + c.head_dim_v) / (c.num_warps * 32) + score_accumulators(c) * 3 / 2;
}

}  // namespace

BackwardSm80Config backward_sm80_config(const core::AttentionShape& p, const DeviceInfo& device) {
  const int64_t size = core::size_bytes(p.dtype());
  const auto alignment = std::min(p.alignment(), p.operands[core::Name::d_out].alignment);
  BackwardSm80Config c{
      .score = score_config(p),
      .head_dim_qk = padded(p.head_dim_qk),
      .head_dim_v = padded(p.head_dim_v),
      .vector_loads = alignment >= 16 && p.head_dim_qk * size % 16 == 0 && p.head_dim_v * size % 16 == 0,
      .in_order = !p.need_not_be_deterministic,
  };
  for (const Tiles& tiles : kTiles) {
    c.tile_q = tiles.tile_q;
    c.tile_kv = tiles.tile_kv;
    c.num_warps = tiles.num_warps;
    if (registers(c) > limit(c)) continue;
    for (const int32_t stages : {2, 1}) {
      c.stages = stages;
      if (shared_bytes(c) <= device.shared_bytes_per_block) return c;
    }
  }
  return c;
}

Program backward_program(const char* file, const char* kernel, const BackwardSm80Config& config,
                         const std::string& user_source) {
  return {.header = core::message("cuda/kernels/", file),
          .expression = expression(kernel, config),
          .user_source = user_source};
}

}  // namespace tessella::cuda
