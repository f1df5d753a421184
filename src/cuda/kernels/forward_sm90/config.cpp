#include "cuda/kernels/forward_sm90/config.hpp"

#include <algorithm>

#include "cuda/compile/expression.hpp"
#include "cuda/kernels/forward_sm90/hopper_forward.hpp"
#include "cuda/launch/score_config.hpp"

namespace tessella::cuda {
namespace {

using core::AttentionShape;
using core::Feature;
using portable::ForwardSm90Config;

// Features that the choice of tiles depends on, in addition to head dims.
enum Need : uint32_t {
  kMixed = 1u << 0,           // a mask and changed scores or dropout, or a softcap and dropout
  kBiasAndDropout = 1u << 1,  // both
  kBiasOrDropout = 1u << 2,   // at least one
  kBiasF32 = 1u << 3,
  kSeveralMasks = 1u << 4,
  kAlibiOrMod = 1u << 5,  // ALiBi or a score modification
  kSoftcap = 1u << 6,
  kFewKeys = 1u << 7,   // or a call whose tiles no length may choose
  kLongRows = 1u << 8,  // in a call that computes nothing beside the softmax
};

uint32_t needs(const ForwardSm90Config& c, const AttentionShape& p) {
  const portable::ScoreConfig& score = c.score;
  const int masks = num_masks(score);
  const bool has_heavy = score.bias || score.dropout;
  const bool has_alibi_or_mod = score.alibi || score.score_mod;
  // Found by measuring (docs/lab/forward_sm90.md). Direct calls round lengths up to quarters of a power of two: what a
  // length decides here must be the same for all that round to the same. Rows are long later where all are equally
  // long: fewer query tiles leave more blocks idle at the end.
  constexpr int64_t kFew = 1024, kLong = 7168, kLongWhereRowsGrow = 1792;
  const bool is_light = !score.softcap && !has_alibi_or_mod && !has_heavy && masks == 0 && !c.paged;
  const bool is_long = std::min(p.seqlen_q, p.most_keys()) > (p.rows_grow ? kLongWhereRowsGrow : kLong);
  uint32_t all = 0;
  const auto add = [&](Need need, bool has) {
    if (has) all |= need;
  };
  add(kMixed, (masks > 0 && (has_heavy || score.softcap || has_alibi_or_mod)) || (score.softcap && score.dropout));
  add(kBiasAndDropout, score.bias && score.dropout);
  add(kBiasOrDropout, has_heavy);
  add(kBiasF32, score.bias_is_f32);
  add(kSeveralMasks, masks > 1);
  add(kAlibiOrMod, has_alibi_or_mod);
  add(kSoftcap, score.softcap);
  add(kFewKeys, p.seqlen_kv <= kFew || score.batch_invariant);
  add(kLongRows, is_light && is_long && !score.batch_invariant);
  return all;
}

// The first row counts whose head dims, as compiled, are at least the call's, and of whose needs, if it has any, the
// call has one. 192 queries are three warpgroups of 160 registers, which read k and v less often a query; 128 are two
// of 232. "registers": with more keys, or more warpgroups, the assembler spills (tests/gpu/kernel_matrix_test.cpp).
// "shared memory": more keys leave no second stage. "measured": docs/lab/forward_sm90.md.
struct Row {
  int32_t head_dim_qk, head_dim_v;
  uint32_t needs;
  int32_t tile_q, tile_kv;
};
constexpr Row kRows[] = {
    {256, 256, kMixed, 128, 64},                                     // registers
    {96, 96, kBiasAndDropout | kBiasF32, 192, 64},                   // registers
    {256, 256, kBiasAndDropout, 128, 64},                            // registers
    {64, 64, kBiasOrDropout, 192, 80},                               // registers
    {64, 64, kSeveralMasks, 128, 128},                               // registers
    {64, 64, kAlibiOrMod | kSoftcap, 192, 112},                      // registers
    {64, 64, 0, 192, 128},                                           // a bit for each of a lane's keys
    {96, 96, kBiasOrDropout, 192, 80},                               // registers
    {96, 96, kSeveralMasks, 128, 96},                                // registers
    {96, 96, 0, 192, 96},                                            // registers
    {192, 96, kBiasOrDropout, 128, 80},                              // registers
    {192, 96, 0, 128, 112},                                          // registers
    {192, 128, kBiasOrDropout, 128, 112},                            // registers
    {96, 128, kSeveralMasks, 128, 112},                              // registers
    {96, 128, 0, 128, 128},                                          // a bit for each of a lane's keys
    {128, 128, kLongRows, 192, 80},                                  // measured; keys: registers
    {192, 128, 0, 128, 128},                                         // a bit for each of a lane's keys
    {192, 192, kBiasOrDropout, 128, 80},                             // registers
    {192, 192, 0, 128, 112},                                         // registers
    {256, 256, kBiasOrDropout | kSeveralMasks | kSoftcap, 128, 64},  // registers
    {256, 256, kFewKeys, 128, 64},                                   // measured: a longer last tile is hardly used
    {256, 96, 0, 128, 80},                                           // registers
    {256, 128, 0, 128, 96},                                          // shared memory
    {256, 256, 0, 128, 80},                                          // shared memory
};

}  // namespace

ForwardSm90Config forward_sm90_config(const AttentionShape& p) {
  ForwardSm90Config c{.score = score_config(p),
                      .head_dim_qk = hopper_head_dim(p.head_dim_qk),
                      .head_dim_v = hopper_head_dim(p.head_dim_v),
                      .paged = p.features.has(Feature::paged_kv)};
  const uint32_t has = needs(c, p);
  const Row& row = *std::ranges::find_if(kRows, [&](const Row& of) {
    return c.head_dim_qk <= of.head_dim_qk && c.head_dim_v <= of.head_dim_v && (of.needs == 0 || (of.needs & has) != 0);
  });
  c.tile_q = row.tile_q;
  c.tile_kv = row.tile_kv;
  return c;
}

Program forward_sm90_program(const ForwardSm90Config& config, const std::string& user_source) {
  return {.header = "cuda/kernels/forward_sm90/forward_sm90.cuh",
          .expression = expression("forward_sm90", config),
          .user_source = user_source,
          .arch_specific = true};
}

}  // namespace tessella::cuda
