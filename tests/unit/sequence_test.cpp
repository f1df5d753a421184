// A sequence of a batch in its own coordinates: dense, with lengths, with left padding, packed.
#include "operations/attention/sequence.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cases/arguments.hpp"
#include "cases/random.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::tests {
namespace {

using core::AttentionArguments;
using core::Feature;
using core::Sequence;

AttentionArguments dense() { return dense_arguments({.batch = 2, .seqlen_q = 5, .seqlen_kv = 7}, core::DType::f32); }

TEST(Sequence, DenseTakesAll) {
  const Sequence s = core::sequence(dense(), 1);
  EXPECT_EQ(s.len_q, 5);
  EXPECT_EQ(s.slots_q, 5);
  EXPECT_EQ(s.len_kv, 7);
  EXPECT_EQ(s.row_q, 0);
  EXPECT_EQ(s.row_kv, 0);
  EXPECT_EQ(s.band.seqlen_q, 5);
  EXPECT_EQ(s.band.seqlen_kv, 7);
}

TEST(Sequence, LengthsAndLeftPadding) {
  AttentionArguments p = dense();
  const int32_t used_q[] = {5, 3}, used_kv[] = {7, 6}, leftpad[] = {0, 2};
  p.seqlens_q = {used_q, 1};
  p.seqlens_kv = {used_kv, 1};
  p.leftpad_kv = {leftpad, 1};
  const Sequence s = core::sequence(p, 1);
  EXPECT_EQ(s.len_q, 3);
  EXPECT_EQ(s.slots_q, 5);
  EXPECT_EQ(s.len_kv, 4);  // the length counts padding
  EXPECT_EQ(s.row_kv, 2);
  EXPECT_EQ(s.slot_kv, 2);
}

TEST(Sequence, DraftsAreTheLastKeysInUse) {
  AttentionArguments p = dense();
  const int32_t used_q[] = {5, 3}, used_kv[] = {4, 6}, leftpad[] = {0, 2};
  p.seqlens_q = {used_q, 1};
  p.seqlens_kv = {used_kv, 1};
  p.leftpad_kv = {leftpad, 1};
  p.features = Feature::draft_mask;
  std::vector<uint8_t> mask(2 * 5 * 5);
  p.draft_mask = {reinterpret_cast<const std::byte*>(mask.data()), core::DType::boolean, 25, 0, 5, 1};
  mask[25 + 2 * 5 + 1] = 1;  // query 2 of sequence 1 sees the key of query 1
  const Sequence s = core::sequence(p, 1);
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 4; ++j) {
      EXPECT_EQ(core::visible(s, 0, i, j), j == 0 || (i == 2 && j == 2)) << i << ' ' << j;
    }
  }
  mask[3 * 5 + 1] = mask[3 * 5 + 4] = 1;  // of five queries on four keys: the keys of the last four
  const Sequence longer = core::sequence(p, 0);
  for (int64_t j = 0; j < 4; ++j) EXPECT_EQ(core::visible(longer, 0, 3, j), j == 0 || j == 3) << j;
}

TEST(Sequence, RowsOfSlots) {
  AttentionArguments p = dense();
  const int32_t slots[] = {6, 0};
  p.features = Feature::cache_batch_idx;
  p.cache_batch_idx = {slots, 1};
  p.slots = 7;
  EXPECT_EQ(p.axes_kv().batch, 7);
  EXPECT_EQ(p.row_of(p.k(), 0, 3, 0), p.k().row(6, 3, 0));
  EXPECT_EQ(p.row_of(p.v(), 1, 3, 0), p.v().row(0, 3, 0));
}

// No address is made of the -1 of an evicted page.
TEST(Sequence, RowsOfEvictedPagesAreThoseOfAPage) {
  AttentionArguments p = dense();
  const int32_t pages[] = {-1, 1};
  p.features = Feature::paged_kv;
  p.page_table = {pages, 2, 1};
  p.num_pages = 2;
  p.page_size = 4;
  EXPECT_EQ(p.row_of(p.k(), 0, 2, 0), p.k().row(0, 2, 0));
  EXPECT_EQ(p.row_of(p.k(), 0, 6, 0), p.k().row(1, 2, 0));
  EXPECT_EQ(p.scale_of(p.v(), 0, 3, 0), p.v().row(0, 0, 0));
}

