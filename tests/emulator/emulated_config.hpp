// Configs of the GPU's forward kernels and the kernels themselves, for the lists of emulated_list.hpp.
#pragma once

#include "builtins.hpp"
// builtins.hpp comes first: device code is written in its words.
#include "cuda/device/forward_sm80.hpp"
#include "cuda/device/forward_sm90.hpp"
#include "emulated_list.hpp"
#include "emulator.hpp"

namespace tessella::tests {

using portable::Element;

template <ForwardConfig C>
void classify(const portable::ForwardParams& params, unsigned num_blocks, uint64_t seed) {
  emulator::launch({num_blocks, 1, 1}, portable::kClassifyWarps * 32, 0, seed,
                   [&] { device::classify_tiles<C>(params); });
}
template <ForwardConfig C>
Sm80 sm80() {
  return {C,
          [](const portable::ForwardParams& params, unsigned num_blocks, uint64_t seed) {
            emulator::launch({num_blocks, static_cast<unsigned>(params.slices_v), 1}, C.num_warps * 32,
                             static_cast<size_t>(portable::shared_bytes(C)), seed,
                             [&] { device::forward_sm80<C>(params); });
          },
          classify<C>};
}
template <ForwardConfig C>
Sm90 sm90() {
  return {C,
          [](const portable::ForwardSm90Params& params, unsigned num_blocks, uint64_t seed) {
            emulator::launch(
                {num_blocks, 1, 1}, device::BlockSm90<C>::kThreads,
                static_cast<size_t>(portable::forward_sm90_layout(C).bytes), seed,
                [&] { device::forward_sm90<C>(params); }, C.cluster);
          },
          classify<C>};
}
constexpr ForwardConfig plain(Element element, int32_t qk, int32_t v, int32_t tile_q, int32_t tile_kv) {
  return {.element = element,
          .head_dim_qk = qk,
          .head_dim_v = v,
          .tile_q = tile_q,
          .tile_kv = tile_kv,
          .num_warps = tile_q / 16};
}
constexpr ForwardConfig in_pairs(ForwardConfig c) {
  c.cluster = 2;
  return c;
}
constexpr ForwardConfig with_softcap(ForwardConfig c) {
  c.softcap = true;
  return c;
}
constexpr ForwardConfig with_short_series(ForwardConfig c) {
  c = with_softcap(c);
  c.short_series = true;
  c.scales_q = c.num_warps >= 8;  // forward_sm90's
  return c;
}
constexpr ForwardConfig with_alibi(ForwardConfig c) {
  c.alibi = true;
  return c;
}
constexpr ForwardConfig with_score(ForwardConfig c, bool by_distance = true) {
  c.score = true;
  c.by_distance = by_distance;
  return c;
}
constexpr ForwardConfig with_dropout(ForwardConfig c) {
  c.dropout = true;
  c.tile_kv = 112;
  return c;
}
constexpr ForwardConfig with_masks(ForwardConfig c, bool documents, bool dense_mask, bool block_map, bool keep) {
  c.mask = portable::MaskLevel::bits;
  c.documents = documents;
  c.dense_mask = dense_mask;
  c.block_map = block_map;
  c.keep = keep;
  const bool are_several = documents + dense_mask + block_map + keep > 1;
  if (are_several) c.tile_q = 128, c.num_warps = 8;
  if (!are_several && c.head_dim_v == 64) c.tile_kv = 112;
  return c;
}
constexpr ForwardConfig with_pages(ForwardConfig c) {
  c.paged = true;
  return c;
}
constexpr ForwardConfig batch_invariant(ForwardConfig c) {
  c.batch_invariant = true;
  return c;
}
constexpr ForwardConfig with_bias(ForwardConfig c) {
  c.bias = c.bias_is_f32 = true;
  c.tile_kv = 64;
  return c;
}

}  // namespace tessella::tests
