// The score configuration that a kernel is compiled for: masks, score modifications and dropout.
//
// Every kernel that computes scores has one in addition to its tiles. It is a template argument of integers and enums.
// A member is a feature that costs instructions in the inner loop, so that calls without it do not pay. Lengths,
// strides, GQA, windows, sink and LSE are no members: kernels read them at run time from their parameters.
#pragma once

#include "portable/element.hpp"
#include "portable/element_masks.hpp"
#include "portable/integers.hpp"

namespace tessella::portable {

// How masks hide keys. band: an interval (portable/band.hpp). bits: also a predicate on each element, in the tiles that
// the tile map calls partial. Bands that are not contiguous have a tile map too: it says which keys no query sees.
enum class MaskLevel : int32_t { band, bits };

// Factors on k and v of 8 bits: none, one for all keys of a tile, or each key has its own.
enum class KeyScales : int32_t { none, tile, key };

struct ScoreConfig {
  Elements elements;
  MaskLevel mask = MaskLevel::band;
  // The masks of MaskLevel::bits.
  ElementMaskSet element_masks;
  bool mask_mod = false;  // the caller's source
  bool softcap = false;
  bool alibi = false;
  bool bias = false;
  bool bias_is_f32 = false;  // else in the type of q
  bool score_mod = false;    // the caller's source
  bool dropout = false;
  // The result of a row depends on the row and on its keys alone, not on the rows beside it.
  bool batch_invariant = false;
  bool operator==(const ScoreConfig&) const = default;
};

// Its masks of elements and nothing else.
constexpr ScoreConfig masks_of(const ScoreConfig& c) {
  return {.element_masks = c.element_masks, .mask_mod = c.mask_mod};
}
constexpr int32_t num_masks(const ScoreConfig& c) { return count(c.element_masks) + (c.mask_mod ? 1 : 0); }

}  // namespace tessella::portable
