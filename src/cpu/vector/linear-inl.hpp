// out = activation(x w^T + bias) + residual for few rows of x: each row of w is read once, from where it lies, and
// widened in registers.
//
//   for block of columns of out            their rows of w stay in the second cache, as do the band's of x
//     for band of rows of x
//       for tile of columns, tile of rows  sums of whole rows in registers; meanwhile the next rows of w are fetched
//       scales, bias, activation, residual
//
// An element is the sum of one accumulator, whose lanes take columns in their order and are summed in one order. So its
// bits do not depend on the number of rows, on the tile that it is in, or on threads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "core/cancel.hpp"
#include "cpu/exp2.hpp"
#include "cpu/vector/convert-inl.hpp"
#include "cpu/vector/exp2-inl.hpp"
#include "cpu/vector/linear_vector.hpp"
#include "cpu/vector/pairs-inl.hpp"
#include "cpu/vector/sums-inl.hpp"
#include "cpu/vector/tiles-inl.hpp"
#include "hwy/highway.h"
#include "operations/linear/arguments.hpp"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows of w in a tile of kRows rows of x: sixteen registers hold eight accumulators, thirty-two hold sixteen.
template <int kRows>
inline constexpr int kTileColumns = kManyRegisters || kRows < kRowTile ? kColumnTile : kColumnTile / 2;

// Calls fn with a null pointer to elements of w.
template <typename Fn>
HWY_INLINE auto with_weights(core::DType dtype, Fn&& fn) {
  if (dtype == core::DType::f8e4m3fn) return fn(static_cast<const Float8E4M3*>(nullptr));
  if (dtype == core::DType::i8) return fn(static_cast<const int8_t*>(nullptr));
  return with_elements<float>(dtype, fn);
}

// How a block of columns is read and multiplied. T: the elements of w as they are stored. x is kParts plain vectors:
// GCC compiles the constructor of an array of structs without the target attribute.
template <typename T>
struct Columns {
  using Stored = T;
  using Block = Pair<float>;
  using Part = Vec<float>;
  static constexpr int kParts = 2;
  static constexpr int kFloats = kBlock<float>;  // of packed x
  static void pack(core::DType dtype, const std::byte* row, int dim, float* to) {
    with_elements<float>(
        dtype, [&]<typename Q>(const Q*) HWY_ATTR { load_query<T>(reinterpret_cast<const Q*>(row), dim, to); });
  }
  static HWY_INLINE void load_x(const float* x, Part (&to)[kParts]) {
    const Tag<float> d;
    to[0] = hn::Load(d, x);
    to[1] = hn::Load(d, x + kLanes<float>);
  }
  static HWY_INLINE Block load(const T* row, int column) { return load_pair<float>(row, column); }
  static HWY_INLINE Block load_last(const T* row, int dim) { return load_rest<float>(row, dim); }
  static HWY_INLINE Vec<float> add(Vec<float> sum, const Part (&x)[kParts], const Block& w) {
    return hn::MulAdd(x[1], w.second, hn::MulAdd(x[0], w.first, sum));
  }
};

#if HWY_TARGET == HWY_AVX3
// bf16 by bf16, two columns in a lane. In assembly, as Highway's target has not this instruction.
struct Bf16Products {};
template <>
struct Columns<Bf16Products> {
  using Stored = BFloat16;
  using Block = hn::Vec<hn::Repartition<uint16_t, Tag<float>>>;
  using Part = Block;
  static constexpr int kParts = 1;
  static constexpr int kFloats = kLanes<float>;
  static void pack(core::DType, const std::byte* row, int dim, float* to) {
    std::fill_n(to, round_up(dim, kBlock<float>) / 2, 0.0f);
    std::memcpy(to, row, static_cast<size_t>(dim) * sizeof(BFloat16));
  }
  static HWY_INLINE void load_x(const float* x, Part (&to)[kParts]) {
    to[0] = load(reinterpret_cast<const BFloat16*>(x), 0);
  }
  static HWY_INLINE Block load(const BFloat16* row, int column) {
    return hn::LoadU(hn::Repartition<uint16_t, Tag<float>>(), reinterpret_cast<const uint16_t*>(row + column));
  }
  static HWY_INLINE Block load_last(const BFloat16* row, int dim) {
    const int first = dim / kBlock<float> * kBlock<float>;
    const auto columns = static_cast<__mmask32>((uint32_t{1} << (dim - first)) - 1);
    return Block{_mm512_maskz_loadu_epi16(columns, row + first)};
  }
  static HWY_INLINE Vec<float> add(Vec<float> sum, const Part (&x)[kParts], const Block& w) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(x[0].raw), "v"(w.raw));
    return sum;
  }
};
#endif

