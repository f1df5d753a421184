// Features of a call beyond its required tensors and scale, one bit each.
#pragma once

#include <cstdint>
#include <string>

namespace tessella::core {

// A kernel lists those it supports.
enum class Feature : uint64_t {
  window = 1ull << 0,  // window_left or window_right, so causal too
  causal_top_left = 1ull << 1,
  chunk = 1ull << 2,
  keep_first = 1ull << 3,
  prefix = 1ull << 4,
  document = 1ull << 5,
  dense_mask = 1ull << 6,
  block_map = 1ull << 7,
  seqlens_q = 1ull << 8,
  seqlens_kv = 1ull << 9,
  leftpad_kv = 1ull << 10,
  packed_q = 1ull << 11,
  packed_kv = 1ull << 12,
  bias = 1ull << 13,
  alibi = 1ull << 14,
  softcap = 1ull << 15,
  sink = 1ull << 16,
  dropout = 1ull << 17,
  lse = 1ull << 18,
  score_mod = 1ull << 19,
  mask_mod = 1ull << 20,
  paged_kv = 1ull << 21,
  scales = 1ull << 22,  // any of q_scale, out_scale, amax
  slice = 1ull << 23,   // first_batch, first_head, first_query, first_key or whole_heads_q
  d_lse = 1ull << 24,   // backward: an incoming gradient of lse
  d_bias = 1ull << 25,  // backward: gradients that are wanted beside those of q, k and v
  d_sink = 1ull << 26,
  d_alibi_slopes = 1ull << 27,
  cache_batch_idx = 1ull << 28,
  draft_mask = 1ull << 29,
  schedule = 1ull << 30,   // made before on the GPU: where keys are split
  kv_scales = 1ull << 31,  // k_scale or v_scale, of k and v of 8 or 4 bits
  transposed_v = 1ull << 32,
  key_ranges = 1ull << 33,
  query_ranges = 1ull << 34,
  mask_map = 1ull << 35,  // made before on the GPU, of kMappedMasks
};

class Features {
 public:
  constexpr Features() = default;
  constexpr Features(Feature feature) : bits_(static_cast<uint64_t>(feature)) {}
  constexpr bool has(Features other) const { return (bits_ & other.bits_) == other.bits_; }
  constexpr bool has_any(Features other) const { return (bits_ & other.bits_) != 0; }
  constexpr Features operator|(Features other) const { return Features(bits_ | other.bits_); }
  constexpr Features without(Features other) const { return Features(bits_ & ~other.bits_); }
  constexpr Features& operator|=(Features other) { return *this = *this | other; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr uint64_t bits() const { return bits_; }
  bool operator==(const Features&) const = default;

 private:
  explicit constexpr Features(uint64_t bits) : bits_(bits) {}
  uint64_t bits_ = 0;
};
constexpr Features operator|(Feature a, Feature b) { return Features(a) | Features(b); }

// Every feature with the name users know it by, in the order of the support matrix.
struct FeatureName {
  Feature feature;
  const char* name;
};
inline constexpr FeatureName kFeatureNames[] = {
    {Feature::window, "causal/window"},
    {Feature::causal_top_left, "causal_top_left"},
    {Feature::chunk, "chunk"},
    {Feature::keep_first, "keep_first"},
    {Feature::prefix, "prefix"},
    {Feature::document, "document"},
    {Feature::dense_mask, "dense"},
    {Feature::block_map, "block_map"},
    {Feature::draft_mask, "draft_mask"},
    {Feature::key_ranges, "key_ranges"},
    {Feature::query_ranges, "query_ranges"},
    {Feature::seqlens_q, "seqlens_q"},
    {Feature::seqlens_kv, "seqlens_kv"},
    {Feature::leftpad_kv, "leftpad_kv"},
    {Feature::packed_q, "cu_seqlens_q"},
    {Feature::packed_kv, "cu_seqlens_kv"},
    {Feature::paged_kv, "page_table"},
    {Feature::cache_batch_idx, "cache_batch_idx"},
    {Feature::bias, "bias"},
    {Feature::alibi, "alibi_slopes"},
    {Feature::softcap, "softcap"},
    {Feature::sink, "sink"},
    {Feature::dropout, "dropout"},
    {Feature::lse, "lse"},
    {Feature::score_mod, "score_mod"},
    {Feature::mask_mod, "mask_mod"},
    {Feature::kv_scales, "k_scale/v_scale"},
    {Feature::transposed_v, "transposed_v"},
    {Feature::scales, "q_scale/out_scale/amax"},
    {Feature::slice, "slice"},
    {Feature::schedule, "schedule"},
    {Feature::mask_map, "mask_map"},
    {Feature::d_lse, "d_lse"},
    {Feature::d_bias, "d_bias"},
    {Feature::d_sink, "d_sink"},
    {Feature::d_alibi_slopes, "d_alibi_slopes"},
};
// "causal/window softcap", or "none".
std::string names(Features features);

// The caller's source is compiled for a GPU; nothing compiles it on a CPU.
inline constexpr Features kModFeatures = Feature::score_mod | Feature::mask_mod;

// Masks that are not intervals: which elements of the band are seen (portable/element_masks.hpp).
inline constexpr Features kElementMasks = Feature::document | Feature::dense_mask | Feature::block_map |
                                          Feature::draft_mask | Feature::key_ranges | Feature::query_ranges;

// What kernels of any number of queries compute, each by what it adds or leaves out. A new feature is in no such set: a
// kernel that does not name it is not eligible.
inline constexpr Features kCommonFeatures =
    kElementMasks | Feature::window | Feature::causal_top_left | Feature::chunk | Feature::keep_first |
    Feature::prefix | Feature::seqlens_q | Feature::seqlens_kv | Feature::leftpad_kv | Feature::packed_q |
    Feature::packed_kv | Feature::paged_kv | Feature::cache_batch_idx | Feature::bias | Feature::alibi |
    Feature::softcap | Feature::sink | Feature::dropout | Feature::lse;

// What was made before a call: it says how the call is computed, not what.
inline constexpr Features kMadeBefore = Feature::schedule | Feature::mask_map;

// Masks that have a map.
inline constexpr Features kMappedMasks = kElementMasks.without(Feature::draft_mask) | Feature::mask_mod;

// Features of k and v stored in 8 or 4 bits. A kernel names them together with the dtypes that it takes.
inline constexpr Features kQuantizedFeatures = Feature::kv_scales;

// Features of backward only.
inline constexpr Features kGradientFeatures =
    Feature::d_lse | Feature::d_bias | Feature::d_sink | Feature::d_alibi_slopes;

// Features of calls that have no gradients.
inline constexpr Features kForwardOnlyFeatures = Feature::paged_kv | Feature::cache_batch_idx | Feature::draft_mask |
                                                 Feature::transposed_v | kMadeBefore | kQuantizedFeatures;

}  // namespace tessella::core
