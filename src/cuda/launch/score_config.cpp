#include "cuda/launch/score_config.hpp"

#include "core/element.hpp"
#include "operations/attention/element_masks.hpp"

namespace tessella::cuda {

using core::DType;
using core::Feature;
using core::Name;
using portable::MaskLevel;
using portable::ScoreConfig;

ScoreConfig score_config(const core::AttentionShape& p) {
  const portable::Element q = core::element(p.dtype());
  const bool has_bits = p.features.has_any(core::kElementMasks | Feature::mask_mod) || !p.is_contiguous;
  return {
      .elements = {.q = q, .kv = core::element(p.operands[Name::k].dtype), .p = q},
      .mask = has_bits ? MaskLevel::bits : MaskLevel::band,
      .element_masks = core::element_mask_set(p.features),
      .mask_mod = p.features.has(Feature::mask_mod),
      .softcap = p.features.has(Feature::softcap),
      .alibi = p.features.has(Feature::alibi),
      .bias = p.features.has(Feature::bias),
      .bias_is_f32 = p.features.has(Feature::bias) && p.bias_dtype == DType::f32 && p.dtype() != DType::f32,
      .score_mod = p.features.has(Feature::score_mod),
      .dropout = p.features.has(Feature::dropout),
      .batch_invariant = p.batch_invariant,
  };
}

}  // namespace tessella::cuda
