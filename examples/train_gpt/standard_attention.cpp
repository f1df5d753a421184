#include <algorithm>

#include "attention.hpp"

// p = softmax(scale q k^T - slope distance), causal, and out = p v.
void Attention::standard_forward() {
  const int n = seqlen, d = head_dim, width = heads * d;
  const float scale = 1 / std::sqrt(static_cast<float>(d));
  probabilities.resize(lse.size() * n);
  parallel(batch * heads, [&](int begin, int end) {
    for (int head = begin; head < end; ++head) {
      const int first = head / heads * n * width, column = head % heads * d;
      const float* q = qkv->data() + 3 * first + column;
      float* p = &probabilities[static_cast<size_t>(head) * n * n];
      multiply(p, n, {q, 3 * width}, transposed({q + width, 3 * width}), n, n, d);
      for (int i = 0; i < n; ++i) {
        float* row = p + i * n;
        for (int j = 0; j <= i; ++j) row[j] = scale * row[j] - slopes[head % heads] * static_cast<float>(i - j);
        const float max = *std::max_element(row, row + i + 1);
        float sum = 0;
        for (int j = 0; j <= i; ++j) sum += row[j] = std::exp(row[j] - max);
        for (int j = 0; j < n; ++j) row[j] = j <= i ? row[j] / sum : 0;
      }
      multiply(&out[first + column], width, {p, n}, {q + 2 * width, 3 * width}, n, d, n);
    }
  });
}

// dv = p^T d_out, dp = d_out v^T, ds = p (dp - sum of p dp), dq = scale ds k, dk = scale ds^T q.
void Attention::standard_backward(const Floats& d_out) {
  const int n = seqlen, d = head_dim, width = heads * d;
  const float scale = 1 / std::sqrt(static_cast<float>(d));
  parallel(batch * heads, [&](int begin, int end) {
    Floats ds(static_cast<size_t>(n) * n);  // times scale
    for (int head = begin; head < end; ++head) {
      const int first = head / heads * n * width, column = head % heads * d;
      const float* q = qkv->data() + 3 * first + column;
      const float* p = &probabilities[static_cast<size_t>(head) * n * n];
      float* dq = &d_qkv[3 * first + column];
      multiply(dq + 2 * width, 3 * width, transposed({p, n}), {&d_out[first + column], width}, n, d, n);
      multiply(ds.data(), n, {&d_out[first + column], width}, transposed({q + 2 * width, 3 * width}), n, n, d);
      for (int i = 0; i < n; ++i) {
        float delta = 0;
        for (int j = 0; j <= i; ++j) delta += p[i * n + j] * ds[i * n + j];
        for (int j = 0; j < n; ++j) ds[i * n + j] = scale * p[i * n + j] * (ds[i * n + j] - delta);
      }
      multiply(dq, 3 * width, {ds.data(), n}, {q + width, 3 * width}, n, d, n);
      multiply(dq + width, 3 * width, transposed({ds.data(), n}), {q, 3 * width}, n, d, n);
    }
  });
}
