// A row of one head in the registers of a few lanes, each of which has neighbouring columns: what quantize and
// dequantize do with it. The lanes of a row are neighbours in a warp, and all lanes of a warp call each function.
#pragma once

#include "cuda/device/score/rotary.cuh"
#include "cuda/kernels/quantize/params.cuh"
#include "portable/hadamard.hpp"
#include "portable/quantize.hpp"

namespace tessella::device {

using portable::QuantizeConfig;
using portable::QuantizeParams;
using portable::QuantizeStrides;
using portable::SequenceRow;

__device__ __forceinline__ int64_t offset_of(const QuantizeStrides& strides, int64_t batch, int64_t row, int64_t head) {
  return batch * strides.batch + row * strides.row + head * strides.head;
}

// Where the thread is: its lane of a row, and the row of those that the block has at once.
template <QuantizeConfig C>
struct RowLane {
  static constexpr int kLanes = portable::row_lanes(C), kColumns = portable::lane_columns(C);
  int32_t lane, first_column, row;
  uint32_t signs;  // of its columns

  __device__ __forceinline__ explicit RowLane(const QuantizeParams& p) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    lane = thread % kLanes;
    row = thread / kLanes;
    first_column = lane * kColumns;
    signs = 0;
    if constexpr (C.hadamard) {
      signs = portable::hadamard_signs(p.seed, static_cast<uint32_t>(first_column / 32)) >> first_column % 32;
    }
  }
};

// A row of a head.
struct HeadRow {
  SequenceRow at;
  int32_t head = 0;
  bool is_of_tensor = false;  // though maybe of no sequence
};

// Rows of heads that a thread takes one after the other, `step` apart, heads first. Only the first costs a division.
class RowsInTurn {
 public:
  __device__ __forceinline__ RowsInTurn(int64_t first, int64_t step, int32_t heads)
      : heads_(heads),
        row_(static_cast<int32_t>(first / heads)),
        head_(static_cast<int32_t>(first - int64_t{row_} * heads)),
        rows_(static_cast<int32_t>(step / heads)),
        rest_(static_cast<int32_t>(step - int64_t{rows_} * heads)) {}
  __device__ int32_t row() const { return row_; }
  __device__ int32_t head() const { return head_; }
  __device__ __forceinline__ void advance() {
    row_ += rows_;
    head_ += rest_;
    if (head_ >= heads_) {
      head_ -= heads_;
      ++row_;
    }
  }

 private:
  int32_t heads_, row_, head_, rows_, rest_;
};

// Calls f for every row of the call, once in each of its lanes; rounds of a warp are the same.
template <QuantizeConfig C, class F>
__device__ __forceinline__ void for_rows(const QuantizeParams& p, const RowLane<C>& t, F&& f) {
  constexpr int64_t kAtOnce = portable::kQuantizeThreads / RowLane<C>::kLanes;
  RowsInTurn rows(blockIdx.x * kAtOnce + t.row, gridDim.x * kAtOnce, p.heads);
  for (int64_t first = blockIdx.x * kAtOnce; first < p.rows; first += gridDim.x * kAtOnce, rows.advance()) {
    HeadRow r;
    if (first + t.row < p.rows) {
      const int32_t batch = p.tensor_rows.quotient(rows.row());
      r = {portable::sequence_row(p.tables, batch, rows.row() - batch * p.tensor_rows.value), rows.head(), true};
    }
    f(r);
  }
}

// The thread's columns of a row of x, rotated; zeros of a row that does not exist and behind the last column.
template <QuantizeConfig C, int N>
__device__ __forceinline__ void load_rotated_row(const QuantizeParams& p, const RowLane<C>& t, const HeadRow& r,
                                                 float (&row)[N]) {
  constexpr Element kAngles = C.angles_are_f32 ? Element::f32 : C.element;
  constexpr int kPiece = portable::row_piece(C);
  const int64_t from_at = offset_of(p.x_strides, r.at.tensor_batch, r.at.row, r.head);
#pragma unroll
  for (int i = 0; i < N; i += kPiece) {
    float piece[kPiece] = {};
    if (r.at.exists && t.first_column + i < p.head_dim) {
      if constexpr (C.rotates) {
        const Angles angles{p.cos, p.sin, r.at.position * p.cos_stride, r.at.position * p.sin_stride};
        load_rotated<C.element, kAngles, kPiece, C.interleaved>(p.x, from_at, angles, t.first_column + i, p.rotary_dim,
                                                                piece);
      } else {
        load_piece<C.element>(p.x, from_at + t.first_column + i, piece);
      }
    }
#pragma unroll
    for (int j = 0; j < kPiece; ++j) row[i + j] = piece[j];
  }
}

