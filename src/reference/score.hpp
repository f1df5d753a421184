// The score chain of one key, shared by the reference and the ladder:
//   s = scale * q.k -> softcap -> + bias + ALiBi -> masks (-inf),
// and the factor that dropout puts on its probability.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"
#include "portable/dropout.hpp"
#include "reference/element.hpp"

namespace tessella::reference {

template <typename Real>
inline constexpr Real kHidden = -std::numeric_limits<Real>::infinity();

// The distance that ALiBi multiplies a slope by.
inline int64_t alibi_distance(const core::AttentionArguments& p, const core::Sequence& s, int64_t i, int64_t j) {
  const bool is_sliced = p.first_query != 0 || p.first_key != 0;
  const int64_t position = is_sliced ? p.first_query + i - p.first_key : i + s.len_kv - s.len_q;
  return std::abs(position - j);
}

// The score after the cap, from scale * q.k.
template <typename Real>
Real soft_capped(const core::AttentionArguments& p, Real value) {
  if (!p.features.has(core::Feature::softcap)) return value;
  const Real cap = static_cast<Real>(p.softcap);
  return cap * std::tanh(value / cap);
}

// The score that softmax sees for a visible key, from the product q.k.
template <typename Real>
Real score(const core::AttentionArguments& p, const core::Sequence& s, int64_t head, int64_t i, int64_t j,
           Real product) {
  Real value = soft_capped(p, static_cast<Real>(p.scale) * product);
  if (p.features.has(core::Feature::bias)) {
    value += load<Real>(p.bias.data, p.bias.dtype, p.bias.index(s.batch_idx, head, i, s.slot_kv + j));
  }
  if (p.features.has(core::Feature::alibi)) {
    value -= static_cast<Real>(p.alibi_slopes.at(s.batch_idx, head)) * static_cast<Real>(alibi_distance(p, s, i, j));
  }
  return value;
}

// The derivative of the score by scale * q.k.
template <typename Real>
Real score_derivative(const core::AttentionArguments& p, Real product) {
  if (!p.features.has(core::Feature::softcap)) return 1;
  const Real capped = std::tanh(static_cast<Real>(p.scale) * product / static_cast<Real>(p.softcap));
  return 1 - capped * capped;
}

// The logit that joins the softmax's sum and no value; hidden where absent.
template <typename Real>
Real sink(const core::AttentionArguments& p, int64_t head) {
  return p.features.has(core::Feature::sink) ? static_cast<Real>(p.sink.at(0, head)) : kHidden<Real>;
}

// Dropout's factor on a probability after the softmax's sum: 0, or the inverse of the keep probability.
class DropoutFactor {
 public:
  explicit DropoutFactor(const core::AttentionArguments& p)
      : on_(p.features.has(core::Feature::dropout)),
        heads_q_(static_cast<uint64_t>(p.whole_heads_q != 0 ? p.whole_heads_q : p.heads_q)),
        first_head_(static_cast<uint64_t>(p.first_batch) * heads_q_ + static_cast<uint64_t>(p.first_head)),
        first_query_(p.first_query),
        first_key_(p.first_key),
        mask_{p.seed, p.offset, portable::Dropout::threshold_of(p.dropout)},
        keep_scale_(mask_.keep_scale()) {}

  template <typename Real>
  Real at(const core::Sequence& s, int64_t head, int64_t i, int64_t j) const {
    if (!on_) return 1;
    const uint64_t head_idx = first_head_ + static_cast<uint64_t>(s.batch_idx) * heads_q_ + static_cast<uint64_t>(head);
    return mask_.keeps(head_idx, first_query_ + i, first_key_ + j) ? static_cast<Real>(keep_scale_) : Real{0};
  }

 private:
  bool on_;
  uint64_t heads_q_;  // of the whole
  uint64_t first_head_;
  int64_t first_query_;
  int64_t first_key_;
  portable::Dropout mask_;
  double keep_scale_;
};

}  // namespace tessella::reference
