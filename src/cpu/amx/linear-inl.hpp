// out^T = w x^T in bf16 tiles: rows of w are A tiles as they lie in memory, so that w is read once and never copied.
//
//   for unit of 32 rows of w, pair of tiles of 16 rows of x
//     for step of 32 columns       C (16 rows of w x 16 of x, fp32) += A B
//
//            B0 = T6   B1 = T7     B: a tile of x, packed once a call: two columns of a row side by side in a dword,
//   A0 = T4    T0        T1           [step][tile of x][16 pairs of columns][16 rows][2]
//   A1 = T5    T2        T3
//
// An element is summed step by step in one order, whatever the number of rows or threads. Rows of w that no whole tile
// has are in one that begins before them. Columns behind the last whole step, and a w of few rows, are copied, padded
// with zeros.
//
// Tiles names the tile registers' instructions: those of the CPU (AmxTiles), or a test's stand-ins. Include inside a
// target region only (target-inl.hpp).
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/cancel.hpp"
#include "core/plan.hpp"
#include "cpu/amx/pack-inl.hpp"
#include "cpu/amx/tiles-inl.hpp"
#include "cpu/memory.hpp"
#include "cpu/parallel.hpp"
#include "cpu/vector/linear_vector.hpp"
#include "operations/linear/arguments.hpp"

namespace tessella::cpu::amx {

struct AmxTiles {
  using Scope = TileScope;
  template <int kTile>
  static void zero() {
    tile_zero<kTile>();
  }
  template <int kTile>
  static void load(const void* tile, int64_t stride_bytes) {
    tile_load_rows<kTile>(tile, stride_bytes);
  }
  template <int kTile>
  static void store(void* tile, int64_t stride_bytes) {
    tile_store<kTile>(tile, stride_bytes);
  }
  template <int kC, int kA, int kB>
  static void dot() {
    tile_dot<kC, kA, kB>();
  }
};

inline constexpr int64_t kUnitColumns = 2 * kTileRows;
inline constexpr int64_t kFetchBytes = 1024;  // of a row of w, ahead of what is read: 32 KB of a unit are under way

// Sizes of a call, and its memory.
struct LinearTiles {
  int64_t steps;
  int64_t x_tiles;  // of a wave of rows
  int64_t halves;
  uint16_t* x = nullptr;
  int64_t bytes = 0;

  LinearTiles(const core::LinearShape& shape, std::byte* base)
      : steps(ceil_div(shape.in_features, kStepDims)),
        x_tiles(ceil_div(std::min(shape.rows, kWaveRows), kTileRows)),
        halves(shape.activation == core::Activation::swiglu ? 2 : 1) {
    Memory memory(base, bytes);
    memory.take(steps * x_tiles * kTileElements, x);
  }
};

// Scratch of one thread.
struct LinearTileScratch {
  float* sums = nullptr;       // [halves][kWaveRows][kUnitColumns]
  uint16_t* copied = nullptr;  // two A tiles
  float* c = nullptr;          // a C tile
  int64_t bytes = 0;

  explicit LinearTileScratch(std::byte* base) {
    Memory memory(base, bytes);
    memory.take(2 * kWaveRows * kUnitColumns, sums);
    memory.take(2 * kTileElements, copied);
    memory.take(kTileFloats, c);
  }
};

// Packs a tile of rows of x; those from num_rows on are zeros.
inline void pack_x_tile(const core::LinearArguments& a, int64_t row, int64_t num_rows, int64_t tile_stride,
                        uint16_t* to) {
  for (int64_t column = 0; column < a.in_features; column += kStepDims, to += tile_stride) {
    const __mmask32 columns = lanes32(a.in_features - column);
    __m512i r[kTileRows];
#pragma GCC unroll 16
    for (int i = 0; i < kTileRows; ++i) {
      r[i] = i < num_rows ? _mm512_maskz_loadu_epi16(columns, elements(a.x.row(0, row + i, 0)) + column)
                          : _mm512_setzero_si512();
    }
    transpose16(r);
#pragma GCC unroll 16
    for (int i = 0; i < kTileRows; ++i) _mm512_store_si512(to + i * kStepDims, r[i]);
  }
}

// Sixteen rows of w from w_row on, or its last ones.
struct WeightTile {
  const uint16_t* rows;
  int64_t skipped;  // rows before the first that is wanted

