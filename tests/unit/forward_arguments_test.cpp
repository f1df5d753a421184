// What forward kernels on a GPU are launched with: sizes, strides, tile maps, sections, clamped options.
#include "cuda/launch/forward_arguments.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "cases/arguments.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "cuda/kernels/forward_sm90/config.hpp"
#include "cuda/kernels/forward_sm90/hopper_forward.hpp"
#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"

namespace {

using namespace tessella;
using core::AttentionArguments;
using core::Feature;
using cuda::TileMap;

constexpr cuda::Concurrency kAtOnce = {.blocks = 132, .l2_bytes = int64_t{64} << 20};

AttentionArguments problem(int64_t batch = 2, int64_t seqlen_q = 1000, int64_t seqlen_kv = 2000) {
  AttentionArguments p = tests::gpu_arguments({.batch = batch,
                                               .heads_q = 8,
                                               .heads_kv = 2,
                                               .seqlen_q = seqlen_q,
                                               .seqlen_kv = seqlen_kv,
                                               .head_dim_qk = 128,
                                               .head_dim_v = 128});
  p.scale = 0.125f;
  return p;
}

portable::ForwardSm80Config config(const AttentionArguments& p) {
  return cuda::forward_sm80_config(p, cuda::typical_device(90));
}
portable::ForwardParams params(const AttentionArguments& p) {
  const TileMap map = cuda::tile_map(p, config(p));
  return cuda::forward_params(p, config(p), map, cuda::tile_map_params(map, nullptr, nullptr), kAtOnce);
}
int64_t tiles(int64_t rows, int64_t tile) { return (rows + tile - 1) / tile; }

TEST(ForwardArguments, SizesAndStridesAreTheProblems) {
  const AttentionArguments p = problem();
  const portable::ForwardParams got = params(p);
  EXPECT_EQ(got.inputs.q.batch_stride, 1000 * 1024);
  EXPECT_EQ(got.inputs.k.row_stride, 256);
  EXPECT_EQ(got.output.out.head_stride, 128);
  EXPECT_EQ(got.output.lse.data, nullptr);
  EXPECT_EQ(got.sequences.batch, 2);
  EXPECT_EQ(got.sequences.heads_q.value, 8);
  EXPECT_EQ(got.sequences.group.value, 4);
  EXPECT_EQ(got.sequences.seqlen_q, 1000);
  EXPECT_EQ(got.sequences.total_kv, 2000);
  EXPECT_EQ(got.tiling.tiles_q, tiles(1000, config(p).tile_q));
  EXPECT_EQ(got.tile_map.kv_tiles, tiles(2000, config(p).tile_kv));
  EXPECT_EQ(got.tiling.slices_v, 1);
  EXPECT_EQ(got.masks.window_left, -1);
  EXPECT_EQ(got.masks.causal_top_left, 0);
  EXPECT_EQ(got.scores.scale, 0.125f);
  EXPECT_EQ(got.scores.keep_scale, 1.0f);
  EXPECT_EQ(got.scores.dropout_threshold, 0u);
  EXPECT_EQ(cuda::forward_blocks(p, cuda::tile_map(p, config(p))), got.tiling.tiles_q * 8 * 2);
}

TEST(ForwardArguments, PackedQueriesHaveBlocksForTheRowsBehindThem) {
  AttentionArguments p = problem(3, 500);
  const int32_t offsets[4] = {};
  p.total_q = 1200;
  p.features |= Feature::packed_q;
  p.cu_seqlens_q = {static_cast<const int32_t*>(offsets), 0, 1};
  const portable::ForwardParams got = params(p);
  EXPECT_EQ(cuda::forward_blocks(p, cuda::tile_map(p, config(p))), got.tiling.tiles_q * 8 * 4);
  EXPECT_EQ(got.sequences.cu_seqlens_q.data, offsets);
  EXPECT_EQ(got.sequences.cu_seqlens_q.stride, 1);
  EXPECT_EQ(got.sequences.total_q, 1200);
  p.seqlen_q = 0;
  EXPECT_EQ(params(p).tiling.tiles_q, 1) << "rows without a query are still written";
}

// The kernel reads entry i of a table at i * stride.
TEST(ForwardArguments, TablesOfSequencesStepByTheirBatchStride) {
  AttentionArguments p = problem();
  const int32_t lengths[4] = {};
  p.features |= Feature::seqlens_kv | Feature::prefix;
  p.seqlens_kv = {static_cast<const int32_t*>(lengths), 2, 0};
  p.prefix = {static_cast<const int32_t*>(lengths), 3, 3};
  EXPECT_EQ(params(p).sequences.seqlens_kv.stride, 2);
  EXPECT_EQ(params(p).sequences.prefix.stride, 3);
  EXPECT_EQ(params(p).sequences.seqlens_q.data, nullptr);
}

TEST(ForwardArguments, SlotsAreATableOfSequences) {
  AttentionArguments p = problem();
  const int32_t slots[4] = {};
  p.features |= Feature::cache_batch_idx;
  p.cache_batch_idx = {static_cast<const int32_t*>(slots), 2, 2};
  p.slots = 7;
  EXPECT_EQ(params(p).sequences.cache_batch_idx.data, slots);
  EXPECT_EQ(params(p).sequences.cache_batch_idx.stride, 2);
  EXPECT_EQ(params(p).sequences.slots, 7);
  EXPECT_EQ(params(p).sequences.has_tables, 1);
}

TEST(ForwardArguments, WhatIsLargerThanAnyLengthIsClamped) {
  AttentionArguments p = problem();
  p.keep_first = int64_t{1} << 40;
  p.window_left = int64_t{1} << 40;
  p.chunk = int64_t{1} << 33;
  EXPECT_EQ(params(p).masks.keep_first, std::numeric_limits<int32_t>::max());
  EXPECT_EQ(params(p).masks.window_left, int64_t{1} << 40);
  EXPECT_EQ(params(p).masks.chunk, int64_t{1} << 33);
}

TEST(ForwardArguments, DropoutIsCountedIn65536ths) {
  AttentionArguments p = problem();
  p.dropout = 0.25f;
  EXPECT_EQ(params(p).scores.dropout_threshold, 16384u);
  EXPECT_FLOAT_EQ(params(p).scores.keep_scale, 4.0f / 3);
  p.dropout = 0.9999999f;
  EXPECT_EQ(params(p).scores.dropout_threshold, 65535u);
  EXPECT_EQ(params(p).scores.keep_scale, 65536.0f);
  p.dropout = 1e-6f;
  EXPECT_EQ(params(p).scores.dropout_threshold, 1u);
  EXPECT_FLOAT_EQ(params(p).scores.keep_scale, 65536.0f / 65535);
}

TEST(ForwardArguments, WholeChunksOfOutAreStoredWhereRowsAreAligned) {
  alignas(16) std::array<std::byte, 32> memory{};
  AttentionArguments p = problem();
  p.out().data = memory.data();
  EXPECT_EQ(params(p).output.out_vector_store, 1);
  p.out().data = memory.data() + 2;
  EXPECT_EQ(params(p).output.out_vector_store, 0);
  p.out().data = memory.data();
  p.out().row_stride = 1025;
  EXPECT_EQ(params(p).output.out_vector_store, 0);
  p.out().row_stride = 1028;  // 16 bytes in f32, 8 in bf16
  EXPECT_EQ(params(p).output.out_vector_store, 0);
  p.out().dtype = p.operands[core::Name::out].dtype = core::DType::f32;
  EXPECT_EQ(params(p).output.out_vector_store, 1);
  EXPECT_EQ(params(p).output.out_element, portable::Element::f32);
  p.head_dim_v = 127;
  EXPECT_EQ(params(p).output.out_vector_store, 0);
}

// Four sequences of 1,024 queries, in 8 tiles.
AttentionArguments problem_of_heads(int64_t seqlen_kv, int64_t heads_q, int64_t heads_kv) {
  AttentionArguments p = problem(4, 1024, seqlen_kv);
  p.heads_q = heads_q;
  p.heads_kv = heads_kv;
  p.window_right = 0;
  return p;
}
using Pair = std::pair<int64_t, int64_t>;
Pair sections(AttentionArguments p, int64_t tiles_q = 8) {
  p.derive_mask_shape();
  const cuda::Sections found = cuda::sections(p, tiles_q, kAtOnce);
  EXPECT_EQ(found.first_of_last % found.heads, 0) << "which work_tile() counts on";
  return {found.heads, found.first_of_last};
}

TEST(ForwardArguments, SectionsOfGrowingMasksHaveATileForEachBlock) {
  // 16 heads have 128 tiles. A KV head of 2,048 keys of 512 bytes is 1 MiB; half of the cache holds 32.
  EXPECT_EQ(sections(problem_of_heads(2048, 64, 64)), Pair(16, 224)) << "256 heads, the last 32 together";
  EXPECT_EQ(sections(problem_of_heads(1024, 64, 64)), Pair(16, 192)) << "four times as many together";
  EXPECT_EQ(sections(problem_of_heads(128, 64, 64)), Pair(128, 0)) << "an eighth of the cache";
  EXPECT_EQ(sections(problem_of_heads(2048, 64, 16)), Pair(32, 128)) << "query heads of 8 and of 32 KV heads";
  EXPECT_EQ(sections(problem_of_heads(2048, 17, 17)), Pair(16, 32)) << "68 heads, the last 32 and 4 left of a section";
  EXPECT_EQ(sections(problem_of_heads(2048, 5, 5)), Pair(16, 0)) << "20 heads";
  EXPECT_EQ(sections(problem_of_heads(1 << 20, 8, 2), 8192), Pair(4, 28)) << "at least one group";
  EXPECT_EQ(sections(problem_of_heads(0, 8, 2)), Pair(32, 0));
  AttentionArguments p = problem_of_heads(2048, 64, 64);
  p.features |= Feature::packed_q;
  EXPECT_EQ(sections(p), Pair(16, 288)) << "rows of no sequence are as one more";
  p = problem_of_heads(2048, 64, 64);
  p.batch = 0;
  EXPECT_EQ(sections(p), Pair(1, 0));
}

TEST(ForwardArguments, SectionsOfEqualTilesAreOneHead) {
  AttentionArguments p = problem_of_heads(2048, 64, 16);
  p.window_left = 10;
  EXPECT_EQ(sections(p), Pair(4, 256)) << "a window does not grow";
  p.features |= Feature::mask_mod;
  EXPECT_EQ(sections(p), Pair(32, 128)) << "a score_mod may";
  p = problem_of_heads(2048, 64, 16);
  p.window_right = -1;
  EXPECT_EQ(sections(p), Pair(4, 256));
}

TEST(ForwardArguments, KernelsGetTheSections) {
  AttentionArguments p = problem_of_heads(2048, 64, 64);
  p.derive_mask_shape();
  const portable::ForwardParams got = params(p);
  EXPECT_EQ(Pair(got.tiling.heads_per_section.value, got.tiling.first_of_last_section),
            sections(p, got.tiling.tiles_q));
  EXPECT_GT(got.tiling.first_of_last_section, 0);
}

bool may_have_zero_rows(const AttentionArguments& p) {
  const portable::ForwardSm90Config config = cuda::forward_sm90_config(p);
  return cuda::forward_sm90_params(p, config, cuda::tile_map(p, config), nullptr, nullptr, kAtOnce)
             .may_have_zero_rows != 0;
}

TEST(ForwardArguments, ZeroRowsAreRuledOutWhereEveryQuerySeesAKey) {
  std::mt19937 random(1);
  const auto draw = [&](int least, int most) { return std::uniform_int_distribution(least, most)(random); };
  int ruled_out = 0;
  for (int i = 0; i < 5000; ++i) {
    AttentionArguments p = problem(1, draw(0, 6), draw(0, 6));
    if (draw(0, 1) == 0) p.window_left = draw(-1, 5);
    if (draw(0, 1) == 0) p.window_right = draw(-1, 5);
    if (draw(0, 3) == 0) p.chunk = draw(1, 6);
    if (draw(0, 3) == 0) p.features |= Feature::causal_top_left;
    const int32_t prefix = draw(0, 7);
    if (draw(0, 3) == 0) p.prefix = {&prefix, 0, 0};
    if (may_have_zero_rows(p)) continue;
    ++ruled_out;
    const core::Sequence s = core::sequence(p, 0);
    for (int64_t row = 0; row < s.len_q; ++row) {
      ASSERT_LT(s.band.begin(row), s.band.end(row)) << "row " << row << " of " << s.len_q << ", keys " << s.len_kv;
    }
  }
  EXPECT_GT(ruled_out, 1000);
}

TEST(ForwardArguments, ZeroRowsAreLookedForWhereTablesOrMasksMakeThem) {
  EXPECT_FALSE(may_have_zero_rows(problem()));
  const int32_t table[4] = {};
  for (const Feature feature : {Feature::packed_q, Feature::packed_kv, Feature::seqlens_q, Feature::seqlens_kv,
                                Feature::leftpad_kv, Feature::document, Feature::dense_mask, Feature::block_map}) {
    AttentionArguments p = problem();
    p.features |= feature;
    if (feature == Feature::packed_q) p.cu_seqlens_q = {static_cast<const int32_t*>(table), 0, 1};
    if (feature == Feature::packed_kv) p.cu_seqlens_kv = {static_cast<const int32_t*>(table), 0, 1};
    EXPECT_TRUE(may_have_zero_rows(p)) << static_cast<uint32_t>(feature);
  }
  AttentionArguments p = problem();
  p.features |= Feature::mask_mod;
  p.mask_mod = "return q < k;";
  EXPECT_TRUE(may_have_zero_rows(p));
}

struct Sharing {
  const char* name;
  void (*change)(AttentionArguments&);
  int64_t batches, heads;                  // with maps of their own
  int64_t largest_batches, largest_heads;  // that a plan provides for
};

// 2 sequences, 8 heads.
const Sharing kSharing[] = {
    {"dense of all", [](AttentionArguments& p) { p.features |= Feature::dense_mask; }, 1, 1, 2, 8},
    {"dense by batch",
     [](AttentionArguments& p) {
       p.features |= Feature::dense_mask;
       p.dense_mask.batch_stride = 5;
     },
     2, 1, 2, 8},
    {"dense by head",
     [](AttentionArguments& p) {
       p.features |= Feature::dense_mask;
       p.dense_mask.head_stride = 5;
     },
     1, 8, 2, 8},
    {"block map by both",
     [](AttentionArguments& p) {
       p.features |= Feature::block_map;
       p.block_map.head_stride = p.block_map.batch_stride = 5;
     },
     2, 8, 2, 8},
    {"documents of one sequence", [](AttentionArguments& p) { p.features |= Feature::document; }, 1, 1, 2, 1},
    {"documents by batch",
     [](AttentionArguments& p) {
       p.features |= Feature::document;
       p.document_kv.batch_stride = 9;
     },
     2, 1, 2, 1},
    {"lengths",
     [](AttentionArguments& p) {
       p.features |= Feature::mask_mod | Feature::seqlens_kv;
       p.mask_mod = "return (q ^ k) & 1;";
     },
     2, 1, 2, 1},
    {"a prefix",
     [](AttentionArguments& p) {
       p.features |= Feature::mask_mod | Feature::prefix;
       p.mask_mod = "return (q ^ k) & 1;";
     },
     2, 1, 2, 1},
    {"keep of positions",
     [](AttentionArguments& p) {
       p.features |= Feature::mask_mod;
       p.mask_mod = "return (q / 16 + k / 16) % 2 == 0 || arrays.boolean(0)[k];";
     },
     1, 1, 1, 1},
    {"keep by batch",
     [](AttentionArguments& p) {
       p.features |= Feature::mask_mod;
       p.mask_mod = "return arrays.i32(0)[b] > k;";
     },
     2, 1, 2, 1},
    {"keep by head",
     [](AttentionArguments& p) {
       p.features |= Feature::mask_mod;
       p.mask_mod = "return q - k < 16 << h;";
     },
     1, 8, 1, 8},
};

TEST(TileMap, IsSharedWhereMasksAre) {
  for (const Sharing& sharing : kSharing) {
    AttentionArguments p = problem();
    sharing.change(p);
    static constexpr std::byte kShown{1};
    static constexpr int32_t kId = 0;
    if (p.features.has(Feature::dense_mask)) p.dense_mask.data = &kShown;
    if (p.features.has(Feature::block_map)) p.block_map.data = &kShown;
    if (p.features.has(Feature::document)) p.document_q.data = p.document_kv.data = &kId;
    const TileMap map = cuda::tile_map(p, config(p));
    EXPECT_EQ(map.batches, sharing.batches) << sharing.name;
    EXPECT_EQ(map.heads, sharing.heads) << sharing.name;
    const int64_t size = tiles(1000, config(p).tile_q) * tiles(2000, config(p).tile_kv);
    EXPECT_EQ(map.bytes(), sharing.batches * sharing.heads * size) << sharing.name;
    EXPECT_EQ(map.head_stride(), sharing.heads > 1 ? size : 0) << sharing.name;
    EXPECT_EQ(map.batch_stride(), sharing.batches > 1 ? size * sharing.heads : 0) << sharing.name;
    const TileMap largest = cuda::largest_tile_map(p, config(p));
    EXPECT_EQ(largest.batches, sharing.largest_batches) << sharing.name;
    EXPECT_EQ(largest.heads, sharing.largest_heads) << sharing.name;
  }
}

TEST(TileMap, IsAbsentWhereMasksAreIntervals) {
  AttentionArguments p = problem();
  p.features = Feature::window | Feature::prefix | Feature::seqlens_kv | Feature::keep_first;
  EXPECT_EQ(cuda::tile_map(p, config(p)).bytes(), 0);
  EXPECT_EQ(cuda::largest_tile_map(p, config(p)).bytes(), 0);
}

TEST(TileMap, HasNoBytesWithoutABatch) {
  AttentionArguments p = problem(0);
  p.features = Feature::document;
  EXPECT_EQ(cuda::tile_map(p, config(p)).bytes(), 0);
}

}  // namespace
