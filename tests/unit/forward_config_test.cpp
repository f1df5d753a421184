// Tiles of the forward kernels by counting: registers, shared memory, and what of it a tile's matrix instructions wait
// for.
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "cases/arguments.hpp"
#include "core/error.hpp"
#include "cuda/compile/expression.hpp"
#include "cuda/kernels/backward_sm80/config.hpp"
#include "cuda/kernels/classify/params.cuh"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "cuda/kernels/forward_sm90/config.hpp"
#include "cuda/launch/score_config.hpp"
#include "operations/attention/arguments.hpp"

namespace {

using namespace tessella;
using namespace tessella::cuda;
using core::AttentionArguments;
using core::AttentionShape;
using core::DType;
using core::Feature;
using portable::Element;
using portable::ForwardSm80Config;
using portable::ForwardSm90Config;
using portable::MaskLevel;

AttentionArguments problem(DType dtype, int64_t head_dim_qk, int64_t head_dim_v, core::Features features = {}) {
  AttentionArguments p = tests::gpu_arguments({.head_dim_qk = head_dim_qk, .head_dim_v = head_dim_v}, dtype);
  p.seqlen_q = p.seqlen_kv = p.total_q = p.total_kv = 0;
  p.features = features;
  p.bias_dtype = DType::f32;
  return p;
}

ForwardSm80Config config(const AttentionShape& p, int arch = 90) {
  return forward_sm80_config(p, typical_device(arch));
}

// Every head dim, type, feature and architecture.
template <typename Fn>
void for_each_config(Fn&& fn) {
  const core::Features alone[] = {{},
                                  Feature::softcap,
                                  Feature::alibi,
                                  Feature::bias,
                                  Feature::dropout,
                                  Feature::score_mod,
                                  Feature::mask_mod,
                                  Feature::document,
                                  Feature::paged_kv,
                                  core::kCommonFeatures | core::kModFeatures};
  for (const int arch : {80, 86, 89, 90, 100, 120}) {
    for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
      for (const int64_t qk : {1, 32, 40, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512}) {
        for (const int64_t v : {1, 33, 64, 96, 128, 192, 256, 257, 384, 512}) {
          for (const core::Features features : alone) {
            for (const int32_t alignment : {16, 2}) {
              AttentionArguments p = problem(dtype, qk, v, features);
              tests::set_alignment(p, alignment);
              fn(p, config(p, arch), arch);
            }
          }
        }
      }
    }
  }
}

TEST(Configs, MembersAreVisitedInOrderUnderTheirNames) {
  struct Four {
    int32_t first = 1;
    portable::ScoreConfig second{.mask = MaskLevel::bits};
    bool third = true;
    Element last = Element::i8;
  };
  const Four c;
  std::vector<std::string> names;
  std::vector<const void*> addresses;
  visit_members(c, [&](std::string_view name, const auto& value) {
    names.emplace_back(name);
    addresses.push_back(&value);
  });
  EXPECT_EQ(names, (std::vector<std::string>{"first", "second", "third", "last"}));
  EXPECT_EQ(addresses, (std::vector<const void*>{&c.first, &c.second, &c.third, &c.last}));
}

TEST(ScoreConfig, HasTheElementsOfTheCall) {
  AttentionArguments p = problem(DType::f16, 64, 64);
  EXPECT_EQ(score_config(p).elements, (portable::Elements{Element::f16, Element::f16, Element::f16}));
  p.tensors[core::Name::k].dtype = p.operands[core::Name::k].dtype = DType::i4;
  EXPECT_EQ(score_config(p).elements, (portable::Elements{Element::f16, Element::i4, Element::f16}));
  // What is no element type is an error, and not taken for another.
  for (const DType dtype : {DType::f64, DType::boolean, DType::none}) {
    EXPECT_THROW(score_config(problem(dtype, 64, 64)), core::Error) << name(dtype);
  }
}

