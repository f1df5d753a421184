// The passes over masks: classes of tiles and keys that are seen, from the mask and from its map, against what
// core::visible() says of every pair; then whole calls by the map, forward and backward.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "api/call.hpp"
#include "cases/backward_features.hpp"
#include "cuda/kernels/backward_sm80/recipe.hpp"
#include "cuda/kernels/backward_sm90/recipe.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "cuda/kernels/forward_sm80/recipe.hpp"
#include "cuda/kernels/forward_sm90/config.hpp"
#include "cuda/kernels/forward_sm90/recipe.hpp"
#include "cuda/launch/tile_map.hpp"
#include "emulated_case.hpp"
#include "emulated_step.hpp"
#include "operations/attention/attention.hpp"
#include "operations/attention/sequence.hpp"
#include "portable/query_tiles.hpp"

namespace tessella::tests {
namespace {

constexpr const char* kMasks[] = {"dense=bhqk",
                                  "dense=bk seqlen_kv=301",
                                  "dense=bqk seqlen_kv=200 score_order=bhkq",
                                  "dense=1",
                                  "dense=hq window_right=0",
                                  "dense=qk seqlen_q=500 seqlen_kv=900 window_left=450 window_right=30",
                                  "dense=bqk leftpad_kv=1 seqlens_kv=1 seqlens_q=1",
                                  "document=1",
                                  "document=1 packed_q=1 packed_kv=1 window_right=0",
                                  "document=1 keep_first=3 window_left=20 seqlen_kv=600",
                                  "document=1 causal_top_left=1 chunk=60 seqlen_q=200 seqlen_kv=230",
                                  "block_map=hqk block_q=100 block_kv=130 seqlen_q=400",
                                  "block_map=bqk block_q=7 block_kv=24 chunk=70",
                                  "key_ranges=b mask_region=30 seqlen_q=200",
                                  "key_ranges=1 packed_q=1 packed_kv=1 window_right=0",
                                  "query_ranges=bh mask_region=100 seqlen_kv=500 leftpad_kv=1",
                                  "query_ranges=1 key_ranges=h packed_kv=1",
                                  "document=1 dense=hqk block_map=qk block_q=40 block_kv=40 prefix=1"};

Case case_of(const std::string& fields) {
  Case c = base(64, 64);
  c.heads_q = c.heads_kv = 2;
  return parse(to_string(c) + " " + fields);
}

// What is to be found of a tile.
struct Expected {
  bool sees = false;  // by the band
  bool is_seen = false;
  bool is_partial = false;
  uint32_t seen[4] = {};
};

Expected brute_force(const core::AttentionArguments& p, const core::Sequence& s, int64_t head, int64_t first_q,
                     int64_t end_q, int64_t first_kv, int64_t end_kv) {
  Expected expected;
  for (int64_t j = first_kv; j < std::min(end_kv, s.len_kv); ++j) {
    bool is_in_a_band = false;
    for (int64_t i = first_q; i < end_q; ++i) {
      if (!s.band.visible(i, j)) continue;
      expected.sees = is_in_a_band = true;
      if (core::element_visible(s, head, i, j)) {
        expected.is_seen = true;
        expected.seen[(j - first_kv) / 32] |= 1u << ((j - first_kv) % 32);
      } else {
        expected.is_partial = true;
      }
    }
    const bool is_between = first_q < end_q && j >= s.band.begin(first_q) && j < s.band.end(end_q - 1);
    expected.is_partial = expected.is_partial || (is_between && !is_in_a_band);
  }
  for (int64_t past = end_kv - first_kv; past < 128; ++past) expected.seen[past / 32] |= 1u << (past % 32);
  return expected;
}

// The pass of forward_sm90's recipe over the call's mask, whose results it compares.
void expect_classes(const std::string& fields, bool has_map) {
  const Case c = case_of(fields);
  const std::string label = to_string(c) + (has_map ? " by the map" : "");
  Call call(c);
  core::AttentionArguments p = api::read<core::Forward>(&call.args(), call.options(), "emulated", nullptr);
  for (const core::Name name : core::kNames) p.operands[name].alignment = 16;
  if (has_map) p.features |= core::Feature::mask_map;
  const cuda::DeviceInfo device = cuda::typical_device(90);
  const cuda::Recipe recipe = cuda::forward_sm90_recipe(p, device);
  ASSERT_EQ(recipe.ineligible, "") << label;
  const portable::ForwardSm90Config config = cuda::forward_sm90_config(p);
  std::vector<std::byte> scratch(static_cast<size_t>(recipe.workspace.scratch_bytes), std::byte{0xFF});
  std::vector<std::byte> map(static_cast<size_t>(recipe.made_bytes), std::byte{0xFF});
  p.mask_map = map.data();
  const auto run = [&](const cuda::Step& step) {
    const auto launch = step.launch(p, &p, cuda::concurrency(step, p, device), {nullptr, scratch.data()});
    ASSERT_TRUE(launch);
    run_step(step, *launch, 1);
  };
  for (const cuda::Step& step : recipe.made_before) run(step);
  run(recipe.steps.front());
  if (std::getenv("TESSELLA_KERNELS_FILE") != nullptr) return;  // nothing was computed
  const cuda::TileMap tiles = cuda::tile_map(p, config);
  const auto* seen_keys = reinterpret_cast<const uint32_t*>(scratch.data());
  const auto* classes = reinterpret_cast<const uint8_t*>(scratch.data()) + tiles.seen_bytes();
  int64_t count[3] = {};
  for (int64_t idx = 0; idx < tiles.bytes(); ++idx) {
    const int64_t kv = idx % tiles.kv_tiles, q = idx / tiles.kv_tiles % tiles.tiles_q;
    const int64_t map_idx = idx / tiles.kv_tiles / tiles.tiles_q, batch = map_idx / tiles.heads;
    const core::Sequence s = core::sequence(p, batch);
    const auto [first_q, end_q] = portable::tile_queries<int64_t>(s.len_q, config.tile_q, q);
    const Expected expected =
        brute_force(p, s, map_idx % tiles.heads, first_q, end_q, kv * config.tile_kv, (kv + 1) * config.tile_kv);
    if (!expected.sees) continue;  // nobody reads its class
    const uint8_t found = !expected.is_seen ? 0 : expected.is_partial ? 1 : 2;
    ++count[found];
    ASSERT_EQ(classes[idx], found) << label << ", query tile " << q << ", key tile " << kv << " of map " << map_idx;
    for (int word = 0; expected.is_seen && word < 4; ++word) {
      ASSERT_EQ(seen_keys[idx * 4 + word], expected.seen[word])
          << label << ", tile " << q << ", " << kv << ", " << word;
    }
  }
  EXPECT_GT(count[0] + count[1] + count[2], 0) << label;
}

TEST(EmulatedMaskMap, ClassesOfTiles) {
  for (const std::string mask : kMasks) {
    for (const char* dims :
         {"", " head_dim_qk=96 head_dim_v=96", " head_dim_qk=256 head_dim_v=256"}) {  // tiles of keys
      expect_classes(mask + dims, false);
      expect_classes(mask + dims, true);
    }
  }
}

// By the map results are the same bits, in the tiles of every kernel.
TEST(EmulatedMaskMap, SameResults) {
  const Gpu mapped{.scheduled = true};
  for (const char* mask : kMasks) {
    const Case c = case_of(mask);
    for (const MakeRecipe recipe : {cuda::forward_sm90_recipe, cuda::forward_sm80_recipe}) {
      Call plain(c), by_map(c);
      EXPECT_EQ(run_recipe(plain, recipe, 0, 1), "");
      EXPECT_EQ(run_recipe(by_map, recipe, 0, 1, Sources::none, mapped), "");
      EXPECT_EQ(by_map.check(), "") << "--case \"" << to_string(c) << "\"";
      EXPECT_EQ(plain.results(), by_map.results()) << "--case \"" << to_string(c) << "\"";
    }
  }
}

// So are gradients, in the kernels' several tiles.
TEST(EmulatedMaskMap, SameGradients) {
  constexpr const char* kSizes = "dtype=bf16 heads_q=2 heads_kv=1 seqlen_q=150 seqlen_kv=300 seed=1";
  for (const char* mask : {"dense=bqk", "document=1 window_right=0", "block_map=hqk block_q=70 block_kv=130",
                           "key_ranges=h mask_region=40", "query_ranges=1 mask_region=40"}) {
    for (const char* dims : {"head_dim_qk=64 head_dim_v=64", "head_dim_qk=192 head_dim_v=128"}) {
      const Case c = with_feature(kSizes, std::string(mask) + " " + dims);
      for (const MakeRecipe recipe : {cuda::backward_sm90_recipe, cuda::backward_sm80_recipe}) {
        BackwardCall plain(c), by_map(c);
        EXPECT_EQ(run_backward(plain, recipe, 0, 1), "");
        EXPECT_EQ(run_backward(by_map, recipe, 0, 1, Sources::none, {.scheduled = true}), "");
        EXPECT_EQ(by_map.check(), "") << "--case \"" << to_string(c) << "\"";
        EXPECT_EQ(plain.results(), by_map.results()) << "--case \"" << to_string(c) << "\"";
      }
    }
  }
}

// Keys that no query sees hold NaN.
TEST(EmulatedMaskMap, MaskedNan) {
  for (const char* mask : {"dense=k masked_nan=1 window_right=0", "document=1 masked_nan=1",
                           "query_ranges=1 masked_nan=1 mask_region=30"}) {
    const Case c = case_of(mask);
    Call call(c);
    EXPECT_EQ(run_recipe(call, cuda::forward_sm90_recipe, 0, 1, Sources::none, {.scheduled = true}), "");
    EXPECT_EQ(call.check(), "") << "--case \"" << to_string(c) << "\"";
  }
}

// A map that holds anything makes no access leave the tensors.
TEST(EmulatedMaskMap, AnyContent) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const Gpu gpu{.scheduled = true, .hostile_schedule = seed};
    Call call(case_of("dense=bhqk window_right=0"));
    EXPECT_EQ(run_recipe(call, cuda::forward_sm90_recipe, 0, seed, Sources::none, gpu), "");
  }
}

}  // namespace
}  // namespace tessella::tests