TEST(Sequence, Packed) {
  AttentionArguments p = dense();
  const int32_t cu_q[] = {0, 2, 5}, cu_kv[] = {0, 7, 10}, leftpad[] = {0, 1};
  p.total_q = 5;
  p.total_kv = 10;
  p.cu_seqlens_q = {cu_q, 1, 1};
  p.cu_seqlens_kv = {cu_kv, 1, 1};
  p.leftpad_kv = {leftpad, 1};
  const Sequence s = core::sequence(p, 1);
  EXPECT_EQ(s.row_q, 2);
  EXPECT_EQ(s.len_q, 3);
  EXPECT_EQ(s.row_kv, 8);
  EXPECT_EQ(s.slot_kv, 1);
  EXPECT_EQ(s.len_kv, 2);
}

TEST(Sequence, ElementMasksUseRowsAndSlots) {
  AttentionArguments plain = dense();
  const int32_t leftpad[] = {1, 0};
  plain.leftpad_kv = {leftpad, 1};
  const auto sequence = [](const AttentionArguments& p) { return core::sequence(p, 0); };

  AttentionArguments p = plain;
  std::byte mask[7] = {};
  mask[3] = std::byte{1};  // slot 3 is key 2 of a sequence with one slot of padding
  p.features = Feature::dense_mask;
  p.dense_mask = {mask, core::DType::boolean, 0, 0, 0, 1};
  for (int64_t j = 0; j < sequence(p).len_kv; ++j) EXPECT_EQ(core::visible(sequence(p), 0, 0, j), j == 2);

  p = plain;
  p.features = Feature::block_map;
  std::byte map[2] = {std::byte{0}, std::byte{1}};
  p.block_q = 8;
  p.block_kv = 4;
  p.block_map = {map, core::DType::boolean, 0, 0, 0, 1};
  for (int64_t j = 0; j < sequence(p).len_kv; ++j) EXPECT_EQ(core::visible(sequence(p), 0, 4, j), j + 1 >= 4);

  p = plain;
  p.features = Feature::document;
  const int32_t ids_q[] = {0, 0, 1, 1, 1, 9, 9, 9, 9, 9}, ids_kv[] = {5, 0, 1, 1, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9};
  p.document_q = {ids_q, 5, 1};
  p.document_kv = {ids_kv, 7, 1};
  for (int64_t j = 0; j < sequence(p).len_kv; ++j) {
    EXPECT_EQ(core::visible(sequence(p), 0, 2, j), j == 1 || j == 2);
  }
}

TEST(Sequence, BandSeesSomeKeyOfARange) {
  Random random(3);
  int num_seen = 0, num_hidden = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    Sequence s;
    s.len_q = random.in(0, 8);
    s.len_kv = random.in(0, 14);
    s.band = {.seqlen_q = s.len_q, .seqlen_kv = s.len_kv};
    if (random.chance(0.5)) s.band.window_left = random.in(0, 4);
    if (random.chance(0.5)) s.band.window_right = random.in(0, 4);
    if (random.chance(0.2)) s.band.prefix = random.in(0, 14);
    if (random.chance(0.3)) s.band.chunk = random.in(1, 6);
    if (random.chance(0.3)) s.band.keep_first = random.in(1, 5);
    s.band.causal_top_left = random.chance(0.3);
    const int64_t begin = random.in(-3, 14), end = begin + random.in(0, 5);
    bool is_seen = false;
    for (int64_t i = 0; i < s.len_q; ++i) {
      for (int64_t j = std::max<int64_t>(begin, 0); j < end; ++j) is_seen = is_seen || s.band.visible(i, j);
    }
    ASSERT_EQ(core::band_sees_any(s, begin, end), is_seen) << "trial " << trial;
    ++(is_seen ? num_seen : num_hidden);
  }
  EXPECT_GT(num_seen, 2000);
  EXPECT_GT(num_hidden, 2000);
}

}  // namespace
}  // namespace tessella::tests