TEST(Configs, AreWrittenAsTheCompilerReadsThem) {
  portable::ClassifyConfig c{.masks = {.mask = MaskLevel::bits, .mask_mod = true}, .tile_q = 128, .tile_kv = 64};
  c.masks.elements = {.q = Element::f16, .kv = Element::i4, .p = Element::e5m2};
  EXPECT_EQ(
      expression("classify_tiles", c),
      "tessella::device::classify_tiles<tessella::portable::ClassifyConfig{.masks = {.elements = {.q = "
      "tessella::portable::Element::f16, .kv = tessella::portable::Element::i4, .p = "
      "tessella::portable::Element::e5m2}, .mask = tessella::portable::MaskLevel::bits, .element_masks = "
      "{.documents = false, .dense_mask = false, .block_map = false, .draft_mask = false, .key_ranges = false, "
      ".query_ranges = false}, .mask_mod = true, "
      ".softcap = false, .alibi = false, .bias = false, .bias_is_f32 = false, .score_mod = false, .dropout = false, "
      ".batch_invariant = false}, .tile_q = 128, .tile_kv = 64, .has_map = false, .blocks = 0}>");
}

TEST(ForwardSm80Config, AScoreModAloneMayHaveLongerTiles) {
  const ForwardSm80Config modified = config(problem(DType::bf16, 128, 128, Feature::score_mod));
  ASSERT_TRUE(for_small_source(modified, 90));
  EXPECT_EQ(modified.tile_kv, 48);
  EXPECT_EQ(for_small_source(modified, 90)->tile_kv, 64);
  EXPECT_EQ(for_small_source(modified, 90)->tile_q, modified.tile_q);
  EXPECT_FALSE(for_small_source(modified, 89)) << "registers hold what a warp has in common";
  EXPECT_FALSE(for_small_source(config(problem(DType::bf16, 128, 128)), 90));
  EXPECT_FALSE(for_small_source(config(problem(DType::bf16, 128, 128, Feature::score_mod | Feature::bias)), 90));
  EXPECT_FALSE(for_small_source(config(problem(DType::f32, 128, 128, Feature::score_mod)), 90));
  EXPECT_FALSE(for_small_source(config(problem(DType::bf16, 64, 64, Feature::score_mod)), 90));
}

TEST(ForwardSm80Config, EveryCallFitsEveryGpu) {
  for_each_config([](const AttentionArguments& p, const ForwardSm80Config& c, int arch) {
    const std::string what = forward_sm80_program(c, "").expression + " sm_" + std::to_string(arch);
    ASSERT_GE(c.head_dim_qk, p.head_dim_qk) << what;
    ASSERT_GE(int64_t{c.head_dim_v} * slices_v(p, c), p.head_dim_v) << what;
    ASSERT_LT(int64_t{c.head_dim_v} * (slices_v(p, c) - 1), p.head_dim_v) << what;
    ASSERT_LE(shared_bytes(c), typical_device(arch).shared_bytes_per_block) << what;
    ASSERT_LE(accumulators(c), accumulator_limit(c, arch)) << what;
    ASSERT_EQ(c.tile_q % (16 * c.num_warps), 0) << what;
    ASSERT_EQ(c.tile_kv % 16, 0) << what;
    ASSERT_LE(c.tile_kv, 128) << what;
  });
}

TEST(ForwardSm80Config, FeaturesAreCompiledOnlyWhereTheyAreUsed) {
  for_each_config([](const AttentionArguments& p, const ForwardSm80Config& c, int) {
    ASSERT_EQ(c.score.softcap, p.features.has(Feature::softcap));
    ASSERT_EQ(c.score.alibi, p.features.has(Feature::alibi));
    ASSERT_EQ(c.score.bias, p.features.has(Feature::bias));
    ASSERT_EQ(c.score.bias_is_f32, p.features.has(Feature::bias) && p.dtype() != DType::f32);
    ASSERT_EQ(c.score.dropout, p.features.has(Feature::dropout));
    ASSERT_EQ(c.score.score_mod, p.features.has(Feature::score_mod));
    ASSERT_EQ(c.score.mask_mod, p.features.has(Feature::mask_mod));
    ASSERT_EQ(c.paged, p.features.has(Feature::paged_kv));
    ASSERT_EQ(c.score.mask == MaskLevel::bits, p.features.has_any(Feature::mask_mod | Feature::document));
    const int64_t size = core::size_bytes(p.dtype());
    ASSERT_EQ(c.vector_loads, p.alignment() == 16 && p.head_dim_qk * size % 16 == 0 && p.head_dim_v * size % 16 == 0);
  });
}

