#include "cuda/launch/forward_config.hpp"

#include <algorithm>
#include <array>

#include "core/message.hpp"
#include "core/sequence.hpp"
#include "cuda/compile/user_source.hpp"
#include "portable/forward_sm90.hpp"

namespace tessella::cuda {
namespace {

using core::Feature;
using portable::Element;
using portable::ForwardConfig;
using portable::MaskLevel;

// As compiled; a kernel is never asked for more than 512.
int32_t padded(int64_t head_dim) {
  for (const int32_t compiled : {32, 64, 96, 128, 192, 256, 384}) {
    if (head_dim <= compiled) return compiled;
  }
  return 512;
}

// How a block may be cut, best first. Two blocks of 16 rows a warp read every k and v once for both: half as much
// shared memory traffic a matrix instruction. Narrow slices of v leave registers, at the price of computing scores once
// a slice; few warps leave shared memory.
struct Shape {
  int32_t tile_q, num_warps, max_slice;
};
constexpr std::array kShapes = {Shape{128, 4, 256}, Shape{64, 4, 256}, Shape{64, 4, 128}, Shape{32, 2, 128},
                                Shape{16, 1, 128}};

// Wide rows and element-wise loads take addresses beside the accumulators.
bool has_addresses(const ForwardConfig& c) { return !c.vector_loads || c.head_dim_qk > 128; }

// How much the features add to the registers that scores take on their way from q . k to the softmax: a bias a load and
// an address a score, a text whatever it says; a little more in wide rows and where each row has its own maximum.
int weight(const ForwardConfig& c) {
  const int features = (c.softcap ? 1 : 0) + (c.alibi ? 1 : 0) + (c.dropout ? 1 : 0) +
                       (c.mask == MaskLevel::bits ? 1 : 0) + (c.score ? 2 : 0) + (c.bias ? 3 : 0);
  return features == 0 ? 0 : features + (has_addresses(c) ? 1 : 0) + (c.batch_invariant ? 1 : 0);
}

// Keys of a tile at most. Longer tiles spare synchronisation; scores with much to be done to them leave no room.
int32_t longest_tile(const ForwardConfig& c, int64_t dim, int arch) {
  const bool is_plain = weight(c) == 0;
  if (c.element == Element::f32) return !is_plain || dim > 128 ? 16 : dim > 64 ? 32 : 48;
  if (dim > 256) return is_plain ? 32 : 16;
  if (weight(c) >= 5) return 32;
  return dim > 64 ? 64 : is_plain ? 128 : arch < 90 || (c.dropout && !c.vector_loads) ? 64 : 96;
}

// What a call asks for: the element and the features that are compiled in.
ForwardConfig features_of(const core::Problem& p) {
  ForwardConfig c = {
      .element = p.dtype == core::DType::bf16  ? Element::bf16
                 : p.dtype == core::DType::f16 ? Element::f16
                                               : Element::f32,
      .paged = p.features.has(Feature::paged_kv),
      .mask = p.features.has_any(core::kElementMasks | Feature::mask_mod) ? MaskLevel::bits : MaskLevel::band,
      .softcap = p.features.has(Feature::softcap),
      .alibi = p.features.has(Feature::alibi),
      .bias = p.features.has(Feature::bias),
      .bias_is_f32 = p.features.has(Feature::bias) && p.bias_dtype == core::DType::f32 && p.dtype != core::DType::f32,
      .dropout = p.features.has(Feature::dropout),
      .score = p.features.has(Feature::score_mod),
      .documents = p.features.has(Feature::document),
      .dense_mask = p.features.has(Feature::dense_mask),
      .block_map = p.features.has(Feature::block_map),
      .keep = p.features.has(Feature::mask_mod),
      .batch_invariant = p.batch_invariant,
  };
  return c;
}

// Of head dims as compiled: whether a softcap's series has two terms.
bool has_short_series(const ForwardConfig& c, const core::Problem& p) {
  return has_series(c) && c.element == Element::bf16 && !p.features.has(Feature::lse);
}

// "tessella::device::forward_sm80<tessella::portable::ForwardConfig{.element = ...}>"
std::string expression(const char* kernel, const ForwardConfig& c) {
  constexpr std::array kElements = {"bf16", "f16", "f32"};
  std::string text = core::message("tessella::device::", kernel,
                                   "<tessella::portable::ForwardConfig{.element = tessella::portable::Element::",
                                   kElements[static_cast<size_t>(c.element)]);
  for (const auto& [name, value] :
       {std::pair{"head_dim_qk", c.head_dim_qk}, std::pair{"head_dim_v", c.head_dim_v}, std::pair{"tile_q", c.tile_q},
        std::pair{"tile_kv", c.tile_kv}, std::pair{"num_warps", c.num_warps}, std::pair{"cluster", c.cluster},
        std::pair{"blocks_per_sm", c.blocks_per_sm}}) {
    text += core::message(", .", name, " = ", value);
  }
  text +=
      core::message(", .vector_loads = ", c.vector_loads ? "true" : "false", ", .paged = ", c.paged ? "true" : "false",
                    ", .mask = tessella::portable::MaskLevel::", c.mask == MaskLevel::bits ? "bits" : "band");
  for (const auto& [name, value] :
       {std::pair{"softcap", c.softcap}, std::pair{"short_series", c.short_series}, std::pair{"scales_q", c.scales_q},
        std::pair{"alibi", c.alibi}, std::pair{"bias", c.bias}, std::pair{"bias_is_f32", c.bias_is_f32},
        std::pair{"dropout", c.dropout}, std::pair{"score", c.score}, std::pair{"by_distance", c.by_distance},
        std::pair{"documents", c.documents}, std::pair{"dense_mask", c.dense_mask}, std::pair{"block_map", c.block_map},
        std::pair{"keep", c.keep}, std::pair{"batch_invariant", c.batch_invariant}}) {
    text += core::message(", .", name, " = ", value ? "true" : "false");
  }
  return text + "}>";
}

}  // namespace

int accumulators(const ForwardConfig& c) { return c.tile_q / c.num_warps / 16 * (c.head_dim_v + c.tile_kv) / 2; }

// Found with the assembler: with so many none of the kernels spills (tests/gpu/kernel_matrix_test.cpp). By features'
// weight, 16 and 32 rows a warp.
int accumulator_limit(const ForwardConfig& c, int arch) {
  using Limits = int[2][4];
  constexpr Limits kHopper = {{192, 160, 160, 144}, {192, 192, 176, 80}};
  constexpr Limits kBefore = {{176, 152, 144, 144}, {176, 160, 128, 80}};  // nothing holds what a warp has in common
  constexpr Limits kF32 = {{144, 96, 96, 96}, {112, 64, 64, 64}};          // operands are split in two
  const Limits& limits = c.element == Element::f32 ? kF32 : arch < 90 ? kBefore : kHopper;
  const int limit = limits[c.tile_q / c.num_warps / 16 - 1][std::min(weight(c), 3)];
  if (c.mask == MaskLevel::bits && has_addresses(c)) return std::min(limit, 160);
  if (c.dropout && (arch < 90 || c.head_dim_qk < c.head_dim_v)) return std::min(limit, 144);
  return c.head_dim_qk > c.head_dim_v ? std::min(limit, 176) : limit;
}

ForwardConfig forward_config(const core::Problem& p, const DeviceInfo& device) {
  const int64_t size = core::size_bytes(p.dtype);
  ForwardConfig c = features_of(p);
  c.head_dim_qk = padded(p.head_dim_qk);
  c.blocks_per_sm = 2;
  c.vector_loads = p.alignment >= 16 && p.head_dim_qk * size % 16 == 0 && p.head_dim_v * size % 16 == 0;
  const int32_t longest = longest_tile(c, std::max(p.head_dim_qk, p.head_dim_v), device.arch);
  for (const Shape& shape : kShapes) {
    const int64_t num_slices = (p.head_dim_v + shape.max_slice - 1) / shape.max_slice;
    c.head_dim_v = padded((p.head_dim_v + num_slices - 1) / num_slices);
    c.short_series = has_short_series(c, p);
    c.tile_q = shape.tile_q;
    c.num_warps = shape.num_warps;
    for (const int32_t tile_kv : {128, 96, 64, 48, 32, 16}) {
      c.tile_kv = tile_kv;
      const bool fits =
          accumulators(c) <= accumulator_limit(c, device.arch) && shared_bytes(c) <= device.shared_bytes_per_block;
      const bool is_worth_it = c.element != Element::f32 || tile_kv >= 32 || shape.tile_q <= 64;
      if (tile_kv <= longest && fits && is_worth_it) return c;
    }
  }
  return c;
}

ForwardConfig forward_sm90_config(const core::Problem& p) {
  // As compiled; the copy engine pads with zeros.
  const auto padded_dim = [](int64_t head_dim) {
    for (const int32_t compiled : {64, 96, 128, 192}) {
      if (head_dim <= compiled) return compiled;
    }
    return 256;
  };
  ForwardConfig c = features_of(p);
  c.head_dim_qk = padded_dim(p.head_dim_qk);
  c.head_dim_v = padded_dim(p.head_dim_v);
  // Masks make scores -inf before a softcap's series, which of two terms wants squares that saturate.
  c.short_series = c.scales_q = has_short_series(c, p);
  c.by_distance = c.score && may_mention(p.score_mod, "q_minus_k");
  // Three warpgroups of 160 registers read k and v less often a query, two of 232 hold wider rows, and what several
  // masks, a mask and changed scores, or a softcap and dropout need. Keys of a tile: as many as leave registers for
  // what features do to scores (tests/gpu/kernel_matrix_test.cpp).
  const int32_t dim = std::max(c.head_dim_qk, c.head_dim_v);
  const int masks = num_masks(c);
  const int num_heavy = (c.bias ? 1 : 0) + (c.dropout ? 1 : 0);
  const bool is_mixed = (masks > 0 && (num_heavy > 0 || c.softcap || c.alibi || c.score)) || (c.softcap && c.dropout);
  // Rows of few keys end in a tile that is hardly used. Three warpgroups fit head dim 128 too where nothing is computed
  // beside the softmax, or a softcap's two terms, and pay where rows are long and many, longer ones where all are
  // equally long: fewer items leave more blocks idle at the end. Element masks often change at multiples of 128. Found
  // by measuring (docs/forward_sm90.md). Direct calls round lengths up to quarters of a power of two: what a length
  // decides here must be the same for all that round to the same.
  const bool is_short = dim > 192 && (p.seqlen_kv <= 1024 || c.batch_invariant);
  const bool is_light = (!c.softcap || c.scales_q) && !c.alibi && !c.score && num_heavy == 0 && masks == 0 && !c.paged;
  const bool is_long = is_light && c.head_dim_qk == 128 && c.head_dim_v == 128 && !c.batch_invariant &&
                       std::min(p.seqlen_q, p.most_keys()) > (core::rows_grow(p) ? 1792 : 7168);
  c.tile_q = is_long || (dim <= 96 && masks <= 1 && !is_mixed) ? 192 : 128;
  const bool is_wide = dim > 96 && c.head_dim_v != 128;
  const bool is_crowded = num_heavy == 2 ||
                          ((num_heavy == 1 || (c.softcap && !c.scales_q) || masks > 1) && dim > 192) ||
                          (c.bias_is_f32 && dim <= 96);
  const bool is_tight =
      ((masks == 1 || c.alibi || c.score) && dim == 64) || (masks > 1 && c.head_dim_v > c.head_dim_qk);
  const int32_t longest = is_crowded || is_short || is_mixed ? 64
                          : num_heavy == 1                   ? (c.head_dim_v == 128 ? 112 : 80)
                          : is_wide && dim <= 192            ? 112
                          : is_wide || is_long               ? 80
                          : dim == 96                        ? 96
                          : is_tight                         ? 112
                                                             : 128;
  for (const int32_t tile_kv : {128, 112, 96, 80, 64}) {
    c.tile_kv = tile_kv;
    if (tile_kv <= longest && portable::forward_sm90_layout(c).bytes <= portable::kHopperSharedBytes) break;
  }
  c.num_warps = c.tile_q / 16;
  return c;
}

std::optional<ForwardConfig> in_pairs(const ForwardConfig& config, const core::Problem& p) {
  const int64_t tiles = (p.seqlen_q + config.tile_q - 1) / config.tile_q;
  const bool all_see_the_same = p.features.without(Feature::sink | Feature::lse).empty();
  // Found by measuring (docs/forward_sm90.md). Tiles of 64 keys are those of rows of few, which each warpgroup may
  // leave out for itself.
  const bool is_long = tiles >= 8 && config.tile_kv > 64;
  const bool is_widest = config.head_dim_qk == 256 && config.head_dim_v == 256;
  if (!is_widest || !all_see_the_same || !is_long || p.num_sms != 0) return std::nullopt;
  ForwardConfig paired = config;
  paired.cluster = 2;
  return paired;
}

std::optional<ForwardConfig> for_small_text(const ForwardConfig& config, int arch) {
  if (!config.score || weight(config) > 2 || config.tile_kv != 48 || arch < 90) return std::nullopt;
  ForwardConfig longer = config;
  longer.tile_kv = 64;
  return longer;
}

ForwardConfig ladder_config(const core::Problem& p, const DeviceInfo& device) {
  ForwardConfig config = forward_config(p, device);
  config.tile_q = std::min(config.tile_q, config.num_warps * 16);
  config.tile_kv = std::min(config.tile_kv, 32);
  config.short_series = false;  // there is none
  return config;
}

DeviceInfo typical_device(int arch) {
  const int per_block = arch == 80 || arch == 87 ? 163 : arch / 10 == 9 || arch / 10 == 10 ? 227 : 99;
  return {.arch = arch, .shared_bytes_per_block = per_block * 1024, .shared_bytes_per_sm = (per_block + 1) * 1024};
}

Program forward_program(const ForwardConfig& config, const std::string& user_text) {
  return {.header = "cuda/device/forward_sm80.hpp",
          .expression = expression("forward_sm80", config),
          .user_text = user_text};
}

Program forward_sm90_program(const ForwardConfig& config, const std::string& user_text) {
  return {.header = "cuda/device/forward_sm90.hpp",
          .expression = expression("forward_sm90", config),
          .user_text = user_text,
          .arch_specific = true};
}

// Knows the tiles' sizes, which masks there are and the caller's text, nothing of element types and head dims, so that
// one serves many kernels.
Program classify_program(const ForwardConfig& config, const std::string& user_text) {
  const ForwardConfig classes{.tile_q = config.tile_q,
                              .tile_kv = config.tile_kv,
                              .mask = MaskLevel::bits,
                              .documents = config.documents,
                              .dense_mask = config.dense_mask,
                              .block_map = config.block_map,
                              .keep = config.keep};
  return {.header = "cuda/device/score/mask.hpp",
          .expression = expression("classify_tiles", classes),
          .user_text = user_text};
}

Program ladder_program(const char* file, const char* kernel, const ForwardConfig& config,
                       const std::string& user_text) {
  return {.header = core::message("cuda/device/ladder/", file),
          .expression = expression(kernel, config),
          .user_text = user_text};
}

}  // namespace tessella::cuda
