// What linear does with a sum of x w^T, in fp32 until it is rounded once:
//   out = f(w_scale sum + bias) + residual,  f(a) = a, or with SwiGLU f(a, b) = silu(a) b
// residual may be out itself: who writes an element has read it.
#pragma once

#include "cuda/device/ptx/math.cuh"
#include "cuda/device/ptx/shared.cuh"
#include "cuda/device/tile/constants.cuh"
#include "cuda/device/tile/piece.cuh"
#include "portable/linear_params.hpp"

namespace tessella::device {

using portable::LinearOut;

// What the sums of a row of w are multiplied by, and what is added to them.
struct WeightRow {
  float scale = 1, bias = 0;

  __device__ float operator()(float sum) const { return __fmaf_rn(scale, sum, bias); }
};
// E: the type of x.
template <Element E>
__device__ __forceinline__ WeightRow weight_row(const LinearOut& p, int32_t row) {
  WeightRow of;
  if (p.w_scale != nullptr) of.scale = p.w_scale[row * p.w_scale_stride];
  if (p.bias == nullptr) return of;
  of.bias = p.bias_element == Element::f32 ? to_float<Element::f32>(p.bias, row) : to_float<E>(p.bias, row);
  return of;
}

__device__ __forceinline__ float silu(float x) { return x * ptx::reciprocal(1 + ptx::exp2(-x * kLog2e)); }

// Adds the residual and stores an element of out, which has this type.
template <Element Out>
__device__ __forceinline__ void store_element(const LinearOut& p, int32_t row, int32_t column, float value) {
  if (p.residual != nullptr) value += to_float<Out>(p.residual, row * p.residual_stride + column);
  const float one[1] = {value};
  store_piece<Out>(p.out, row * p.out_stride + column, one);
}

// Writes an element of out, of x's type E or f32. up: with SwiGLU the sum of w's second half.
template <Element E>
__device__ __forceinline__ void store_result(const LinearOut& p, bool is_swiglu, int32_t row, int32_t column, float sum,
                                             float up) {
  float value = weight_row<E>(p, column)(sum);
  if (is_swiglu) value = silu(value) * weight_row<E>(p, p.out_features + column)(up);
  if (p.out_element == Element::f32) {
    store_element<Element::f32>(p, row, column, value);
  } else {
    store_element<E>(p, row, column, value);
  }
}

// Sixteen columns of out, as a warp has them: a lane those of numbers lane / 4 and lane / 4 + 8. Sums are accumulators
// of ptx/mma.cuh whose rows are these columns' rows of w, and whose columns are 8 rows of x. What lies outside of out
// is not stored. All lanes of the warp call each function.
template <Element E, bool Swiglu>
class OutColumns {
 public:
  __device__ __forceinline__ OutColumns(const LinearOut& p, int32_t first, int lane)
      : p_(p), first_(first), lane_(lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t column = first + lane / 4 + i * 8;
      if (column >= p.out_features) continue;
      rows_[i] = weight_row<E>(p, column);
      if constexpr (Swiglu) ups_[i] = weight_row<E>(p, p.out_features + column);
    }
  }

  // Rows [row, row + 8) of out.
  __device__ __forceinline__ void store(int32_t row, const float (&sums)[4]) const {
    static_assert(!Swiglu);
    float values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = rows_[i / 2](sums[i]);
    store_values(row, values);
  }
  // The same, of the first half of w's rows and of its second half.
  __device__ __forceinline__ void store(int32_t row, const float (&gates)[4], const float (&ups)[4]) const {
    static_assert(Swiglu);
    float values[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = silu(rows_[i / 2](gates[i])) * ups_[i / 2](ups[i]);
    store_values(row, values);
  }

 private:
  __device__ __forceinline__ void store_values(int32_t row, const float (&values)[4]) const {
    if (E == Element::f32 || p_.out_element == Element::f32) {
      store_each<Element::f32>(row, values);
    } else if constexpr (E != Element::f32) {
      if (p_.has_pairs) {
        store_pairs(row, values);
      } else {
        store_each<E>(row, values);
      }
    }
  }

  template <Element Out>
  __device__ __forceinline__ void store_each(int32_t row, const float (&values)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t of_row = row + lane_ % 4 * 2 + i % 2, column = first_ + lane_ / 4 + i / 2 * 8;
      if (of_row < p_.rows && column < p_.out_features) store_element<Out>(p_, of_row, column, values[i]);
    }
  }

  // A lane loads and stores two neighbouring columns of one row, and holds two rows of one column in between.
  __device__ __forceinline__ void store_pairs(int32_t row, const float (&values)[4]) const {
    const int32_t of_row = row + lane_ / 4;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t column = first_ + i * 8 + lane_ % 4 * 2;
      const int32_t there = of_row < p_.rows ? min(p_.out_features - column, 2) : 0;
      float low = values[2 * i], high = values[2 * i + 1];
      if (p_.residual != nullptr) {
        const auto* from = static_cast<const uint16_t*>(p_.residual) + of_row * p_.residual_stride + column;
        uint32_t word = 0;
        if (there == 2) word = *reinterpret_cast<const uint32_t*>(from);
        if (there == 1) word = *from;
        const uint32_t added[1] = {ptx::transpose(word)};
        low += to_float<E>(added, 0);
        high += to_float<E>(added, 1);
      }
      const uint32_t word = ptx::transpose(E == Element::bf16 ? ptx::pack_bf16(low, high) : ptx::pack_f16(low, high));
      auto* to = static_cast<uint16_t*>(p_.out) + of_row * p_.out_stride + column;
      if (there == 2) *reinterpret_cast<uint32_t*>(to) = word;
      if (there == 1) *to = static_cast<uint16_t>(word);
    }
  }

  const LinearOut& p_;
  int32_t first_;
  int lane_;
  WeightRow rows_[2], ups_[2];
};

}  // namespace tessella::device