// What is read at run time changes nothing: the same kernel for any batch, length, mask that is an interval, layout.
TEST(ForwardSm80Config, KnowsNoBatchAndNoLengths) {
  const core::Features at_run_time = Feature::window | Feature::causal_top_left | Feature::chunk | Feature::keep_first |
                                     Feature::prefix | Feature::seqlens_q | Feature::seqlens_kv | Feature::leftpad_kv |
                                     Feature::packed_q | Feature::packed_kv | Feature::sink | Feature::lse;
  for (const int64_t head_dim : {64, 128}) {
    AttentionArguments p = problem(DType::bf16, head_dim, head_dim);
    const ForwardSm80Config expected = config(p);
    p.features = at_run_time;
    p.batch = 7;
    p.heads_q = 12;
    p.heads_kv = 3;
    p.seqlen_q = p.total_q = 1;
    p.seqlen_kv = p.total_kv = 100000;
    EXPECT_EQ(config(p), expected);
    p.is_contiguous = false;
    EXPECT_EQ(config(p).score.mask, MaskLevel::bits);
  }
}

// One image serves usual calls on all GPUs before Hopper, and the PTX for later ones is that of Hopper's config.
TEST(ForwardSm80Config, PrecompiledConfigsAreTheSameOnManyGpus) {
  for (const int64_t head_dim : {64, 128, 256}) {
    const AttentionArguments p = problem(DType::bf16, head_dim, head_dim);
    for (const int arch : {86, 89}) EXPECT_EQ(config(p, arch), config(p, 80)) << head_dim << " " << arch;
    for (const int arch : {100, 103, 120}) EXPECT_EQ(config(p, arch), config(p, 90)) << head_dim << " " << arch;
  }
}

TEST(ForwardSm80Config, WideHeadsAreCutIntoSlices) {
  const AttentionArguments p = problem(DType::bf16, 128, 320);
  EXPECT_EQ(config(p).head_dim_v, 192);
  EXPECT_EQ(slices_v(p, config(p)), 2);
  EXPECT_EQ(slices_v(problem(DType::bf16, 64, 512), config(problem(DType::bf16, 64, 512))), 2);
  EXPECT_EQ(config(problem(DType::bf16, 64, 256)).head_dim_v, 256);
}

// Cycles of an SM for a tile of keys and all warps: matrix instructions at Ampere's rate, 1024 multiplications a cycle
// (fp32: three tf32 ones at a half each), and matrix loads at 128 bytes a cycle. Each warp loads all of k and v.
struct Cycles {
  double tensor, shared;
};
Cycles cycles(const ForwardSm80Config& c) {
  const double products = static_cast<double>(c.tile_kv) * (c.head_dim_qk + c.head_dim_v);
  const bool is_f32 = c.score.elements.q == Element::f32;
  const double kv_bytes = products * portable::size_bytes(c.score.elements.q);
  const double q_bytes = static_cast<double>(c.tile_q) * c.head_dim_qk * portable::size_bytes(c.score.elements.q);
  return {products * c.tile_q / 1024 * (is_f32 ? 6 : 1), (kv_bytes * c.num_warps + q_bytes) / 128};
}

