#include "cuda/kernels/linear_sm90/config.hpp"

#include <algorithm>
#include <bit>
#include <span>

#include "core/element.hpp"
#include "cuda/compile/expression.hpp"

namespace tessella::cuda {
namespace {

using core::LinearShape;
using portable::LinearSm90Config;

constexpr int64_t ceil_div(int64_t count, int64_t size) { return (count + size - 1) / size; }

// How blocks share the work. Without `streams` as many clusters as tiles run at once, if every multiprocessor has
// blocks_per_sm blocks: a wave, of which `sevenths` at least must be there. Clusters halve or quarter the columns of a
// block, until a wave has work for all; two blocks of rows a tile read x half as often. Several blocks a multiprocessor
// have little memory each: their stages are short.
struct Way {
  int32_t blocks_per_sm, cluster, row_blocks, panels;
  bool streams;
  int32_t sevenths;
};
// By the tiles of 64 columns of out that a full wave holds; the first that serves counts. Half a wave, a wave and three
// halves were the fastest on an H200 (docs/results), and the others follow from them.
constexpr Way kWaves[] = {
    {1, 4, 1, 4, false, 0},  // to a quarter of a wave: smaller shares would cost more than idle multiprocessors
    {1, 2, 1, 4, false, 6},  // half a wave
    {2, 2, 1, 2, false, 6},  // a wave
    {3, 2, 1, 1, false, 6},  // three halves
    {2, 2, 2, 1, false, 6},  // two waves
    {3, 2, 2, 1, false, 6},  // three
};
// The same of gates and what they multiply, which are two blocks of rows.
constexpr Way kGatedWaves[] = {
    {1, 4, 2, 1, false, 0},  // to a quarter of a wave
    {1, 2, 2, 1, false, 6},  // half a wave
    {3, 4, 2, 1, false, 6},  // three quarters
    {2, 2, 2, 1, false, 6},  // a wave
    {3, 2, 2, 1, false, 6},  // three halves
};
// Else: equal shares for all blocks, whatever the sizes are. Sums of tiles that borders cut go through memory.
constexpr Way kStream = {1, 1, 1, 4, true, 0}, kGatedStream = {1, 1, 2, 2, true, 0};
// For so many tiles that a block's part of one hardly counts: the next wave begins where the one before it ends early.
constexpr Way kManyWaves = {2, 2, 1, 2, false, 0}, kManyGatedWaves = {2, 2, 2, 1, false, 0};

int64_t blocks_of(const LinearShape& p, const Way& way, int64_t row_tiles) {
  const bool is_gated = p.activation == core::Activation::swiglu;
  const int64_t tile_columns = int64_t{portable::kLinearBlockRows} * (is_gated ? 1 : way.row_blocks);
  return ceil_div(p.out_features, tile_columns) * way.cluster * row_tiles;
}

Way way_of(const LinearShape& p, const DeviceInfo& device, int64_t row_tiles) {
  const bool is_gated = p.activation == core::Activation::swiglu;
  // Bits must depend neither on the GPU nor on rows: then the multiprocessors are those of most Hoppers, and a wave may
  // be half empty.
  constexpr int64_t kUsualSms = 132;
  const int64_t num_sms = p.batch_invariant ? kUsualSms : device.num_sms;
  for (const Way& way : is_gated ? std::span<const Way>(kGatedWaves) : std::span<const Way>(kWaves)) {
    const int64_t wave = num_sms * way.blocks_per_sm;
    const int64_t blocks = blocks_of(p, way, p.batch_invariant ? 1 : row_tiles);
    const bool is_full = blocks * 7 >= wave * way.sevenths;
    if (blocks <= wave && (is_full || p.batch_invariant)) return way;
  }
  if (p.batch_invariant) return is_gated ? kManyGatedWaves : kManyWaves;
  return is_gated ? kGatedStream : kStream;
}

}  // namespace

LinearSm90Config linear_sm90_config(const LinearShape& p, const DeviceInfo& device, const LinearSm90Limits& limits) {
  constexpr int64_t kTileRows = 64;
  const int64_t rows = std::clamp(p.rows, int64_t{limits.fewest_rows}, kTileRows);
  LinearSm90Config c{.element = core::element(p.dtype()),
                     .swiglu = p.activation == core::Activation::swiglu,
                     .rows = static_cast<int32_t>(std::bit_ceil(static_cast<uint64_t>(rows)))};
  DeviceInfo used = device;
  if (p.num_sms > 0) used.num_sms = std::min(p.num_sms, device.num_sms);
  const bool has_limit = used.num_sms < device.num_sms && !p.batch_invariant;
  const Way way = has_limit ? c.swiglu ? kGatedStream : kStream : way_of(p, used, ceil_div(p.rows, c.rows));
  c.row_blocks = way.row_blocks;
  c.panels = way.panels;
  c.cluster = way.cluster;
  c.streams = way.streams;
  c.blocks_per_sm = way.blocks_per_sm;
  // As many as fit, so that much of w is on its way: at least 2, for any rows.
  const int32_t most_bytes = portable::shared_bytes_of(way.blocks_per_sm);
  for (c.stages = std::min(2, limits.most_stages); c.stages < limits.most_stages; ++c.stages) {
    LinearSm90Config more = c;
    ++more.stages;
    if (portable::shared_bytes(more) > most_bytes) break;
  }
  return c;
}

int64_t linear_sm90_tiles(const LinearShape& p, const LinearSm90Config& c) {
  return ceil_div(p.out_features, portable::tile_columns(c)) * ceil_div(p.rows, c.rows);
}
int64_t linear_sm90_steps(const LinearShape& p, const LinearSm90Config& c) {
  return ceil_div(p.in_features, portable::step_columns(c));
}

Program linear_sm90_program(const LinearSm90Config& config) {
  return {.header = "cuda/kernels/linear_sm90/linear_sm90.cuh",
          .expression = expression("linear_sm90", config),
          .arch_specific = true};
}

}  // namespace tessella::cuda
