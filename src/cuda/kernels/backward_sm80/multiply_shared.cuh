// Products whose operands both lie in shared memory, with rows of b as the depth: c += a . b.
#pragma once

#include "cuda/device/ptx/mma.cuh"
#include "cuda/device/ptx/shared.cuh"
#include "cuda/device/tile/multiply.cuh"

namespace tessella::device {

// How warps divide a product of `rows` x `columns`: the grid that reads least shared memory. It uses at most one warp
// for each 16 x 16 block.
struct WarpGrid {
  int rows, columns;  // warps along each
};
constexpr WarpGrid warp_grid(int rows, int columns, int warps) {
  WarpGrid best{0, 0};
  int least = 0;
  for (int along = 1; along <= warps; along *= 2) {
    if (rows % (16 * along) != 0 || columns % (16 * (warps / along)) != 0) continue;
    const int reads = rows / along + columns / (warps / along);
    if (best.rows == 0 || reads <= least) {
      best = {along, warps / along};
      least = reads;
    }
  }
  return best.rows == 0 ? warp_grid(rows, columns, warps / 2) : best;
}

// One warp's rows and columns of a product of Rows x Columns, and its accumulators.
template <int Rows, int Columns, int Warps>
struct WarpFragment {
  static constexpr WarpGrid kGrid = warp_grid(Rows, Columns, Warps);
  static constexpr int kWarps = kGrid.rows * kGrid.columns, kThreads = kWarps * 32;  // that have one
  static constexpr int kRows = Rows / kGrid.rows, kColumns = Columns / kGrid.columns;
  static constexpr int kMBlocks = kRows / 16, kBlocks = kColumns / 8;
  using Accumulators = float[kMBlocks][kBlocks][4];
  __device__ static bool has(int warp) { return kWarps == Warps || warp < kWarps; }
  __device__ static int row(int warp) { return warp / kGrid.columns * kRows; }
  __device__ static int column(int warp) { return warp % kGrid.columns * kColumns; }
};

// Left operands of 16 rows and one step of depth, from a tile of a (IsTransposed: of a^T, whose rows are the depth).
template <Element E, class Tile, bool IsTransposed>
struct LeftOperand {
  uint32_t address;  // of the lane's

  __device__ __forceinline__ LeftOperand(uint32_t tile, int row, int lane) {
    if constexpr (E == Element::f32) {
      address = IsTransposed ? tile : tile + Tile::offset(row + lane % 16, lane / 16);
    } else if constexpr (IsTransposed) {
      address = Tile::advance(tile + Tile::offset(lane / 16 * 8 + lane % 8, lane / 8 % 2), 0, row / 8);
    } else {
      address = tile + Tile::offset(row + lane % 16, lane / 16);
    }
  }
  // Loads the operand of 16-row block m. row: as above.
  __device__ __forceinline__ void load(uint32_t (&a)[4], int m, int step, int row, int lane) const {
    if constexpr (!IsTransposed) {
      ptx::load_matrices(a, Tile::advance(address, m * 16, step * 2));
    } else if constexpr (E == Element::f32) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = row + m * 16 + i % 2 * 8 + lane / 4, depth = step * 8 + i / 2 * 4 + lane % 4;
        a[i] = ptx::load_word(address + Tile::offset(depth, column / 4) + column % 4 * 4);
      }
    } else {
      ptx::load_matrices_transposed(a, Tile::advance(address, step * 16, m * 2));
    }
  }
};

// Right operands of two blocks of 8 columns. 16 bits: the address of chunk `column` of the lane's row.
template <Element E, class Tile>
__device__ __forceinline__ void load_right(uint32_t (&b)[4], uint32_t tile, int step, int column, int lane) {
  if constexpr (E == Element::f32) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = column + i / 2 * 8 + lane / 4;
      b[i] = ptx::load_word(tile + Tile::offset(step * 8 + i % 2 * 4 + lane % 4, at / 4) + at % 4 * 4);
    }
  } else {
    ptx::load_matrices_transposed(b, Tile::advance(tile + Tile::offset(lane % 16, lane / 16), step * 16, column / 8));
  }
}

// c += a . b for Depth rows of b; c is 16 MBlocks rows from `row` and 8 Blocks columns from `column`.
template <Element E, int Depth, class TileA, bool IsTransposed, class TileB, int MBlocks, int Blocks>
__device__ __forceinline__ void multiply_shared(float (&c)[MBlocks][Blocks][4], uint32_t tile_a, int row,
                                                uint32_t tile_b, int column, int lane) {
  using M = Multiply<E>;
  constexpr int kSteps = Depth / M::kDepth, kPairs = Blocks / 2;
  static_assert(Blocks % 2 == 0 && (MBlocks & (MBlocks - 1)) == 0);
  const LeftOperand<E, TileA, IsTransposed> left(tile_a, row, lane);
  if constexpr (M::kSumsApart) {
    // The fp32 unit adds sums over 16 rows of depth.
    constexpr int kGroup = 16 / M::kDepth;
#pragma unroll 1
    for (int group = 0; group < kSteps; group += kGroup) {
      typename M::A a[kGroup][MBlocks];
#pragma unroll
      for (int step = 0; step < kGroup; ++step) {
#pragma unroll
        for (int m = 0; m < MBlocks; ++m) {
          uint32_t words[4];
          left.load(words, m, group + step, row, lane);
#pragma unroll
          for (int i = 0; i < 4; ++i) M::split(words[i], a[step][m].high[i], a[step][m].low[i]);
        }
      }
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        float part[MBlocks][2][4];
        clear(part);
#pragma unroll
        for (int step = 0; step < kGroup; ++step) {
          uint32_t b[4];
          load_right<E, TileB>(b, tile_b, group + step, column + pair * 16, lane);
#pragma unroll
          for (int m = 0; m < MBlocks; ++m) {
            M::multiply(part[m][0], a[step][m], b[0], b[1]);
            M::multiply(part[m][1], a[step][m], b[2], b[3]);
          }
        }
#pragma unroll
        for (int m = 0; m < MBlocks; ++m) {
#pragma unroll
          for (int i = 0; i < 8; ++i) c[m][pair * 2 + i / 4][i % 4] += part[m][i / 4][i % 4];
        }
      }
    }
  } else {
    // Operands of a step are loaded while the step before is multiplied.
    uint32_t right[kPairs];
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      right[pair] = TileB::advance(tile_b + TileB::offset(lane % 16, lane / 16), 0, column / 8 + pair * 2);
    }
    uint32_t a[2][MBlocks][4], b[2][kPairs][4];
    const auto load = [&](int step) {
#pragma unroll
      for (int m = 0; m < MBlocks; ++m) left.load(a[step % 2][m], m, step, row, lane);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        ptx::load_matrices_transposed(b[step % 2][pair], TileB::advance(right[pair], step * 16, 0));
      }
    };
    load(0);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step + 1 < kSteps) load(step + 1);
#pragma unroll
      for (int pair = 0; pair < kPairs; ++pair) {
        const auto& of = b[step % 2][pair];
#pragma unroll
        for (int m = 0; m < MBlocks; ++m) {
          const typename M::A operand = M::split(a[step % 2][m]);
          M::multiply(c[m][pair * 2], operand, of[0], of[1]);
          M::multiply(c[m][pair * 2 + 1], operand, of[2], of[3]);
        }
      }
    }
  }
}

}  // namespace tessella::device