TEST(ForwardSm80Config, MatrixInstructionsOutweighTheirLoads) {
  for (const int64_t head_dim : {32, 64, 96, 128}) {
    const Cycles plain = cycles(config(problem(DType::bf16, head_dim, head_dim)));
    EXPECT_LT(plain.shared, 0.8 * plain.tensor) << head_dim;
  }
  for (const int64_t head_dim : {192, 256}) {  // 16 rows a warp: as long
    const Cycles plain = cycles(config(problem(DType::bf16, head_dim, head_dim)));
    EXPECT_LT(plain.shared, 1.3 * plain.tensor) << head_dim;
  }
  for (const int64_t head_dim : {64, 128, 256}) {
    const Cycles plain = cycles(config(problem(DType::f32, head_dim, head_dim)));
    EXPECT_LT(plain.shared, 0.8 * plain.tensor) << head_dim;
  }
}

TEST(ForwardSm80Config, TwoBlocksHideEachOthersLatencyOnLargeGpus) {
  for (const int arch : {80, 90}) {
    for (const int64_t head_dim : {32, 64, 96, 128}) {
      const ForwardSm80Config c = config(problem(DType::bf16, head_dim, head_dim), arch);
      EXPECT_LE(2 * (shared_bytes(c) + 1024), typical_device(arch).shared_bytes_per_sm) << head_dim;
      EXPECT_EQ(c.blocks_per_sm, 2) << head_dim;
    }
  }
}

TEST(BackwardSm80Config, LoadsPiecesOf16BytesWhereRowsOfDOutAreAlignedToo) {
  core::AttentionArguments a =
      tests::gpu_arguments({.seqlen_q = 64, .seqlen_kv = 64, .head_dim_qk = 64, .head_dim_v = 64});
  a.tensors[core::Name::d_out] = a.tensors[core::Name::out];
  a.derive_shape();
  EXPECT_TRUE(backward_sm80_config(a, typical_device(90)).vector_loads);
  a.tensors[core::Name::d_out].row_stride += 1;
  a.derive_shape();
  EXPECT_FALSE(backward_sm80_config(a, typical_device(90)).vector_loads);
}

TEST(ForwardSm90Config, LongRowsOfHeadDim128TakeThreeWarpgroups) {
  const auto tile_q = [](int64_t seqlen, int64_t window_left, int64_t window_right, core::Features features = {}) {
    AttentionArguments p = problem(DType::bf16, 128, 128, features);
    p.seqlen_q = p.seqlen_kv = seqlen;
    p.window_left = window_left;
    p.window_right = window_right;
    p.derive_mask_shape();
    return forward_sm90_config(p).tile_q;
  };
  EXPECT_EQ(tile_q(7169, -1, -1), 192);
  EXPECT_EQ(tile_q(7168, -1, -1), 128);
  EXPECT_EQ(tile_q(1793, -1, 0), 192) << "causal: the longest work tiles begin first";
  EXPECT_EQ(tile_q(1792, -1, 0), 128);
  EXPECT_EQ(tile_q(16384, 1024, 0), 128) << "of 16384 keys 1025 are seen";
  EXPECT_EQ(tile_q(16384, 8191, 0), 192);
  for (const core::Features features : {core::Features(Feature::softcap), core::Features(Feature::paged_kv),
                                        core::Features(Feature::mask_mod), core::Features(Feature::alibi)}) {
    EXPECT_EQ(tile_q(16384, -1, 0, features), 128);
  }
  AttentionArguments p = problem(DType::bf16, 128, 128);
  p.seqlen_kv = 16384;
  for (const int64_t few : {1, 128, 1024}) {
    p.seqlen_q = few;
    EXPECT_EQ(forward_sm90_config(p).tile_q, 128) << few << " queries";
  }
}

// Direct calls plan for lengths rounded up to quarters of a power of two, and compute as a plan for the length does.
TEST(ForwardSm90Config, IsThatOfTheLengthRoundedUp) {
  for (const int64_t head_dim : {64, 128, 256}) {
    for (const int64_t window_right : {-1, 0}) {
      AttentionArguments p = problem(DType::bf16, head_dim, head_dim);
      p.window_right = window_right;
      p.derive_mask_shape();
      for (int64_t power = 64; power < 16384; power *= 2) {
        for (int quarter = 4; quarter < 8; ++quarter) {
          p.seqlen_q = p.seqlen_kv = power / 4 * quarter + 1;
          const ForwardSm90Config of_least = forward_sm90_config(p);
          p.seqlen_q = p.seqlen_kv = power / 4 * (quarter + 1);
          EXPECT_EQ(forward_sm90_config(p), of_least) << head_dim << ", " << p.seqlen_kv;
        }
      }
    }
  }
}

