// A case's call on the emulated kernel of its config.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "api/forward.hpp"
#include "cases/call.hpp"
#include "cases/cases.hpp"
#include "core/sequence.hpp"
#include "cuda/device/ptx/tensor_copy.hpp"
#include "cuda/launch/forward_arguments.hpp"
#include "cuda/launch/forward_config.hpp"
#include "emulated_kernels.hpp"
#include "emulated_list.hpp"

namespace tessella::tests {
namespace {

using core::Problem;

constexpr unsigned kBlocks = 3;
// Few blocks and a small cache: sections of few heads, and a last one of more.
constexpr cuda::Concurrency kAtOnce = {.blocks = kBlocks, .l2_bytes = 256 << 10};

portable::TensorMap tensor_map(const core::Operand& t, int64_t head_dim, int64_t rows, int64_t heads, int64_t batch,
                               int32_t box_rows) {
  const emulator::Tensor tensor = {reinterpret_cast<uint16_t*>(t.data),
                                   {head_dim, rows, heads, batch},
                                   t.row_stride,
                                   t.head_stride,
                                   t.batch_stride,
                                   box_rows};
  portable::TensorMap map{};
  std::memcpy(&map, &tensor, sizeof tensor);
  return map;
}

}  // namespace

std::string run_sm90(const Case& c, uint64_t seed, std::vector<std::byte>* results, Texts texts) {
  Call call(c);
  if (const std::string text = run_sm90(call, c, seed, texts); !text.empty()) return text;
  if (results != nullptr) *results = call.results();
  return call.check();
}

std::string run_sm90(Call& call, const Case& c, uint64_t seed, Texts texts) {
  Problem p = api::read_problem(&call.args(), call.options(), "emulated", nullptr);
  const bool has_text = texts != Texts::none, has_score = has_text && p.features.has(core::Feature::alibi);
  if (has_text && p.features.has(core::Feature::causal_top_left)) p.features |= core::Feature::keep;
  if (has_score) {
    p.features |= core::Feature::score;
    if (texts == Texts::by_distance) p.score = "q_minus_k";
  }
  if (has_text) p.features = p.features.without(core::Feature::causal_top_left | core::Feature::alibi);
  Problem bounds = p;  // as a plan for longer sequences has them
  bounds.seqlen_q = std::max(p.seqlen_q, c.max_seqlen);
  bounds.seqlen_kv = std::max(p.seqlen_kv, c.max_seqlen);
  const ForwardConfig alone = cuda::forward_sm90_config(bounds);
  const cuda::TileMap map = cuda::tile_map(p, alone);
  const ForwardConfig config = map.tiles_q % 2 == 0 ? cuda::in_pairs(alone, p).value_or(alone) : alone;
  const auto kernel = std::ranges::find(sm90_kernels(), config, &Sm90::config);
  if (kernel == sm90_kernels().end()) return "no kernel of this config is among those of the test";
  const int64_t items = cuda::forward_blocks(p, map);
  const auto [batch_q, rows_q] = p.axes_q();
  const auto [batch_kv, rows_kv] = p.axes_kv();
  uint32_t counter = 0;
  std::vector<uint32_t> scratch(static_cast<size_t>(map.seen_bytes() + map.bytes()) / 4 + 1, 0xFFFFFFFF);
  portable::ForwardSm90Params params = cuda::forward_sm90_params(p, config, map, &counter, scratch.data(), kAtOnce);
  std::vector<int32_t> len_q, len_kv;
  if (has_score) {
    for (int64_t batch_idx = 0; batch_idx < p.batch; ++batch_idx) {
      const core::Sequence sequence = core::sequence(p, batch_idx);
      len_q.push_back(static_cast<int32_t>(sequence.len_q));
      len_kv.push_back(static_cast<int32_t>(sequence.len_kv));
    }
    params.forward.arrays[0] = {p.alibi_slopes.data, p.heads_q};
    params.forward.arrays[1] = {len_q.data(), p.batch};
    params.forward.arrays[2] = {len_kv.data(), p.batch};
  }
  params.q = tensor_map(p.q, p.head_dim_qk, rows_q, p.heads_q, batch_q, portable::kWarpgroupRows);
  params.k = tensor_map(p.k, p.head_dim_qk, rows_kv, p.heads_kv, batch_kv, params.box_kv);
  params.v = tensor_map(p.v, p.head_dim_v, rows_kv, p.heads_kv, batch_kv, params.box_kv);
  params.out = tensor_map(p.out, p.head_dim_v, rows_q, p.heads_q, batch_q, portable::kWarpRows);
  if (items == 0 || p.total_q == 0) return "";
  try {
    if (map.bytes() > 0) kernel->classify(params.forward, map.classify_blocks(), seed);
    const int64_t blocks = config.cluster > 1 ? 2 * config.cluster : kBlocks;
    kernel->run(params, static_cast<unsigned>(std::min(items, blocks)), seed);
  } catch (const std::exception& error) {
    return error.what();
  }
  return counter == 0 ? "" : "the counter is left at " + std::to_string(counter);
}

std::string run_sm80(const Case& c, uint64_t seed) {
  Call call(c);
  const std::string text = run_sm80(call, seed);
  return text.empty() ? call.check() : text;
}

std::string run_sm80(Call& call, uint64_t seed) {
  Problem p = api::read_problem(&call.args(), call.options(), "emulated", nullptr);
  p.alignment = 16;
  const ForwardConfig config = cuda::forward_config(p, cuda::typical_device(90));
  const auto kernel = std::ranges::find(sm80_kernels(), config, &Sm80::config);
  if (kernel == sm80_kernels().end()) return "no kernel of this config is among those of the test";
  const cuda::TileMap map = cuda::tile_map(p, config);
  std::vector<uint8_t> classes(static_cast<size_t>(map.bytes()), 0xFF);
  const portable::ForwardParams params = cuda::forward_params(p, config, map, classes.data(), kAtOnce);
  try {
    if (map.bytes() > 0) kernel->classify(params, map.classify_blocks(), seed);
    kernel->run(params, static_cast<unsigned>(cuda::forward_blocks(p, map)), seed);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace tessella::tests
