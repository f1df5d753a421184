// A small valid call whose parts a test may spoil.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tessella/attention.hpp"

namespace tessella::tests {

inline constexpr int64_t kBatch = 2, kSeqlenQ = 3, kSeqlenKv = 5, kHeadsQ = 4, kHeadsKv = 2, kDim = 8;

struct SmallCall {
  std::vector<float> q = std::vector<float>(kBatch * kSeqlenQ * kHeadsQ * kDim, 0.5f);
  std::vector<float> k = std::vector<float>(kBatch * kSeqlenKv * kHeadsKv * kDim, 0.25f);
  std::vector<float> v = std::vector<float>(kBatch * kSeqlenKv * kHeadsKv * kDim, 2.0f);
  std::vector<float> out = std::vector<float>(kBatch * kSeqlenQ * kHeadsQ * kDim, -7.0f);
  std::vector<float> lse = std::vector<float>(kBatch * kHeadsQ * kSeqlenQ, -7.0f);
  tessella::ForwardArgs args{.q = tessella::view(q.data(), tessella::f32, {kBatch, kSeqlenQ, kHeadsQ, kDim}),
                             .k = tessella::view(k.data(), tessella::f32, {kBatch, kSeqlenKv, kHeadsKv, kDim}),
                             .v = tessella::view(v.data(), tessella::f32, {kBatch, kSeqlenKv, kHeadsKv, kDim}),
                             .out = tessella::view(out.data(), tessella::f32, {kBatch, kSeqlenQ, kHeadsQ, kDim}),
                             .lse = tessella::view(lse.data(), tessella::f32, {kBatch, kHeadsQ, kSeqlenQ})};
  tessella::AttentionOptions options;
};

inline tessella_tensor changed(const tessella::TensorView& view, const std::function<void(tessella_tensor&)>& change) {
  tessella_tensor tensor = view.c_tensor();
  change(tensor);
  return tensor;
}

}  // namespace tessella::tests