// Butterflies of columns 1, 2, 4, ... apart, as portable::hadamard_row() has them.
template <QuantizeConfig C, int N>
__device__ __forceinline__ void hadamard(const QuantizeParams& p, const RowLane<C>& t, float (&row)[N]) {
#pragma unroll
  for (int apart = 1; apart < N; apart *= 2) {
    if (apart >= 16 && apart >= p.hadamard_block) break;  // blocks have 16 columns or more
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if ((i & apart) != 0) continue;
      const float x = row[i], y = row[i + apart];
      row[i] = x + y;
      row[i + apart] = x - y;
    }
  }
#pragma unroll
  for (int lanes = 1; lanes < RowLane<C>::kLanes; lanes *= 2) {
    if (lanes * N >= p.hadamard_block) break;
    const bool is_second = (t.lane & lanes) != 0;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float other = __shfl_xor_sync(0xFFFFFFFF, row[i], lanes);
      row[i] = is_second ? other - row[i] : row[i] + other;
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) row[i] = __fmul_rn(row[i], p.hadamard_factor);
}

template <QuantizeConfig C, int N>
__device__ __forceinline__ void change_signs(const RowLane<C>& t, float (&row)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) row[i] = portable::with_sign(row[i], t.signs, i);
}

// The thread's columns of a row as it is divided by its scale.
template <QuantizeConfig C, int N>
__device__ __forceinline__ void load_prepared_row(const QuantizeParams& p, const RowLane<C>& t, const HeadRow& r,
                                                  float (&row)[N]) {
  load_rotated_row(p, t, r, row);
  if constexpr (C.has_mean) {
    const float* mean = p.mean + offset_of(p.mean_strides, r.at.batch_idx, 0, r.head);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (r.at.exists && t.first_column + i < p.head_dim) row[i] = __fsub_rn(row[i], mean[t.first_column + i]);
    }
  }
  if constexpr (C.hadamard) {
    change_signs(t, row);
    hadamard(p, t, row);
  }
}

// Neighbours are added, then neighbouring sums, and so on.
template <int N>
__device__ __forceinline__ float sum_of_pairs(const float (&x)[N]) {
  if constexpr (N == 1) {
    return x[0];
  } else {
    float sums[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) sums[i] = __fadd_rn(x[2 * i], x[2 * i + 1]);
    return sum_of_pairs(sums);
  }
}

// The sum of the products of a row and another, by pairs of neighbours: all lanes have it.
template <QuantizeConfig C, int N>
__device__ __forceinline__ float dot(const RowLane<C>&, const float (&x)[N], const float (&y)[N]) {
  float products[N];
#pragma unroll
  for (int i = 0; i < N; ++i) products[i] = __fmul_rn(x[i], y[i]);
  float sum = sum_of_pairs(products);
#pragma unroll
  for (int lanes = 1; lanes < RowLane<C>::kLanes; lanes *= 2) {
    sum = __fadd_rn(sum, __shfl_xor_sync(0xFFFFFFFF, sum, lanes));
  }
  return sum;
}

// Writes how far the LSE of the row moves.
template <QuantizeConfig C>
__device__ __forceinline__ void write_shift(const QuantizeParams& p, const RowLane<C>& t, const HeadRow& r) {
  float row[RowLane<C>::kColumns], mean[RowLane<C>::kColumns];
  load_rotated_row(p, t, r, row);
  const float* k_mean = p.k_mean + offset_of(p.k_mean_strides, r.at.batch_idx, 0, r.head / p.heads_of_mean);
#pragma unroll
  for (int i = 0; i < RowLane<C>::kColumns; ++i) {
    const bool is_column = r.at.exists && t.first_column + i < p.head_dim;
    mean[i] = is_column ? k_mean[t.first_column + i] : 0;
  }
  const float shift = dot(t, row, mean);
  if (!r.at.exists || t.lane != 0) return;
  p.lse_shift[offset_of(p.shift_strides, r.at.tensor_batch, r.at.row, r.head)] = shift;
}

