#include "reference/ladder/vector.hpp"

namespace tessella::reference {
namespace {

// Bodies are inlined into one function per instruction set. No function multiversioning by the linker (ifunc): its
// resolvers run before sanitizers are ready.
[[gnu::always_inline]] inline void multiply_add_body(int64_t m, int64_t n, int64_t k, const float* __restrict a,
                                                     const float* __restrict b, float* __restrict c, int64_t c_stride) {
  for (int64_t i = 0; i < m; ++i) {
    const float* a_row = a + i * k;
    float* c_row = c + i * c_stride;
    int64_t l = 0;
    for (; l + 4 <= k; l += 4) {  // four terms for one load and store of c
      const float a0 = a_row[l], a1 = a_row[l + 1], a2 = a_row[l + 2], a3 = a_row[l + 3];
      const float* b0 = b + l * n;
      for (int64_t j = 0; j < n; ++j) {
        c_row[j] = c_row[j] + a0 * b0[j] + a1 * b0[n + j] + a2 * b0[2 * n + j] + a3 * b0[3 * n + j];
      }
    }
    for (; l < k; ++l) {
      for (int64_t j = 0; j < n; ++j) c_row[j] += a_row[l] * b[l * n + j];
    }
  }
}

[[gnu::always_inline]] inline void weighted_sum_body(int64_t n, int64_t k, const float* __restrict weights,
                                                     const float* __restrict rows, float* __restrict out) {
  for (int64_t l = 0; l < k; ++l) {
    const float weight = weights[l];
    if (weight == 0) continue;
    for (int64_t j = 0; j < n; ++j) out[j] += weight * rows[l * n + j];
  }
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void multiply_add_avx2(int64_t m, int64_t n, int64_t k, const float* a, const float* b,
                                               float* c, int64_t c_stride) {
  multiply_add_body(m, n, k, a, b, c, c_stride);
}
[[gnu::target("avx512f,prefer-vector-width=512")]] void multiply_add_avx512(int64_t m, int64_t n, int64_t k,
                                                                            const float* a, const float* b, float* c,
                                                                            int64_t c_stride) {
  multiply_add_body(m, n, k, a, b, c, c_stride);
}
[[gnu::target("avx2")]] void weighted_sum_avx2(int64_t n, int64_t k, const float* weights, const float* rows,
                                               float* out) {
  weighted_sum_body(n, k, weights, rows, out);
}
[[gnu::target("avx512f,prefer-vector-width=512")]] void weighted_sum_avx512(int64_t n, int64_t k, const float* weights,
                                                                            const float* rows, float* out) {
  weighted_sum_body(n, k, weights, rows, out);
}
#endif

}  // namespace

void multiply_add(int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* c, int64_t c_stride) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return multiply_add_avx512(m, n, k, a, b, c, c_stride);
  if (__builtin_cpu_supports("avx2")) return multiply_add_avx2(m, n, k, a, b, c, c_stride);
#endif
  multiply_add_body(m, n, k, a, b, c, c_stride);
}

void weighted_sum(int64_t n, int64_t k, const float* weights, const float* rows, float* out) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return weighted_sum_avx512(n, k, weights, rows, out);
  if (__builtin_cpu_supports("avx2")) return weighted_sum_avx2(n, k, weights, rows, out);
#endif
  weighted_sum_body(n, k, weights, rows, out);
}

float dot(const float* a, const float* b, int64_t count) {
  constexpr int kLanes = 8;  // partial sums that the compiler keeps in vectors
  float partial[kLanes] = {};
  int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) partial[lane] += a[c + lane] * b[c + lane];
  }
  float sum = 0;
  for (; c < count; ++c) sum += a[c] * b[c];
  for (const float part : partial) sum += part;
  return sum;
}

}  // namespace tessella::reference