// From the second cache to the first: hardware does not keep up with so many rows.
inline constexpr int64_t kBytesAhead = 512;

// Rows that are fetched to the second cache while a tile is computed.
struct Fetched {
  const std::byte* const* rows;
  int count;
};

// sums[row][column] of kRows rows of x and the rows of w.
template <int kRows, typename T>
HWY_NOINLINE void linear_tile(const std::byte* const* w, const float* HWY_RESTRICT x, int64_t x_stride, int dim,
                              const Fetched& fetched, float* HWY_RESTRICT sums) {
  using Of = Columns<T>;
  using Stored = typename Of::Stored;
  constexpr int kColumns = kTileColumns<kRows>;
  constexpr int kSums = kRows * kColumns;
  constexpr int kPadded = (kSums + kLanes<float> - 1) / kLanes<float> * kLanes<float>;
  constexpr int64_t kBytes = kBlock<float> * static_cast<int64_t>(sizeof(Stored));
  const Tag<float> d;
  Vec<float> sum[kPadded];
  HWY_UNROLL(16)
  for (int i = 0; i < kPadded; ++i) sum[i] = hn::Zero(d);
  const auto add = [&](int block, auto&& load) HWY_ATTR {
    typename Of::Part of_x[kRows][Of::kParts];
    HWY_UNROLL(4)
    for (int row = 0; row < kRows; ++row) Of::load_x(x + row * x_stride + block * Of::kFloats, of_x[row]);
    HWY_UNROLL(4)
    for (int column = 0; column < kColumns; ++column) {
      const auto of_w = load(reinterpret_cast<const Stored*>(w[column]));
      HWY_UNROLL(4)
      for (int row = 0; row < kRows; ++row) {
        Vec<float>& to = sum[row * kColumns + column];
        to = Of::add(to, of_x[row], of_w);
      }
    }
  };
  const int full = dim / kBlock<float>;
  HWY_UNROLL(1)
  for (int block = 0; block < full; ++block) {
    const int64_t at = block * kBytes;
    if (kBytes >= kLineBytes || at % kLineBytes == 0) {
      for (int64_t line = at; line < at + kBytes; line += kLineBytes) {
        HWY_UNROLL(4)
        for (int column = 0; column < kColumns; ++column) __builtin_prefetch(w[column] + line + kBytesAhead, 0, 3);
        for (int row = 0; row < fetched.count; ++row) __builtin_prefetch(fetched.rows[row] + line, 0, 2);
      }
    }
    add(block, [&](const Stored* row) HWY_ATTR { return Of::load(row, block * kBlock<float>); });
  }
  if (dim % kBlock<float> != 0) add(full, [&](const Stored* row) HWY_ATTR { return Of::load_last(row, dim); });

  HWY_ALIGN float each[kPadded];
  HWY_UNROLL(4)
  for (int i = 0; i < kPadded; i += kLanes<float>) hn::Store(sum_each<float>(sum + i), d, each + i);
  for (int row = 0; row < kRows; ++row) {
    for (int column = 0; column < kColumns; ++column)
      sums[row * kMostBlockColumns + column] = each[row * kColumns + column];
  }
}

// The tile of a band's last rows is as high as they need; rows of x behind them are zeros.
template <typename T>
HWY_INLINE void tile_of_rows(int64_t rows, const std::byte* const* w, const float* x, int64_t x_stride, int dim,
                             Fetched fetched, float* sums) {
  if (rows == 1) return linear_tile<1, T>(w, x, x_stride, dim, fetched, sums);
  if (rows == 2) return linear_tile<2, T>(w, x, x_stride, dim, fetched, sums);
  constexpr int kColumns = kTileColumns<kRowTile>;
  for (int column = 0; column < kColumnTile; column += kColumns, fetched.count = 0) {
    linear_tile<kRowTile, T>(w + column, x, x_stride, dim, fetched, sums + column);
  }
}

// The lanes of a vector that has `count` elements at `from`, the rest zeros.
template <typename T>
HWY_INLINE Vec<float> load_lanes(const T* from, int count) {
  return count >= kLanes<float> ? load_floats(Tag<float>(), from) : load_first<float>(from, count);
}

