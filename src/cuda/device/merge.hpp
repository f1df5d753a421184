// merge: states of attention over disjoint sets of keys become one (FlashInfer, arXiv 2501.01005, section 2.2).
//   LSE = log sum_i exp(lse_i),  out = sum_i exp(lse_i - LSE) out_i
// A few threads have a row together; each takes pieces of it, of all states, and computes the weights of all states for
// itself: they are few beside the bytes that are waited for. Ampere and later; nothing is kept in shared memory.
#pragma once

#include "cuda/device/ptx/math.hpp"
#include "cuda/device/score/softmax.hpp"
#include "portable/merge_params.hpp"

namespace tessella::device {

using portable::Element;
using portable::MergeConfig;
using portable::MergeParams;
using portable::MergeState;

// N elements, which are one element or begin at a multiple of 16 bytes and fill them.
template <Element E, int N>
__device__ __forceinline__ void load_piece(const void* from, int64_t at, float (&values)[N]) {
  if constexpr (E == Element::f32 && N == 8) {  // beside states of 16 bits
    float low[4], high[4];
    load_piece<E>(from, at, low);
    load_piece<E>(from, at + 4, high);
#pragma unroll
    for (int i = 0; i < 4; ++i) values[i] = low[i], values[i + 4] = high[i];
  } else if constexpr (E == Element::f32 && N == 4) {
    const uint4 words = *reinterpret_cast<const uint4*>(static_cast<const float*>(from) + at);
    values[0] = __uint_as_float(words.x), values[1] = __uint_as_float(words.y);
    values[2] = __uint_as_float(words.z), values[3] = __uint_as_float(words.w);
  } else if constexpr (E == Element::f32) {
    static_assert(N == 1);
    values[0] = static_cast<const float*>(from)[at];
  } else {
    const auto to_float = [](uint32_t bits) {
      return E == Element::bf16 ? __uint_as_float(bits << 16) : ptx::f16_to_float(static_cast<uint16_t>(bits));
    };
    const uint16_t* elements = static_cast<const uint16_t*>(from) + at;
    if constexpr (N == 1) {
      values[0] = to_float(elements[0]);
    } else {
      static_assert(N == 8);
      const uint4 four = *reinterpret_cast<const uint4*>(elements);
      const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
      for (int i = 0; i < 4; ++i)
        values[2 * i] = to_float(words[i] & 0xFFFF), values[2 * i + 1] = to_float(words[i] >> 16);
    }
  }
}

// Where the piece of the states has 16 bytes, that of out has 8, 16 or 32, at a multiple of 8 or 16.
template <Element E, int N>
__device__ __forceinline__ void store_piece(void* to, int64_t at, const float (&values)[N]) {
  if constexpr (E == Element::f32) {
    float* elements = static_cast<float*>(to) + at;
    if constexpr (N == 1) {
      elements[0] = values[0];
    } else {
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        *reinterpret_cast<uint4*>(elements + i) = {__float_as_uint(values[i]), __float_as_uint(values[i + 1]),
                                                   __float_as_uint(values[i + 2]), __float_as_uint(values[i + 3])};
      }
    }
  } else {
    const auto pack = [](float low, float high) {
      return E == Element::bf16 ? ptx::pack_bf16(low, high) : ptx::pack_f16(low, high);
    };
    uint16_t* elements = static_cast<uint16_t*>(to) + at;
    if constexpr (N == 1) {
      elements[0] = static_cast<uint16_t>(pack(values[0], 0.0f));
    } else if constexpr (N == 4) {
      *reinterpret_cast<uint2*>(elements) = {pack(values[0], values[1]), pack(values[2], values[3])};
    } else {
      static_assert(N == 8);
      *reinterpret_cast<uint4*>(elements) = {pack(values[0], values[1]), pack(values[2], values[3]),
                                             pack(values[4], values[5]), pack(values[6], values[7])};
    }
  }
}

// One row of one head.
struct MergeRow {
  int64_t batch_idx, row_idx, head_idx;

  __device__ MergeRow(const MergeParams& p, int64_t idx) {
    const int64_t rows = idx / p.heads;
    head_idx = idx - rows * p.heads;
    batch_idx = rows / p.seqlen;
    row_idx = rows - batch_idx * p.seqlen;
  }
  __device__ int64_t out(const MergeState& s) const {
    return batch_idx * s.batch_stride + row_idx * s.row_stride + head_idx * s.head_stride;
  }
  __device__ float* lse(const MergeState& s) const {
    return s.lse + batch_idx * s.lse_batch_stride + row_idx * s.lse_row_stride + head_idx * s.lse_head_stride;
  }
};

// Writes out and returns the LSE.
template <MergeConfig C>
__device__ float merge_row(const MergeParams& p, const MergeRow& row, int32_t lane) {
  constexpr int N = portable::piece(C);
  float max = -kInfinity;
  if constexpr (C.continues) max = *row.lse(p.before);
  for (int32_t i = 0; i < p.num_states; ++i) max = fmaxf(max, *row.lse(p.states[i]));
  if (max == -kInfinity) max = 0;  // -inf - -inf would be NaN
  const auto power = [max](float lse) { return ptx::exp2((lse - max) * kLog2e); };
  float sum = 0;
  if constexpr (C.continues) sum = power(*row.lse(p.before));
  for (int32_t i = 0; i < p.num_states; ++i) sum += power(*row.lse(p.states[i]));

  for (int32_t column = lane * N; column < p.head_dim; column += N << p.log2_lanes) {
    float merged[N] = {};
    bool is_first = true;  // 0 + -0 is 0, and a state alone is copied as it is
    const auto add = [&]<Element E>(const MergeState& state) {
      const float lse = *row.lse(state);
      if (lse == -kInfinity) return;  // its out may hold anything
      float values[N];
      load_piece<E>(state.out, row.out(state) + column, values);
      const float weight = power(lse) / sum;
#pragma unroll
      for (int i = 0; i < N; ++i) merged[i] = is_first ? weight * values[i] : __fmaf_rn(weight, values[i], merged[i]);
      is_first = false;
    };
    if constexpr (C.continues) add.template operator()<Element::f32>(p.before);
    for (int32_t i = 0; i < p.num_states; ++i) add.template operator()<C.element>(p.states[i]);
    store_piece<C.out>(p.result.out, row.out(p.result) + column, merged);
  }
  if (sum == 0) return -kInfinity;
  return sum == 1 ? max : max + ptx::log2(sum) * kLn2;
}

// Grid: as many blocks as the GPU holds; each goes over rows.
template <MergeConfig C>
__global__ void __launch_bounds__(portable::kMergeThreads, portable::kMergeBlocksPerSm)
    merge(const __grid_constant__ MergeParams p) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread & ((1 << p.log2_lanes) - 1);
  const int64_t rows_at_once = portable::kMergeThreads >> p.log2_lanes;
  for (int64_t first = blockIdx.x * rows_at_once; first < p.rows; first += gridDim.x * rows_at_once) {
    const int64_t idx = first + (thread >> p.log2_lanes);
    const bool is_row = idx < p.rows;
    const MergeRow row(p, is_row ? idx : 0);
    const float lse = is_row ? merge_row<C>(p, row, lane) : 0.0f;
    __syncwarp();  // all lanes have read the lses, of which one may be the result's
    if (is_row && lane == 0 && p.result.lse != nullptr) *row.lse(p.result) = lse;
  }
}

}  // namespace tessella::device
