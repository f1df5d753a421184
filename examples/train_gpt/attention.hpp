// Causal self-attention by tessella, and beside it the standard one, which keeps its matrix of probabilities.
// Positions are told by ALiBi alone: a key's score falls by its head's slope times its distance.
// q, k and v lie side by side: (batch, seqlen, 3, heads, head_dim); out and d_out: (batch, seqlen, heads, head_dim).
#pragma once

#include <tessella/backward.hpp>

#include "layers.hpp"

struct Attention {
  bool standard;
  int heads, head_dim, batch = 0, seqlen = 0;
  const Floats* qkv = nullptr;
  Floats slopes, out, d_qkv;
  Floats lse;            // (batch, heads, seqlen): all that tessella keeps beside out
  Floats probabilities;  // (batch, heads, seqlen, seqlen): what standard attention keeps

  Attention(bool by_standard, int num_heads, int dim) : standard(by_standard), heads(num_heads), head_dim(dim) {
    for (int head = 0; head < heads; ++head) slopes.push_back(std::pow(0.25f, static_cast<float>(head)));
  }
  const Floats& forward(const Floats& input, int length) {
    qkv = &input;
    seqlen = length;
    batch = static_cast<int>(qkv->size()) / (3 * seqlen * heads * head_dim);
    out.resize(qkv->size() / 3);
    lse.resize(static_cast<size_t>(batch) * heads * seqlen);
    if (standard) {
      standard_forward();
    } else {
      tessella::forward(arguments(), {.mask = tessella::Mask::causal()});
    }
    return out;
  }
  const Floats& backward(const Floats& d_out) {
    d_qkv.resize(qkv->size());
    if (standard) {
      standard_backward(d_out);
    } else {
      const auto [dq, dk, dv] = packed(d_qkv.data());
      tessella::backward(arguments(), {.d_out = like_out(d_out.data()), .dq = dq, .dk = dk, .dv = dv},
                         {.mask = tessella::Mask::causal()});
    }
    return d_qkv;
  }

 private:
  template <typename Data>
  tessella::PackedQkv packed(Data* data) const {
    return tessella::view_packed_qkv(data, tessella::f32, batch, seqlen, heads, head_dim);
  }
  template <typename Data>
  tessella::TensorView like_out(Data* data) const {
    return tessella::view(data, tessella::f32, {batch, seqlen, heads, head_dim});
  }
  tessella::ForwardArgs arguments() {
    const auto [q, k, v] = packed(qkv->data());
    const auto lse_view = tessella::view(lse.data(), tessella::f32, {batch, heads, seqlen});
    const auto slopes_view = tessella::view(slopes.data(), tessella::f32, {heads});
    return {.q = q, .k = k, .v = v, .out = like_out(out.data()), .lse = lse_view, .alibi_slopes = slopes_view};
  }

  void standard_forward();
  void standard_backward(const Floats& d_out);
};