template <int N>
__device__ __forceinline__ uint32_t largest_magnitude(const float (&row)[N]) {
  uint32_t most = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) most = max(most, portable::magnitude(row[i]));
  return most;
}
// Of all lanes of a row.
template <int kLanes>
__device__ __forceinline__ uint32_t largest_of_lanes(uint32_t most) {
#pragma unroll
  for (int lanes = 1; lanes < kLanes; lanes *= 2) most = max(most, __shfl_xor_sync(0xFFFFFFFF, most, lanes));
  return most;
}

// Where the scale of a row is.
__device__ __forceinline__ float* scale_at(const QuantizeParams& p, const SequenceRow& at, int32_t head) {
  const int32_t block = p.scale_block.value == 0 ? 0 : p.scale_block.quotient(at.row);
  return p.scale + offset_of(p.scale_strides, at.batch_idx, block, head);
}
__device__ __forceinline__ float scale_of(const QuantizeParams& p, const HeadRow& r) {
  return p.scale == nullptr || !r.at.exists ? 1.0f : *scale_at(p, r.at, r.head);
}

// A row over its scale, as a division of each would round it. A product with the reciprocal is off by a few last bits,
// and what is missing, exact in one fused product, over the divisor again puts them right (P. Markstein, "Computation
// of elementary functions on the IBM RISC System/6000", 1990), unless something leaves the range of floats.
template <int N>
__device__ __forceinline__ void divide(const float (&row)[N], float scale, float (&quotients)[N]) {
  constexpr float kMostScale = 0x1p60f, kBeyond = 0x1p20f;  // larger quotients are beyond every number stored
  const float divisor = portable::divisor_of(scale);
  if (fabsf(divisor) <= kMostScale) {
    const float reciprocal = 1.0f / divisor;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float near = fminf(fmaxf(row[i] * reciprocal, -kBeyond), kBeyond);
      quotients[i] = __fmaf_rn(__fmaf_rn(-near, divisor, row[i]), reciprocal, near);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) quotients[i] = row[i] / divisor;
  }
}

// Four quotients as elements of 8 bits.
template <Element Q>
__device__ __forceinline__ uint32_t packed(const float* quotients) {
  if constexpr (ptx::kPacksFloat8) {
    const uint32_t word =
        (Q == Element::e4m3 ? ptx::pack_e4m3 : ptx::pack_e5m2)(quotients[0], quotients[1], quotients[2], quotients[3]);
    // Zeros have no sign: bytes without another bit lose it.
    constexpr uint32_t kSizes = 0x7F7F7F7F;
    return word & (((word & kSizes) + kSizes) | kSizes);
  }
  uint32_t word = 0;
#pragma unroll
  for (int j = 0; j < 4; ++j) word |= portable::quantized(quotients[j], 1.0f, Q) << 8 * j;
  return word;
}

// Eight bits for each of the thread's columns, four in a word.
template <Element Q, int N>
__device__ __forceinline__ void quantize_columns(const float (&row)[N], float scale, uint32_t (&words)[N / 4]) {
  float quotients[N];
  divide(row, scale, quotients);
#pragma unroll
  for (int i = 0; i < N / 4; ++i) words[i] = packed<Q>(quotients + 4 * i);
}

template <QuantizeConfig C, int N>
__device__ __forceinline__ void store_row(const QuantizeParams& p, const RowLane<C>& t, const HeadRow& r,
                                          const float (&row)[N], float scale) {
  uint32_t words[N / 4];
  quantize_columns<C.quantized>(row, scale, words);
  if (!r.at.exists) return;
  auto* into = static_cast<uint8_t*>(p.out) + offset_of(p.out_strides, r.at.tensor_batch, r.at.row, r.head);
  if constexpr (C.vectors) {
    if (t.first_column >= p.head_dim) return;
#pragma unroll
    for (int i = 0; i < N / 4; i += 4) {
      *reinterpret_cast<uint4*>(into + t.first_column + 4 * i) = {words[i], words[i + 1], words[i + 2], words[i + 3]};
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (t.first_column + i >= p.head_dim) break;
      into[t.first_column + i] = static_cast<uint8_t>(words[i / 4] >> i % 4 * 8);
    }
  }
}

}  // namespace tessella::device
