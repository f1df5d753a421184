#include "builtins.hpp"
// builtins.hpp comes first: device code is written in its words.
#include "emulated_kernels.hpp"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "api/forward.hpp"
#include "cases/call.hpp"
#include "cases/cases.hpp"
#include "core/sequence.hpp"
#include "cuda/device/forward_sm80.hpp"
#include "cuda/device/forward_sm90.hpp"
#include "cuda/forward_sm80/config.hpp"
#include "cuda/forward_sm90/config.hpp"
#include "cuda/launch/forward_arguments.hpp"

namespace tessella::tests {
namespace {

using core::Problem;
using portable::Element;
using portable::ForwardSm80Config;
using portable::ForwardSm90Config;

constexpr unsigned kBlocks = 3;
// Few blocks and a small cache: sections of few heads, and a last one of more.
constexpr cuda::Concurrency kAtOnce = {.blocks = kBlocks, .l2_bytes = 256 << 10};

// A kernel's config and how it runs, for each config that the cases below need.
template <class Config, class Params>
struct Emulated {
  Config config;
  std::function<void(const Params&, unsigned num_blocks, uint64_t seed)> run;
  std::function<void(const portable::ForwardParams&, unsigned num_blocks, uint64_t seed)> classify;
};
using Sm80 = Emulated<ForwardSm80Config, portable::ForwardParams>;
using Sm90 = Emulated<ForwardSm90Config, portable::ForwardSm90Params>;
template <portable::ClassifyConfig C>
void classify(const portable::ForwardParams& params, unsigned num_blocks, uint64_t seed) {
  emulator::launch({num_blocks, 1, 1}, portable::kClassifyWarps * 32, 0, seed,
                   [&] { device::classify_tiles<C>(params); });
}
template <ForwardSm80Config C>
Sm80 sm80() {
  return {C,
          [](const portable::ForwardParams& params, unsigned num_blocks, uint64_t seed) {
            emulator::launch({num_blocks, static_cast<unsigned>(params.slices_v), 1}, C.num_warps * 32,
                             static_cast<size_t>(portable::shared_bytes(C)), seed,
                             [&] { device::forward_sm80<C>(params); });
          },
          classify<portable::classify_config(C.score, C.tile_q, C.tile_kv)>};
}
template <ForwardSm90Config C>
Sm90 sm90() {
  return {C,
          [](const portable::ForwardSm90Params& params, unsigned num_blocks, uint64_t seed) {
            emulator::launch(
                {num_blocks, 1, 1}, device::BlockSm90<C>::kThreads,
                static_cast<size_t>(portable::forward_sm90_layout(C).bytes), seed,
                [&] { device::forward_sm90<C>(params); }, C.cluster);
          },
          classify<portable::classify_config(C.score, C.tile_q, C.tile_kv)>};
}
constexpr ForwardSm90Config plain(Element element, int32_t qk, int32_t v, int32_t tile_q, int32_t tile_kv) {
  return {.score = {.element = element}, .head_dim_qk = qk, .head_dim_v = v, .tile_q = tile_q, .tile_kv = tile_kv};
}
constexpr ForwardSm90Config in_pairs(ForwardSm90Config c) {
  c.cluster = 2;
  return c;
}
template <class Config>
constexpr Config with_softcap(Config c) {
  c.score.softcap = true;
  c.score.series_terms = 3;
  return c;
}
template <class Config>
constexpr Config with_short_series(Config c) {
  c = with_softcap(c);
  c.score.series_terms = 2;
  if constexpr (requires { c.scales_q; }) c.scales_q = true;
  return c;
}
template <class Config>
constexpr Config with_alibi(Config c) {
  c.score.alibi = true;
  return c;
}
constexpr ForwardSm90Config with_score(ForwardSm90Config c, bool by_distance = true) {
  c.score.score_mod = true;
  c.by_distance = by_distance;
  return c;
}
constexpr ForwardSm90Config with_dropout(ForwardSm90Config c) {
  c.score.dropout = true;
  c.tile_kv = 112;
  return c;
}
constexpr ForwardSm90Config with_masks(ForwardSm90Config c, bool documents, bool dense_mask, bool block_map,
                                       bool mask_mod) {
  c.score.mask = portable::MaskLevel::bits;
  c.score.documents = documents;
  c.score.dense_mask = dense_mask;
  c.score.block_map = block_map;
  c.score.mask_mod = mask_mod;
  const bool are_several = documents + dense_mask + block_map + mask_mod > 1;
  if (are_several) c.tile_q = 128;
  if (!are_several && c.head_dim_v == 64) c.tile_kv = 112;
  return c;
}
template <class Config>
constexpr Config with_pages(Config c) {
  c.paged = true;
  return c;
}
template <class Config>
constexpr Config batch_invariant(Config c) {
  c.score.batch_invariant = true;
  c.score.series_terms = 0;
  return c;
}
constexpr ForwardSm90Config with_bias(ForwardSm90Config c) {
  c.score.bias = c.score.bias_is_f32 = true;
  c.tile_kv = 64;
  return c;
}

const std::vector<Sm90>& sm90_kernels() {
  constexpr ForwardSm90Config k64 = plain(Element::bf16, 64, 64, 192, 128),
                              k128 = plain(Element::bf16, 128, 128, 128, 128);
  constexpr ForwardSm90Config k192 = plain(Element::bf16, 192, 128, 128, 128),
                              k256 = plain(Element::bf16, 256, 256, 128, 64);
  constexpr ForwardSm90Config kLong = plain(Element::bf16, 128, 128, 192, 80);
  constexpr ForwardSm90Config kMasked = with_masks(plain(Element::bf16, 128, 128, 128, 64), false, true, false, false);
  constexpr ForwardSm90Config kDropped = [] {
    ForwardSm90Config c = with_short_series(plain(Element::bf16, 64, 64, 128, 64));
    c.score.dropout = true;
    return c;
  }();
  static const std::vector<Sm90> all = {sm90<k64>(),
                                        sm90<plain(Element::f16, 64, 64, 192, 128)>(),
                                        sm90<plain(Element::bf16, 96, 96, 192, 96)>(),
                                        sm90<k128>(),
                                        sm90<kLong>(),
                                        sm90<plain(Element::bf16, 64, 96, 192, 96)>(),
                                        sm90<plain(Element::bf16, 64, 128, 128, 128)>(),
                                        sm90<k192>(),
                                        sm90<plain(Element::bf16, 192, 192, 128, 112)>(),
                                        sm90<k256>(),
                                        sm90<plain(Element::bf16, 256, 256, 128, 80)>(),
                                        sm90<in_pairs(plain(Element::bf16, 256, 256, 128, 80))>(),
                                        sm90<with_softcap(k64)>(),
                                        sm90<with_softcap(plain(Element::f16, 64, 64, 192, 128))>(),
                                        sm90<with_softcap(k128)>(),
                                        sm90<with_short_series(k128)>(),
                                        sm90<with_short_series(kLong)>(),
                                        sm90<with_short_series(k64)>(),
                                        sm90<with_short_series(k256)>(),
                                        sm90<with_short_series(plain(Element::bf16, 256, 256, 128, 80))>(),
                                        sm90<with_short_series(plain(Element::bf16, 192, 192, 128, 112))>(),
                                        sm90<with_short_series(k192)>(),
                                        sm90<with_pages(with_short_series(k64))>(),
                                        sm90<kDropped>(),
                                        sm90<with_short_series(kMasked)>(),
                                        sm90<with_alibi(plain(Element::bf16, 64, 64, 192, 112))>(),
                                        sm90<with_alibi(k128)>(),
                                        sm90<with_pages(with_alibi(k128))>(),
                                        sm90<with_score(plain(Element::bf16, 64, 64, 192, 112))>(),
                                        sm90<with_score(k128)>(),
                                        sm90<with_score(k128, false)>(),
                                        sm90<with_score(k192)>(),
                                        sm90<with_score(kMasked)>(),
                                        sm90<with_pages(with_score(k128))>(),
                                        sm90<batch_invariant(with_score(k128))>(),
                                        sm90<with_dropout(k128)>(),
                                        sm90<with_bias(k64)>(),
                                        sm90<with_pages(k64)>(),
                                        sm90<with_pages(k128)>(),
                                        sm90<with_pages(with_softcap(k64))>(),
                                        sm90<with_pages(plain(Element::bf16, 192, 192, 128, 112))>(),
                                        sm90<with_pages(with_masks(k64, false, true, false, false))>(),
                                        sm90<with_masks(k64, true, false, false, false)>(),
                                        sm90<with_masks(k64, false, true, false, false)>(),
                                        sm90<with_masks(k64, false, false, true, false)>(),
                                        sm90<with_masks(k64, false, false, false, true)>(),
                                        sm90<with_masks(k64, true, true, true, true)>(),
                                        sm90<with_masks(k128, true, false, false, false)>(),
                                        sm90<with_masks(k128, false, true, false, false)>(),
                                        sm90<with_masks(k128, false, false, true, false)>(),
                                        sm90<with_masks(k128, false, false, false, true)>(),
                                        sm90<with_masks(k128, true, true, true, true)>(),
                                        sm90<with_masks(k192, false, true, false, false)>(),
                                        sm90<with_masks(k256, false, true, false, false)>(),
                                        sm90<batch_invariant(k64)>(),
                                        sm90<batch_invariant(with_softcap(k64))>(),
                                        sm90<batch_invariant(with_alibi(plain(Element::bf16, 64, 64, 192, 112)))>(),
                                        sm90<batch_invariant(k128)>(),
                                        sm90<batch_invariant(with_softcap(k128))>(),
                                        sm90<batch_invariant(with_alibi(k128))>(),
                                        sm90<batch_invariant(with_bias(k64))>(),
                                        sm90<batch_invariant(with_masks(k128, false, true, false, false))>()};
  return all;
}

// As forward_sm80_config() has them for Hopper.
const std::vector<Sm80>& sm80_kernels() {
  constexpr auto config = [](Element element, int32_t qk, int32_t v, int32_t tile_kv) {
    return ForwardSm80Config{.score = {.element = element},
                             .head_dim_qk = qk,
                             .head_dim_v = v,
                             .tile_q = 128,
                             .tile_kv = tile_kv,
                             .num_warps = 4,
                             .blocks_per_sm = 2};
  };
  constexpr auto with_mask = [](ForwardSm80Config c, bool documents, bool dense_mask, bool block_map) {
    c.score.mask = portable::MaskLevel::bits;
    c.score.documents = documents;
    c.score.dense_mask = dense_mask;
    c.score.block_map = block_map;
    return c;
  };
  constexpr ForwardSm80Config k32 = config(Element::bf16, 32, 32, 128);
  static const std::vector<Sm80> all = {
      sm80<k32>(),
      sm80<with_softcap(config(Element::bf16, 32, 32, 96))>(),
      sm80<with_softcap(config(Element::f16, 32, 32, 96))>(),
      sm80<with_short_series(config(Element::bf16, 32, 32, 96))>(),
      sm80<with_short_series(with_mask(config(Element::bf16, 32, 32, 96), true, false, false))>(),
      sm80<with_softcap(with_mask(config(Element::bf16, 32, 32, 96), true, false, false))>(),
      sm80<with_softcap(with_mask(config(Element::f16, 32, 32, 96), true, false, false))>(),
      sm80<with_mask(config(Element::bf16, 32, 32, 96), true, false, false)>(),
      sm80<with_mask(config(Element::bf16, 32, 32, 96), false, true, false)>(),
      sm80<with_mask(config(Element::bf16, 32, 32, 96), true, true, true)>(),
      sm80<with_pages(k32)>(),
      sm80<config(Element::bf16, 96, 96, 64)>(),
      sm80<with_pages(config(Element::bf16, 96, 96, 64))>(),
      sm80<config(Element::bf16, 192, 128, 48)>(),
      sm80<with_pages(config(Element::bf16, 192, 128, 48))>(),
      sm80<batch_invariant(k32)>(),
      sm80<batch_invariant(with_softcap(config(Element::bf16, 32, 32, 96)))>(),
      sm80<batch_invariant(with_alibi(config(Element::bf16, 32, 32, 96)))>(),
      sm80<batch_invariant(with_mask(config(Element::bf16, 32, 32, 96), false, true, false))>()};
  return all;
}

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
  const ForwardSm90Config alone = cuda::forward_sm90_config(bounds);
  const cuda::TileMap map = cuda::tile_map(p, alone);
  const ForwardSm90Config config = map.tiles_q % 2 == 0 ? cuda::in_pairs(alone, p).value_or(alone) : alone;
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
  const ForwardSm80Config config = cuda::forward_sm80_config(p, cuda::typical_device(90));
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