// a / (1 + e^-a)
HWY_INLINE Vec<float> silu(Vec<float> a) {
  const Tag<float> d;
  const Vec<float> exponent = hn::Mul(a, hn::Set(d, -kLog2E<float>));
  const Mask<float> is_finite = hn::Lt(exponent, hn::Set(d, 128.0f));  // or a is NaN, which the quotient keeps
  const Vec<float> power = exp2(hn::IfThenElseZero(is_finite, exponent));
  const Vec<float> infinity = hn::Set(d, std::numeric_limits<float>::infinity());
  return hn::Div(a, hn::Add(hn::IfThenElse(is_finite, power, infinity), hn::Set(d, 1.0f)));
}

// Scales of the columns' rows of w, in the unit of the sums.
inline void load_scales(const core::LinearArguments& a, int64_t column, int num_columns, float* scales) {
  for (int i = 0; i < num_columns; ++i) scales[i] = a.w_scale.at(0, column + i);
  std::fill(scales + num_columns, scales + kMostBlockColumns, 0.0f);
}

template <typename Bias, typename Out>
void finish_as(const core::LinearArguments& a, const LinearSums& sums, float unit, int64_t row, int64_t num_rows,
               int64_t column, int num_columns) {
  const Tag<float> d;
  const bool is_swiglu = a.activation == core::Activation::swiglu;
  const int64_t halves = is_swiglu ? 2 : 1;
  const auto* bias = reinterpret_cast<const Bias*>(a.bias.data);
  HWY_ALIGN float scales[2][kMostBlockColumns];
  for (int64_t half = 0; a.w_scale && half < halves; ++half) {
    load_scales(a, half * a.out_features + column, num_columns, scales[half]);
  }
  const auto value = [&](const float* from, int64_t half, int i) HWY_ATTR {
    const int count = num_columns - i;
    Vec<float> sum = load_lanes(from + half * sums.half_stride + i, count);
    if (a.w_scale) sum = hn::Mul(hn::Mul(sum, hn::Set(d, unit)), hn::Load(d, scales[half] + i));
    if (bias != nullptr) sum = hn::Add(sum, load_lanes(bias + half * a.out_features + column + i, count));
    return sum;
  };
  for (int64_t r = 0; r < num_rows; ++r) {
    const float* from = sums.data + r * sums.row_stride;
    auto* out = reinterpret_cast<Out*>(a.out.row(0, row + r, 0)) + column;
    const Out* residual = nullptr;
    if (a.residual.dtype != core::DType::none) {
      residual = reinterpret_cast<const Out*>(a.residual.row(0, row + r, 0)) + column;
    }
    for (int i = 0; i < num_columns; i += kLanes<float>) {
      const int count = num_columns - i;
      Vec<float> result = value(from, 0, i);
      if (is_swiglu) result = hn::Mul(silu(result), value(from, 1, i));
      if (residual != nullptr) result = hn::Add(result, load_lanes(residual + i, count));
      if (count >= kLanes<float>) {
        store_floats(result, out + i);
        continue;
      }
      Out last[kLanes<float>];
      store_floats(result, last);
      std::copy(last, last + count, out + i);
    }
  }
}

inline void finish_linear(const core::LinearArguments& a, const LinearSums& sums, int64_t row, int64_t num_rows,
                          int64_t column, int num_columns) {
  const float unit = a.w.dtype == core::DType::f8e4m3fn ? kUnit<Float8E4M3> : 1;
  with_elements<float>(a.bias.dtype, [&]<typename Bias>(const Bias*) HWY_ATTR {
    with_elements<float>(a.out.dtype, [&]<typename Out>(const Out*) HWY_ATTR {
      finish_as<Bias, Out>(a, sums, unit, row, num_rows, column, num_columns);
    });
  });
}

// Lists the rows of w of a block's columns, half behind half, in whole tiles: the last row stands for those that are
// not there.
inline int64_t list_rows(const core::LinearArguments& a, int64_t begin, int64_t end, int64_t halves,
                         const std::byte** rows) {
  const int64_t columns = round_up(end - begin, kColumnTile);
  for (int64_t half = 0; half < halves; ++half) {
    for (int64_t i = 0; i < columns; ++i) {
      *rows++ = a.w.row(0, half * a.out_features + std::min(begin + i, end - 1), 0);
    }
  }
  return columns;
}

