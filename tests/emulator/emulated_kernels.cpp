// The configs that emulated_forward_test and emulated_softcap_test need.
#include "emulated_config.hpp"

namespace tessella::tests {

const std::vector<Sm90>& sm90_kernels() {
  constexpr ForwardConfig k64 = plain(Element::bf16, 64, 64, 192, 128), k128 = plain(Element::bf16, 128, 128, 128, 128);
  constexpr ForwardConfig k192 = plain(Element::bf16, 192, 128, 128, 128),
                          k256 = plain(Element::bf16, 256, 256, 128, 64);
  constexpr ForwardConfig kLong = plain(Element::bf16, 128, 128, 192, 80);
  constexpr ForwardConfig kMasked = with_masks(plain(Element::bf16, 128, 128, 128, 64), false, true, false, false);
  constexpr ForwardConfig kDropped = [] {
    ForwardConfig c = with_short_series(plain(Element::bf16, 64, 64, 128, 64));
    c.dropout = true;
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

// As forward_config() has them for Hopper.
const std::vector<Sm80>& sm80_kernels() {
  constexpr auto config = [](Element element, int32_t qk, int32_t v, int32_t tile_kv) {
    ForwardConfig c = plain(element, qk, v, 128, tile_kv);
    c.num_warps = 4;
    c.blocks_per_sm = 2;
    return c;
  };
  constexpr auto with_mask = [](ForwardConfig c, bool documents, bool dense_mask, bool block_map) {
    c.mask = portable::MaskLevel::bits;
    c.documents = documents;
    c.dense_mask = dense_mask;
    c.block_map = block_map;
    return c;
  };
  constexpr ForwardConfig k32 = config(Element::bf16, 32, 32, 128);
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

}  // namespace tessella::tests
