#include "cuda/launch/score_config.hpp"

namespace tessella::cuda {

using core::DType;
using core::Feature;
using portable::Element;
using portable::MaskLevel;
using portable::ScoreConfig;

ScoreConfig score_config(const core::AttentionShape& p) {
  return {
      .element = p.dtype() == DType::bf16  ? Element::bf16
                 : p.dtype() == DType::f16 ? Element::f16
                                           : Element::f32,
      .mask = p.features.has_any(core::kElementMasks | Feature::mask_mod) ? MaskLevel::bits : MaskLevel::band,
      .documents = p.features.has(Feature::document),
      .dense_mask = p.features.has(Feature::dense_mask),
      .block_map = p.features.has(Feature::block_map),
      .draft_mask = p.features.has(Feature::draft_mask),
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
