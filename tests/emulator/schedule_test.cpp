// Which tile a block works on: each one once, long ones first.
#include "builtins.hpp"
// builtins.hpp comes first: device code is written in its words.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "cuda/device/tile/work_tile.cuh"
#include "portable/forward_params.hpp"

namespace tessella::device {
namespace {

void expect_each_once(const portable::ForwardParams& p) {
  const auto tiles = static_cast<size_t>(p.tiling.tiles_q);
  const auto heads = static_cast<size_t>((p.sequences.batch + (p.sequences.cu_seqlens_q.data != nullptr ? 1 : 0)) *
                                         p.sequences.heads_q.value);
  std::vector<int> seen(heads * tiles);
  WorkTile before{};
  for (int32_t block = 0; block < static_cast<int32_t>(seen.size()); ++block) {
    const WorkTile at = work_tile(p.tiling, p.sequences.heads_q, block, 7);
    EXPECT_EQ(at.slice_idx, 7);
    const int32_t head = at.batch_idx * p.sequences.heads_q.value + at.head_idx;
    ASSERT_TRUE(at.head_idx < p.sequences.heads_q.value && head < static_cast<int32_t>(heads) &&
                at.tile_idx < p.tiling.tiles_q);
    ++seen[static_cast<size_t>(head) * tiles + static_cast<size_t>(at.tile_idx)];
    // The next block's tile is no longer but where a section begins.
    const int32_t head_before = before.batch_idx * p.sequences.heads_q.value + before.head_idx;
    if (block > 0 && at.tile_idx > before.tile_idx) {
      EXPECT_EQ(before.tile_idx, 0);
      EXPECT_EQ(head, head_before + 1);
      EXPECT_EQ(head % p.tiling.heads_per_section.value, 0);
      EXPECT_LE(head, p.tiling.first_of_last_section);
    }
    before = at;
  }
  for (const int times : seen) ASSERT_EQ(times, 1);
}

TEST(Schedule, ADivisorDividesAsDivisionDoes) {
  std::mt19937 random(2);
  constexpr int32_t kMost = 0x7FFFFFFF;
  const auto expect_same = [](int32_t dividend, int32_t by) {
    ASSERT_EQ(portable::divisor(by).quotient(dividend), dividend / by) << dividend << " / " << by;
  };
  for (int i = 0; i < 100000; ++i) {
    const int32_t by = std::max(1, static_cast<int32_t>(random() >> 1 >> random() % 31));
    for (const int32_t dividend : {static_cast<int32_t>(random() >> 1), kMost / by * by, kMost / by * by - 1, kMost}) {
      expect_same(dividend, by);
    }
  }
  for (const int32_t by : {1, 2, 3, 5, 1 << 30, (1 << 30) + 1, kMost - 1, kMost}) {
    for (const int32_t dividend : {0, 1, by - 1, by, kMost - 1, kMost}) expect_same(dividend, by);
  }
}

TEST(Schedule, EachTileOnceAndLongOnesFirst) {
  std::mt19937 random(1);
  const auto draw = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
  const int64_t packed = 0;
  for (int i = 0; i < 3000; ++i) {
    portable::ForwardParams p{};
    p.sequences.batch = draw(1, 4);
    p.sequences.heads_q = portable::divisor(draw(1, 6));
    if (draw(0, 3) == 0) p.sequences.cu_seqlens_q.data = &packed;
    const int all_heads =
        (p.sequences.batch + (p.sequences.cu_seqlens_q.data != nullptr ? 1 : 0)) * p.sequences.heads_q.value;
    const int of_section = draw(1, all_heads), sections = draw(0, all_heads / of_section), tiles = draw(1, 9);
    p.tiling.heads_per_section = portable::divisor(of_section);
    p.tiling.first_of_last_section = sections * of_section;
    p.tiling.heads_of_last_section = portable::divisor(all_heads - p.tiling.first_of_last_section);
    p.tiling.tiles_q = tiles;
    p.tiling.tiles_per_section = portable::divisor(of_section * tiles);
    expect_each_once(p);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace tessella::device
