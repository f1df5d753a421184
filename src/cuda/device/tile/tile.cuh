// A tile of rows in shared memory, in panels of 128 bytes a row whose 16-byte chunks are swizzled.
//
// Chunk c of row r lies at chunk c ^ (r % 8) of its panel: eight rows of one chunk column, which a matrix load reads
// at once, then touch all 32 banks. It is the layout that Hopper's copy engine writes and its matrix unit reads
// (128-byte swizzle). Narrower rows use panels of 64 or 32 bytes with c ^ (r / 2 % 4) and c ^ (r / 4 % 2).
#pragma once

#include "cuda/device/ptx/order.cuh"
#include "cuda/device/ptx/shared.cuh"
#include "cuda/device/tile/rows.cuh"

namespace tessella::device {

// Columns counts elements of ElementBytes bytes.
template <int Rows, int Columns, int ElementBytes>
struct Tile {
  static constexpr int kChunkElements = 16 / ElementBytes;
  static constexpr int kChunks = Columns * ElementBytes / 16;  // of a row
  static constexpr int kPanelChunks = kChunks % 8 == 0 ? 8 : kChunks % 4 == 0 ? 4 : 2;
  static constexpr int kPanelBytes = Rows * kPanelChunks * 16;
  static constexpr int kBytes = Rows * kChunks * 16;
  static_assert(Columns * ElementBytes % 32 == 0, "rows are whole pairs of 16-byte chunks");
  static_assert(Rows % 8 == 0, "the swizzle repeats every 8 rows");

  // The offset of a chunk from the tile's start, in bytes.
  __device__ static constexpr uint32_t offset(int row, int chunk) {
    const int swizzled = chunk % kPanelChunks ^ row / (8 / kPanelChunks) % kPanelChunks;
    return static_cast<uint32_t>(chunk / kPanelChunks * kPanelBytes + (row * kPanelChunks + swizzled) * 16);
  }
  // The address that is `rows` rows (a multiple of 8) and `chunks` chunks further. `address` must be that of chunk 0 of
  // a row; that of chunk 0 or 1 if `chunks` is even; that of any chunk if `chunks` is 0. With constant steps it is one
  // instruction: tiles start at multiples of 128 bytes, so the swizzle's bits do not carry.
  __device__ static constexpr uint32_t advance(uint32_t address, int rows, int chunks) {
    return (address ^ static_cast<uint32_t>(chunks % kPanelChunks * 16)) +
           static_cast<uint32_t>(chunks / kPanelChunks * kPanelBytes + rows * kPanelChunks * 16);
  }
};

// Copies rows [first, first + Rows) of a head (device/tile/rows.cuh) with Threads threads. Missing rows and columns
// from `columns` on become zeros; their memory, which may hold NaN, is never read. Unroll: how many rows' addresses
// hold registers at once. ReusesOffset: derives the offsets of rows that are a multiple of 8 apart from one offset,
// which then stays in a register. Paged: lanes find rows for each other, so whole warps must call it, with `thread`
// counted as threadIdx.x.
template <class Tile, int Rows, int Threads, bool Vector, int Unroll = Rows, bool ReusesOffset = false, bool Paged,
          class IsThere>
__device__ __forceinline__ void load_tile(uint32_t to, const HeadRows<Paged>& from, int first, int columns,
                                          uint32_t thread, const IsThere& is_there) {
  constexpr int kElementBytes = 16 / Tile::kChunkElements;
  // Lanes that copy one row: one for each of its chunks, or for each chunk of a panel if that divides the threads.
  constexpr int kLanes = Threads % Tile::kChunks == 0 ? Tile::kChunks : Tile::kPanelChunks;
  constexpr int kRowsAStep = Threads / kLanes;
  // The loop over elements is not unrolled: its code is long enough.
  constexpr int kUnroll = Vector ? Unroll : 1, kUnrollChunks = Vector ? Tile::kChunks / kLanes : 1;
  const int row = static_cast<int>(thread / kLanes), first_chunk = static_cast<int>(thread % kLanes);
  // Finding a row in a page is slow. If the lanes that copy the same rows are adjacent, each finds one row for all of
  // them.
  constexpr int kRowLanes = kLanes < 32 ? kLanes : 32;
  constexpr bool kFindsOnce = Paged && Vector && 32 % kRowLanes == 0 && kLanes % kRowLanes == 0 &&
                              Rows % kRowsAStep == 0 && Rows <= kRowLanes * kRowsAStep;
  int64_t found = 0;
  if constexpr (kFindsOnce) {
    const int mine = row + static_cast<int>(thread % kRowLanes) * kRowsAStep;
    if (mine < Rows && is_there(first + mine)) found = from.offset(first + mine);
  }
  const char* source = (Paged ? from.first : from.at(first + row)) + first_chunk * 16;
#pragma unroll kUnroll
  for (int step = 0; step < Rows; step += kRowsAStep) {
    if (Rows % kRowsAStep != 0 && row + step >= Rows) break;
    const bool there = is_there(first + row + step);
    if constexpr (kFindsOnce) {
      source = from.first + __shfl_sync(~0u, found, step / kRowsAStep, kRowLanes) + first_chunk * 16;
    } else if (Paged && there) {
      source = from.at(first + row + step) + first_chunk * 16;
    }
    const int base_step = ReusesOffset ? step % 8 : step;
#pragma unroll kUnrollChunks
    for (int chunk_offset = 0; chunk_offset < Tile::kChunks; chunk_offset += kLanes) {
      const int chunk = chunk_offset + first_chunk;
      const uint32_t target = Tile::advance(to + Tile::offset(row + base_step, chunk), step - base_step, 0);
      if constexpr (Vector) {
        ptx::copy_chunk_async(target, source + chunk_offset * 16, there && chunk * Tile::kChunkElements < columns);
      } else {
        uint32_t words[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < Tile::kChunkElements; ++i) {
          if (!there || chunk * Tile::kChunkElements + i >= columns) continue;
          if constexpr (kElementBytes == 2) {
            words[i / 2] |= static_cast<uint32_t>(reinterpret_cast<const uint16_t*>(source + chunk_offset * 16)[i])
                            << (i % 2 * 16);
          } else {
            words[i] = reinterpret_cast<const uint32_t*>(source + chunk_offset * 16)[i];
          }
        }
        ptx::store_chunk(target, words);
      }
    }
    if (!Paged) source += kRowsAStep * from.row_bytes;
    if (kLanes < Tile::kChunks) ptx::forget(source);  // or each chunk has a sum of its own
  }
}

}  // namespace tessella::device