  WeightTile(const core::LinearArguments& a, int64_t w_row) {
    const int64_t first = std::clamp<int64_t>(a.weight_rows() - kTileRows, 0, w_row);
    rows = elements(a.w.row(0, first, 0));
    skipped = w_row - first;
  }
};

// An A tile of the first num_rows rows and num_columns columns, and zeros.
inline void copy_tile(const uint16_t* rows, int64_t stride, int64_t num_rows, int64_t num_columns, uint16_t* to) {
  for (int64_t i = 0; i < kTileRows; ++i, to += kStepDims) {
    const __mmask32 columns = i < num_rows ? lanes32(num_columns) : 0;
    _mm512_store_si512(to, _mm512_maskz_loadu_epi16(columns, rows + i * stride));
  }
}

// Stores a C tile, transposed, as sums of up to 16 rows of x and the columns from tile.skipped on.
inline void store_sums(const float* c, const WeightTile& tile, float* sums) {
  __m512i r[kTileRows];
#pragma GCC unroll 16
  for (int i = 0; i < kTileRows; ++i) r[i] = _mm512_load_si512(c + i * kTileRows);
  transpose16(r);
  const auto wanted = static_cast<__mmask16>(0xFFFF << tile.skipped);
#pragma GCC unroll 16
  for (int i = 0; i < kTileRows; ++i) {
    _mm512_mask_storeu_ps(sums + i * kUnitColumns - tile.skipped, wanted, _mm512_castsi512_ps(r[i]));
  }
}

// Sums of two tiles of w and kXTiles tiles of x. next: the rows that are read after these, or null.
template <class Tiles, int kXTiles>
void multiply_unit(const core::LinearArguments& a, const LinearTiles& call, const WeightTile (&w)[2],
                   const uint16_t* const (&next)[2], const uint16_t* x, const LinearTileScratch& scratch, float* sums) {
  const int64_t stride = a.w.row_stride;
  const int64_t stride_bytes = 2 * stride;
  const int64_t w_rows = std::min<int64_t>(a.weight_rows(), kTileRows);
  const int64_t whole = w_rows < kTileRows ? 0 : a.in_features / kStepDims;
  const int64_t x_step = call.x_tiles * kTileElements;
  Tiles::template zero<0>();
  Tiles::template zero<1>();
  Tiles::template zero<2>();
  Tiles::template zero<3>();
  const auto step = [&](const uint16_t* a0, const uint16_t* a1, int64_t a_stride) {
    Tiles::template load<6>(x, kLineBytes);
    Tiles::template load<4>(a0, a_stride);
    Tiles::template dot<0, 4, 6>();
    Tiles::template load<5>(a1, a_stride);
    Tiles::template dot<2, 5, 6>();
    if constexpr (kXTiles == 2) {
      Tiles::template load<7>(x + kTileElements, kLineBytes);
      Tiles::template dot<1, 4, 7>();
      Tiles::template dot<3, 5, 7>();
    }
    x += x_step;
  };
  for (int64_t at = 0; at < whole; ++at) {
    const int64_t ahead = at * kStepDims + kFetchBytes / 2;
    for (int tile = 0; tile < 2 && next[tile] != nullptr; ++tile) {
      const uint16_t* from = ahead < a.in_features ? w[tile].rows + ahead : next[tile] + (ahead - a.in_features);
      for (int i = 0; i < kTileRows; ++i) __builtin_prefetch(from + i * stride, 0, 2);
    }
    step(w[0].rows + at * kStepDims, w[1].rows + at * kStepDims, stride_bytes);
  }
  for (int64_t at = whole; at < call.steps; ++at) {
    for (int tile = 0; tile < 2; ++tile) {
      copy_tile(w[tile].rows + at * kStepDims, stride, w_rows, a.in_features - at * kStepDims,
                scratch.copied + tile * kTileElements);
    }
    step(scratch.copied, scratch.copied + kTileElements, kLineBytes);
  }
  const auto store = [&]<int kC>(int w_tile, int x_tile) {
    Tiles::template store<kC>(scratch.c, kLineBytes);
    store_sums(scratch.c, w[w_tile], sums + x_tile * kTileRows * kUnitColumns + w_tile * kTileRows);
  };
  store.template operator()<0>(0, 0);
  store.template operator()<2>(1, 0);
  if constexpr (kXTiles == 2) {
    store.template operator()<1>(0, 1);
    store.template operator()<3>(1, 1);
  }
}

// Columns [column, end) of out, at most a unit, of all rows of the wave.
template <class Tiles>
void run_unit(const core::LinearArguments& a, const LinearTiles& call, int64_t row, int64_t num_rows, int64_t column,
              int64_t end, bool is_last, const LinearTileScratch& scratch) {
  const int64_t x_tiles = ceil_div(num_rows, kTileRows);
  const auto tiles_of = [&](int64_t half, int64_t from) {
    // Where there are no columns for it, the second tile is the first once more.
    const int64_t w_row = half * a.out_features + from;
    return std::pair{WeightTile(a, w_row),
                     WeightTile(a, from + kTileRows < a.out_features ? w_row + kTileRows : w_row)};
  };
  for (int64_t half = 0; half < call.halves; ++half) {
    const auto [first, second] = tiles_of(half, column);
    const WeightTile w[2] = {first, second};
    const bool is_end = half + 1 == call.halves;
    const uint16_t* next[2] = {nullptr, nullptr};
    if (!is_end || !is_last) {
      const auto [after, behind] = is_end ? tiles_of(0, end) : tiles_of(half + 1, column);
      next[0] = after.rows;
      next[1] = behind.rows;
    }
    float* sums = scratch.sums + half * kWaveRows * kUnitColumns;
    for (int64_t tile = 0; tile < x_tiles; tile += 2) {
      const uint16_t* x = call.x + tile * kTileElements;
      float* to = sums + tile * kTileRows * kUnitColumns;
      if (tile + 1 < x_tiles) {
        multiply_unit<Tiles, 2>(a, call, w, next, x, scratch, to);
      } else {
        multiply_unit<Tiles, 1>(a, call, w, next, x, scratch, to);
      }
      next[0] = next[1] = nullptr;
    }
  }
  linear_kernel<float>(InstructionSet::avx512)
      .finish(a, {scratch.sums, kUnitColumns, kWaveRows * kUnitColumns}, row, num_rows, column,
              static_cast<int>(end - column));
}

template <class Tiles>
void run_linear_tiles(const core::LinearArguments& a, int num_threads, void* memory) {
  auto* base = static_cast<std::byte*>(memory);
  const LinearTiles call(a, base);
  const int64_t thread_bytes = LinearTileScratch(nullptr).bytes;
  const int64_t units = ceil_div(a.out_features, kUnitColumns);
  const int64_t step = linear_task_columns(a, kUnitColumns, num_threads) / kUnitColumns;
  for (int64_t row = 0; row < a.rows; row += kWaveRows) {
    const int64_t rows = std::min(kWaveRows, a.rows - row);
    parallel_for(ceil_div(rows, kTileRows), num_threads, a.cancel, [&](int64_t tile, int) {
      pack_x_tile(a, row + tile * kTileRows, rows - tile * kTileRows, call.x_tiles * kTileElements,
                  call.x + tile * kTileElements);
      _mm256_zeroupper();
    });
    parallel_for(ceil_div(units, step), num_threads, a.cancel, [&](int64_t task, int worker) {
      const LinearTileScratch scratch(base + call.bytes + worker * thread_bytes);
      const int64_t end = std::min(a.out_features, (task + 1) * step * kUnitColumns);
      bool is_cancelled = false;
      {
        const typename Tiles::Scope scope;
        for (int64_t column = task * step * kUnitColumns; column < end && !is_cancelled; column += kUnitColumns) {
          const int64_t stop = std::min(end, column + kUnitColumns);
          run_unit<Tiles>(a, call, row, rows, column, stop, stop == end, scratch);
          is_cancelled = core::is_cancelled(a.cancel);
        }
      }
      _mm256_zeroupper();  // as the vector kernels do (forward-inl.hpp)
      if (is_cancelled) throw core::Cancelled();
    });
  }
}

}  // namespace tessella::cpu::amx
