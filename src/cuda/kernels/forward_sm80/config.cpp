#include "cuda/kernels/forward_sm80/config.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "cuda/compile/expression.hpp"
#include "cuda/launch/score_config.hpp"

namespace tessella::cuda {
namespace {

using portable::Element;
using portable::ForwardSm80Config;
using portable::MaskLevel;
using portable::ScoreConfig;

// A kernel is never asked for more than 512.
int32_t padded(int64_t head_dim) { return compiled_head_dim(head_dim, {32, 64, 96, 128, 192, 256, 384, 512}); }

// Ways to divide a block's rows over warps, best first. With two blocks of 16 rows a warp reads every k and v once for
// both, which halves the shared memory traffic of a matrix instruction. Narrow slices of v save registers, but compute
// the scores once a slice. Few warps save shared memory.
struct Shape {
  int32_t tile_q, num_warps, max_slice;
};
constexpr std::array kShapes = {Shape{128, 4, 256}, Shape{64, 4, 256}, Shape{64, 4, 128}, Shape{32, 2, 128},
                                Shape{16, 1, 128}};

// Wide rows and element-wise loads take addresses beside the accumulators.
bool has_addresses(const ForwardSm80Config& c) { return !c.vector_loads || c.head_dim_qk > 128; }

// A weight for the registers that features add to those of the scores between q . k and the softmax. A bias needs a
// load and an address for each score, a score modification an unknown number. Wide rows, and rows with a maximum of
// their own, need a few more.
int weight(const ForwardSm80Config& c) {
  const ScoreConfig& score = c.score;
  const int features = (score.softcap ? 1 : 0) + (score.alibi ? 1 : 0) + (score.dropout ? 1 : 0) +
                       (score.mask == MaskLevel::bits ? 1 : 0) + (score.score_mod ? 2 : 0) + (score.bias ? 3 : 0);
  return features == 0 ? 0 : features + (has_addresses(c) ? 1 : 0) + (score.batch_invariant ? 1 : 0);
}

// Keys of a tile at most: the first row whose bounds hold the call. Longer tiles spare synchronisation.
struct LongestTile {
  bool is_f32;
  int64_t max_dim;  // the larger head dim, as the call has it
  int max_weight;
  bool wants_registers;  // registers for values common to a warp, from Hopper on, and for dropout's element-wise loads
  int32_t tile_kv;
};
constexpr int kAnyWeight = std::numeric_limits<int>::max();
constexpr int64_t kAnyDim = std::numeric_limits<int64_t>::max();  // costs are asked of calls that no kernel takes
constexpr std::array kLongestTiles = {
    LongestTile{true, 64, 0, false, 48},                 // registers: operands are split in two
    LongestTile{true, 128, 0, false, 32},                // registers, beside wider accumulators
    LongestTile{true, kAnyDim, kAnyWeight, false, 16},   // registers: nothing is left for features
    LongestTile{false, 64, 0, false, 128},               // a bit for each of a lane's keys of a row: 128 at most
    LongestTile{false, 64, 4, true, 96},                 // registers, as in the rows below
    LongestTile{false, 256, 4, false, 64},               // registers for a few features; plain wide rows: shared memory
    LongestTile{false, 256, kAnyWeight, false, 32},      // registers for many features
    LongestTile{false, kAnyDim, 0, false, 32},           // registers: slices of 256 columns
    LongestTile{false, kAnyDim, kAnyWeight, false, 16},  // the same with features
};

int32_t longest_tile(const ForwardSm80Config& c, int64_t dim, int arch) {
  const bool has_registers = arch >= 90 && (!c.score.dropout || c.vector_loads);
  return std::ranges::find_if(kLongestTiles,
                              [&](const LongestTile& row) {
                                return row.is_f32 == (c.score.elements.q == Element::f32) && dim <= row.max_dim &&
                                       weight(c) <= row.max_weight && (!row.wants_registers || has_registers);
                              })
      ->tile_kv;
}

}  // namespace

// Found with the assembler: with so many none of the kernels spills (tests/gpu/kernel_matrix_test.cpp). By features'
// weight, 16 and 32 rows a warp.
int accumulator_limit(const ForwardSm80Config& c, int arch) {
  using Limits = int[2][4];
  constexpr Limits kHopper = {{192, 160, 160, 144}, {192, 192, 176, 80}};
  constexpr Limits kBefore = {{176, 152, 144, 144}, {176, 160, 128, 80}};  // nothing holds what a warp has in common
  constexpr Limits kF32 = {{144, 96, 96, 96}, {112, 64, 64, 64}};          // operands are split in two
  const Limits& limits = c.score.elements.q == Element::f32 ? kF32 : arch < 90 ? kBefore : kHopper;
  const int limit = limits[c.tile_q / c.num_warps / 16 - 1][std::min(weight(c), 3)];
  if (c.score.mask == MaskLevel::bits && has_addresses(c)) return std::min(limit, 160);
  const bool is_tight = arch < 90 || c.head_dim_qk == 96 || c.head_dim_qk < c.head_dim_v;  // beside dropout
  if (c.score.dropout && is_tight) return std::min(limit, 144);
  return c.head_dim_qk > c.head_dim_v ? std::min(limit, 176) : limit;
}

ForwardSm80Config forward_sm80_config(const core::AttentionShape& p, const DeviceInfo& device) {
  const int64_t size = core::size_bytes(p.dtype());
  ForwardSm80Config c{
      .score = score_config(p),
      .head_dim_qk = padded(p.head_dim_qk),
      .blocks_per_sm = 2,
      .vector_loads = p.alignment() >= 16 && p.head_dim_qk * size % 16 == 0 && p.head_dim_v * size % 16 == 0,
      .paged = p.features.has(core::Feature::paged_kv),
  };
  const int32_t longest = longest_tile(c, std::max(p.head_dim_qk, p.head_dim_v), device.arch);
  for (const Shape& shape : kShapes) {
    const int64_t num_slices = (p.head_dim_v + shape.max_slice - 1) / shape.max_slice;
    c.head_dim_v = padded((p.head_dim_v + num_slices - 1) / num_slices);
    c.tile_q = shape.tile_q;
    c.num_warps = shape.num_warps;
    for (const int32_t tile_kv : {128, 96, 64, 48, 32, 16}) {
      c.tile_kv = tile_kv;
      const bool fits =
          accumulators(c) <= accumulator_limit(c, device.arch) && shared_bytes(c) <= device.shared_bytes_per_block;
      const bool is_worth_it = c.score.elements.q != Element::f32 || tile_kv >= 32 || shape.tile_q <= 64;
      if (tile_kv <= longest && fits && is_worth_it) return c;
    }
  }
  return c;
}

std::optional<ForwardSm80Config> for_small_source(const ForwardSm80Config& config, int arch) {
  if (!config.score.score_mod || weight(config) > 2 || config.tile_kv != 48 || arch < 90) return std::nullopt;
  ForwardSm80Config longer = config;
  longer.tile_kv = 64;
  return longer;
}

Program forward_sm80_program(const ForwardSm80Config& config, const std::string& user_source) {
  return {.header = "cuda/kernels/forward_sm80/forward_sm80.cuh",
          .expression = expression("forward_sm80", config),
          .user_source = user_source};
}

DeviceInfo typical_device(int arch) {
  const int per_block = arch == 80 || arch == 87 ? 163 : arch / 10 == 9 || arch / 10 == 10 ? 227 : 99;
  return {.arch = arch, .shared_bytes_per_block = per_block * 1024, .shared_bytes_per_sm = (per_block + 1) * 1024};
}

}  // namespace tessella::cuda