template <typename T>
void multiply_block(const LinearLayout& layout, const std::byte* const* rows, int64_t columns, int64_t following,
                    const float* x, int64_t num_rows, int dim, bool is_first, float* sums) {
  const int64_t tiles = ceil_div(num_rows, kRowTile);
  // Each tile of rows fetches a part of the columns that follow, so that memory is never idle.
  const auto share = static_cast<int>(std::max<int64_t>(1, kColumnTile / tiles));
  for (int64_t at = 0; at < layout.halves * columns; at += kColumnTile) {
    float* to = sums + at / columns * layout.band_rows * kMostBlockColumns + at % columns;
    const bool fetches = is_first && layout.fetches && at + kColumnTile < layout.halves * columns + following;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t row = tile * kRowTile;
      Fetched fetched{rows + at + kColumnTile + tile * share, fetches && tile * share < kColumnTile ? share : 0};
      if (fetched.count != 0 && tile + 1 == tiles) fetched.count = static_cast<int>(kColumnTile - tile * share);
      tile_of_rows<T>(num_rows - row, rows + at, x + row * layout.x_stride, layout.x_stride, dim, fetched,
                      to + row * kMostBlockColumns);
    }
  }
}

template <typename T>
bool run_blocks(const core::LinearArguments& a, const LinearLayout& layout, const float* x, int64_t row,
                int64_t num_rows, int64_t begin, int64_t end, const LinearScratch& scratch) {
  const int64_t sums_of_half = layout.band_rows * kMostBlockColumns;
  for (int64_t column = begin; column < end; column += layout.block_columns) {
    if (core::is_cancelled(a.cancel)) return false;
    const int64_t stop = std::min(end, column + layout.block_columns);
    const int64_t columns = list_rows(a, column, stop, layout.halves, scratch.rows);
    const int64_t following = stop < end ? kColumnTile : 0;
    if (following != 0)
      list_rows(a, stop, std::min(end, stop + kColumnTile), 1, scratch.rows + layout.halves * columns);
    for (int64_t band = 0; band < num_rows; band += layout.band_rows) {
      const int64_t rows = std::min(layout.band_rows, num_rows - band);
      multiply_block<T>(layout, scratch.rows, columns, following, x + band * layout.x_stride, rows,
                        static_cast<int>(a.in_features), band == 0, scratch.sums);
      finish_linear(a, {scratch.sums, kMostBlockColumns, sums_of_half}, row + band, rows, column,
                    static_cast<int>(stop - column));
    }
  }
  return true;
}

// Calls fn with a null pointer to elements of w, or to what names their products.
template <bool kIsBf16, typename Fn>
HWY_INLINE auto with_products(core::DType dtype, Fn&& fn) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (kIsBf16) return fn(static_cast<const Bf16Products*>(nullptr));
#endif
  return with_weights(dtype, fn);
}

template <bool kIsBf16>
void run_linear_columns(const core::LinearArguments& a, const LinearLayout& layout, const float* x, int64_t row,
                        int64_t num_rows, int64_t begin, int64_t end, const LinearScratch& scratch) {
  const bool is_done = with_products<kIsBf16>(a.w.dtype, [&]<typename T>(const T*) HWY_ATTR {
    return run_blocks<T>(a, layout, x, row, num_rows, begin, end, scratch);
  });
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  _mm256_zeroupper();  // as in forward-inl.hpp
#endif
  if (!is_done) throw core::Cancelled();
}

template <bool kIsBf16>
void load_linear_row(const core::LinearArguments& a, const LinearLayout& layout, const std::byte* row, float* to) {
  const auto dim = static_cast<int>(a.in_features);
  if (row == nullptr) {
    std::fill_n(to, layout.x_stride, 0.0f);
    return;
  }
  with_products<kIsBf16>(a.w.dtype, [&]<typename T>(const T*) HWY_ATTR { Columns<T>::pack(a.dtype(), row, dim, to); });
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  _mm256_zeroupper();  // as in forward-inl.hpp
#endif
}

inline void finish_of_others(const core::LinearArguments& a, const LinearSums& sums, int64_t row, int64_t num_rows,
                             int64_t column, int num_columns) {
  finish_linear(a, sums, row, num_rows, column, num_columns);
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  _mm256_zeroupper();  // as in forward-inl.hpp
#endif
}

template <typename Real>
inline constexpr LinearKernel<Real> kLinearKernel = {{&load_linear_row<false>, &run_linear_columns<false>},
#if HWY_TARGET == HWY_AVX3
                                                     {&load_linear_row<true>, &run_linear_columns<true>},
#else
                                                     {},
#endif
                                                     &finish_of_others};

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
