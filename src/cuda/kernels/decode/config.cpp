#include "cuda/kernels/decode/config.hpp"

#include <algorithm>
#include <bit>

#include "cuda/compile/expression.hpp"
#include "cuda/launch/forward_tiles.hpp"
#include "cuda/launch/score_config.hpp"

namespace tessella::cuda {
namespace {

using core::AttentionShape;
using core::Feature;
using portable::DecodeConfig;
using portable::Element;

int32_t padded(int64_t head_dim, Element cache) {
  // A row of a tile is a whole number of pairs of 16-byte chunks.
  if (cache == Element::i4) return compiled_head_dim(head_dim, {64, 128, 192, 256});
  return compiled_head_dim(head_dim, {32, 64, 96, 128, 192, 256});
}

// A multiprocessor reaches its fraction of the memory bandwidth with this many bytes of keys and values in flight.
constexpr int32_t kBytesUnderWay = 128 << 10;
constexpr int32_t kMostDepth = 6;

// Registers of a thread that grow with rows: o, and scores, probabilities, maxima and sums of a step. The limits were
// found with the assembler: up to them nothing spills (tests/gpu/kernel_matrix_test.cpp).
int32_t accumulators(const DecodeConfig& c) {
  const int32_t blocks = c.rows / 8, pieces = c.head_dim_v / 16, warps = portable::group_warps(c);
  return blocks * (4 * ((pieces + warps - 1) / warps) + 12);
}
int32_t accumulator_limit(const DecodeConfig& c) {
  // fp32 operands are split in two terms; those of 8 and 4 bits are not.
  if (c.score.elements.q == Element::f32) return portable::is_quantized(c.score.elements.kv) ? 64 : 40;
  const int32_t dim = std::max(c.head_dim_qk, c.head_dim_v);
  return dim > 192 ? 80 : dim > 128 ? 96 : 144;
}
// The limit for a warp that computes all columns by itself.
int32_t limit_alone(const DecodeConfig& c) {
  return std::min(c.score.elements.q == Element::f32 ? 48 : 96, accumulator_limit(c));
}

// Steps that are copied ahead: as many as are wanted and fit; 0 if not even one fits.
int32_t depth(DecodeConfig c, const DeviceInfo& device) {
  const int32_t row_bytes = cache_bytes(c, c.head_dim_qk) + (c.v_in_k ? 0 : cache_bytes(c, c.head_dim_v));
  const int32_t wanted = std::clamp(kBytesUnderWay / (portable::step_keys(c) * row_bytes), 1, kMostDepth);
  for (c.depth = wanted; c.depth > 0; --c.depth) {
    if (shared_bytes(c) <= device.shared_bytes_per_block) break;
  }
  return c.depth;
}

// MLA: keys have latent columns, which are also the values, and rotated columns. A step has two tiles. The tile of rows
// is as large as leaves shared memory for two steps ahead, or for one.
DecodeConfig long_rows_config(DecodeConfig c, const DeviceInfo& device) {
  c.head_dim_qk = 576;
  c.head_dim_v = 512;
  c.v_in_k = true;
  const int32_t wanted = std::max(c.rows, 16);
  for (const int32_t least_depth : {2, 1}) {
    for (c.rows = wanted; c.rows >= 16; c.rows /= 2) {
      c.num_warps = c.rows == 16 ? 4 : 8;  // warps that score the same keys have 8 rows at least
      c.depth = depth(c, device);
      if (c.depth >= least_depth) return c;
    }
  }
  c.rows = 16;  // wants more shared memory than there is, as the recipe says
  c.depth = 1;
  return c;
}

constexpr int64_t ceil(int64_t count, int64_t size) { return (count + size - 1) / size; }

}  // namespace

DecodeConfig decode_config(const AttentionShape& p, const DeviceInfo& device, bool unified_max) {
  const portable::ScoreConfig score = score_config(p);
  DecodeConfig c{.score = score,
                 .head_dim_qk = padded(p.head_dim_qk, score.elements.kv),
                 .head_dim_v = padded(p.head_dim_v, score.elements.kv),
                 .unified_max = unified_max};
  c.score.mask = portable::MaskLevel::band;  // drafts are no tiles of bits here
  c.score.batch_invariant = false;           // which is in how the keys are split, not in the program
  // A row's bits must not depend on the queries beside it.
  const int64_t rows = p.batch_invariant ? p.group() : decode_rows(p);
  c.rows = std::max<int32_t>(
      static_cast<int32_t>(std::bit_ceil(static_cast<uint64_t>(std::clamp<int64_t>(rows, 1, kMostDecodeRows)))), 8);
  if (has_long_rows(p)) return long_rows_config(c, device);
  // If the rows do not fit one tile, they become several tiles, and each reads all keys and values.
  for (; c.rows >= 8; c.rows /= 2) {
    for (const int32_t least_depth : {2, 1}) {
      for (c.num_warps = 8; c.num_warps >= 2; c.num_warps /= 2) {
        c.warps_alone = true;
        c.warps_alone = accumulators(c) <= limit_alone(c);
        c.depth = depth(c, device);
        if (c.depth >= least_depth && accumulators(c) <= accumulator_limit(c)) return c;
      }
    }
  }
  c.rows = 8;  // wants more shared memory than there is, as the recipe says
  c.num_warps = 2;
  c.depth = 1;
  return c;
}

Program decode_program(const DecodeConfig& config) {
  return {.header = "cuda/kernels/decode/decode.cuh", .expression = expression("decode", config)};
}
Program decode_schedule_program() {
  return {.header = "cuda/kernels/decode/decode_schedule.cuh", .expression = "tessella::device::decode_schedule"};
}

namespace {

// Blocks of a cluster and clusters of a unit, without a schedule. Measured on an H100 (docs/results).
struct Blocks {
  int64_t cluster, unit_clusters;
};
Blocks blocks_of_unit(int64_t units, int64_t steps, int64_t num_sms, bool has_clusters) {
  if (2 * units >= num_sms) return {1, 1};
  if (!has_clusters) return {1, std::clamp<int64_t>(num_sms / units, 1, steps)};
  // Use all multiprocessors if each has enough steps that merging through memory costs little.
  constexpr int64_t kFewUnits = 8, kManySteps = 8;
  const int64_t pairs = num_sms / 2 / units;
  if (units >= kFewUnits && steps >= kManySteps * 2 * pairs) return {2, pairs};
  // Otherwise use one cluster, which merges through shared memory: three eighths of the multiprocessors reach nearly
  // the full memory bandwidth.
  int64_t cluster = 1;
  while (cluster < portable::kMostClusterBlocks && 8 * units * cluster < 3 * num_sms && 2 * cluster <= steps)
    cluster *= 2;
  constexpr int64_t kStepsOfSecond = 4;  // that earn another cluster its meeting
  const int64_t clusters = cluster < portable::kMostClusterBlocks ? 1 : num_sms / 2 / units / cluster;
  return {cluster, std::clamp<int64_t>(clusters, 1, std::max<int64_t>(steps / kStepsOfSecond / cluster, 1))};
}

// MLA rows keep the matrix units busy, so use as many multiprocessors as have work. Large clusters merge long states
// fastest (each block merges a slice), but must not cost many multiprocessors. Not measured.
Blocks blocks_of_long_unit(int64_t units, int64_t steps, int64_t num_sms, bool has_clusters) {
  if (2 * units >= num_sms || !has_clusters) return blocks_of_unit(units, steps, num_sms, has_clusters);
  constexpr int64_t kStepsOfBlock = 4;  // that earn a block its meeting
  Blocks best = {1, 1};
  int64_t most = 0;
  for (int64_t cluster = portable::kMostClusterBlocks; cluster >= 1; cluster /= 2) {
    // Multiprocessors on which large clusters surely fit.
    const int64_t usable = cluster > 2 ? num_sms - num_sms / 8 : num_sms;
    const int64_t clusters =
        std::min(usable / (units * cluster), std::max<int64_t>(steps / kStepsOfBlock / cluster, 1));
    if (clusters == 0 || (cluster > 1 && 2 * cluster > steps) || 4 * cluster * clusters <= 5 * most) continue;
    best = {cluster, clusters};
    most = cluster * clusters;
  }
  return best;
}

}  // namespace

Splits decode_splits(const AttentionShape& p, const DecodeConfig& c, const DeviceInfo& device) {
  Splits s;
  const bool has_clusters = device.arch >= 90;
  const int64_t sequences = p.batch + (p.features.has(Feature::packed_q) ? 1 : 0);
  s.rows = static_cast<int32_t>(std::clamp<int64_t>(decode_rows(p), 1, c.rows));
  s.row_tiles = std::max<int64_t>(ceil(decode_rows(p), s.rows), 1);
  s.units = sequences * p.heads_kv * s.row_tiles;
  const int64_t num_sms = std::max(device.num_sms, 2), units = std::max<int64_t>(s.units, 1);
  if (p.batch_invariant) {
    constexpr int64_t kInvariantKeys = 4096;
    s.cluster = has_clusters ? 2 : 1;
    s.split_rounds = static_cast<int32_t>(kInvariantKeys / (s.cluster * portable::step_keys(c)));
    s.unit_clusters =
        std::max<int64_t>(ceil(p.seqlen_kv, kInvariantKeys), 1) + (p.features.has(Feature::keep_first) ? 1 : 0);
  } else if (p.features.has(Feature::schedule)) {  // by what does not change with lengths
    s.cluster = has_clusters && units < num_sms / 4 ? 2 : 1;
    s.pieces = num_sms / s.cluster;
  } else if (p.num_splits > 0) {
    while (has_clusters && s.cluster < portable::kMostClusterBlocks && p.num_splits % (s.cluster * 2) == 0) {
      s.cluster *= 2;
    }
    s.unit_clusters = p.num_splits / s.cluster;
  } else {
    const int64_t steps = std::max<int64_t>(ceil(p.most_keys(), portable::step_keys(c)), 1);
    const Blocks blocks = c.v_in_k ? blocks_of_long_unit(units, steps, num_sms, has_clusters)
                                   : blocks_of_unit(units, steps, num_sms, has_clusters);
    s.cluster = static_cast<int32_t>(blocks.cluster);
    s.unit_clusters = blocks.unit_clusters;
  }
  return s;
}

}  // namespace tessella::cuda