// Longer sequences in the batch do not change how a row is computed.
TEST(ForwardSm90Config, OfBatchInvariantCallsIsThatOfNoLength) {
  for (const int64_t head_dim : {64, 96, 128, 192, 256}) {
    AttentionArguments p = problem(DType::bf16, head_dim, head_dim);
    p.window_right = 0;
    p.derive_mask_shape();
    p.batch_invariant = true;
    p.seqlen_q = p.seqlen_kv = 16384;
    const ForwardSm90Config of_long = forward_sm90_config(p);
    p.seqlen_q = p.seqlen_kv = 100;
    EXPECT_EQ(forward_sm90_config(p), of_long) << head_dim;
  }
}

TEST(ForwardSm90Config, FitsSharedMemoryWithTwoStagesOfEverySize) {
  for (const int64_t qk : {1, 8, 40, 64, 72, 96, 128, 160, 192, 200, 256}) {
    for (const int64_t v : {1, 8, 64, 96, 128, 192, 256}) {
      for (const core::Features features :
           {core::Features(), core::Features(Feature::softcap), core::Features(Feature::bias),
            Feature::bias | Feature::dropout, core::Features(Feature::document),
            Feature::document | Feature::dense_mask, core::kCommonFeatures | core::kModFeatures}) {
        for (const int64_t seqlen : {1024, 8192}) {
          AttentionArguments p = problem(DType::bf16, qk, v, features);
          p.seqlen_q = p.seqlen_kv = seqlen;
          const ForwardSm90Config c = forward_sm90_config(p);
          const portable::ForwardSm90Layout layout = portable::forward_sm90_layout(c);
          SCOPED_TRACE(std::to_string(qk) + "/" + std::to_string(v) + ": " + std::to_string(c.tile_q) + " x " +
                       std::to_string(c.tile_kv));
          EXPECT_GE(c.head_dim_qk, qk);
          EXPECT_GE(c.head_dim_v, v);
          const int32_t dim = std::max(c.head_dim_qk, c.head_dim_v);
          if ((dim == 256 && (c.score.bias || num_masks(c.score) > 1)) || (dim <= 96 && c.score.bias_is_f32)) {
            EXPECT_EQ(c.tile_kv, 64) << "with 80 keys the assembler spills";
          }
          if (c.head_dim_qk <= 96 && c.head_dim_v == 128 && num_masks(c.score) > 1 && !c.score.bias) {
            EXPECT_EQ(c.tile_kv, 112) << "with 128 keys the assembler spills";
          }
          EXPECT_LE(layout.bytes, portable::kHopperSharedBytes);
          EXPECT_GE(std::min({layout.k_stages, layout.v_stages, layout.query_tile_slots}), 2);
          EXPECT_GE(layout.q_slots, 1);
          // Tiles start where the swizzle does, and barriers fit behind them.
          EXPECT_EQ((layout.q_bytes | layout.k_at | layout.k_bytes | layout.v_at | layout.v_bytes) % 1024, 0);
          const int32_t warpgroups = c.tile_q / portable::kWarpgroupRows;
          EXPECT_EQ(layout.barriers_at % 8, 0);
          EXPECT_EQ(layout.summaries_at % portable::kSummaryBytes, 0);
          EXPECT_LE((portable::kQueryTileFills + 1) * 8 * layout.query_tile_slots +
                        portable::kBarrierBytes * (warpgroups * layout.q_slots + layout.k_stages + layout.v_stages),
                    layout.bytes - layout.barriers_at);
        }
      }
    }
  }
}

}  // namespace
