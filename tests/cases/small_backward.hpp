// A small valid call of backward whose parts a test may spoil.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "cases/small_call.hpp"
#include "tessella/backward.hpp"

namespace tessella::tests {

inline constexpr float kUntouched = -7;

// A small call of forward that ran, with everything that has gradients, and the gradients.
struct SmallBackward : SmallCall {
  std::vector<float> bias = std::vector<float>(kHeadsQ * kSeqlenKv, 0.125f);
  std::vector<float> sink = std::vector<float>(kHeadsQ, 0.5f);
  std::vector<float> slopes = std::vector<float>(kHeadsQ, 0.25f);
  std::vector<float> d_out = std::vector<float>(out.size(), 1.5f);
  std::vector<float> d_lse = std::vector<float>(lse.size(), 0.5f);
  std::vector<float> dq = std::vector<float>(q.size(), kUntouched);
  std::vector<float> dk = std::vector<float>(k.size(), kUntouched);
  std::vector<float> dv = std::vector<float>(v.size(), kUntouched);
  std::vector<float> d_bias = std::vector<float>(bias.size(), kUntouched);
  std::vector<float> d_sink = std::vector<float>(sink.size(), kUntouched);
  std::vector<float> d_slopes = std::vector<float>(slopes.size(), kUntouched);
  tessella::Gradients gradients{.d_out = tessella::view(d_out.data(), tessella::f32, {kBatch, kSeqlenQ, kHeadsQ, kDim}),
                                .d_lse = tessella::view(d_lse.data(), tessella::f32, {kBatch, kHeadsQ, kSeqlenQ}),
                                .dq = tessella::view(dq.data(), tessella::f32, {kBatch, kSeqlenQ, kHeadsQ, kDim}),
                                .dk = tessella::view(dk.data(), tessella::f32, {kBatch, kSeqlenKv, kHeadsKv, kDim}),
                                .dv = tessella::view(dv.data(), tessella::f32, {kBatch, kSeqlenKv, kHeadsKv, kDim}),
                                .d_bias = tessella::view(d_bias.data(), tessella::f32, {kHeadsQ, 1, kSeqlenKv}),
                                .d_sink = tessella::view(d_sink.data(), tessella::f32, {kHeadsQ}),
                                .d_alibi_slopes = tessella::view(d_slopes.data(), tessella::f32, {kHeadsQ})};

  SmallBackward() {
    for (size_t n = 0; n < q.size(); ++n) q[n] = std::sin(static_cast<float>(n));
    for (size_t n = 0; n < k.size(); ++n) k[n] = std::cos(static_cast<float>(3 * n));
    for (size_t n = 0; n < v.size(); ++n) v[n] = std::sin(static_cast<float>(5 * n));
    args.bias = tessella::view(bias.data(), tessella::f32, {kHeadsQ, 1, kSeqlenKv});
    args.sink = tessella::view(sink.data(), tessella::f32, {kHeadsQ});
    args.alibi_slopes = tessella::view(slopes.data(), tessella::f32, {kHeadsQ});
    tessella::forward(args, options);
  }
  SmallBackward(const SmallBackward&) = delete;

  std::vector<std::vector<float>> results() const { return {dq, dk, dv, d_bias, d_sink, d_slopes}; }
  bool is_untouched() const {
    for (const std::vector<float>& result : results()) {
      for (const float value : result) {
        if (value != kUntouched) return false;
      }
    }
    return true;
  }
};

inline tessella::TensorView with(const tessella::TensorView& view,
                                 const std::function<void(tessella_tensor&)>& change) {
  return tessella::TensorView(changed(view, change));
}
inline tessella::TensorView of_size(const tessella::TensorView& view, int axis, int64_t size) {
  return with(view, [&](tessella_tensor& t) { t.shape[axis] = size; });
}
inline tessella::TensorView of_dtype(const tessella::TensorView& view, tessella_dtype dtype) {
  return with(view, [&](tessella_tensor& t) { t.dtype = dtype; });
}
inline tessella::TensorView read_only(const tessella::TensorView& view) {
  return with(view, [](tessella_tensor& t) { t.flags = TESSELLA_READ_ONLY; });
}

}  // namespace tessella::tests
