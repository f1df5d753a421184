// linear on Hopper: out = f(x w^T + bias) + residual for few rows of x, every row of w read once for 64 of them (flat
// products: FlashDecoding++, arXiv 2311.01282, section 4).
//
//   warp 4, one thread           w and x by the copy engine -> stages of a ring
//   warps 0-3, a warpgroup       sums^T += w x^T, 64 rows of w a product; rows of x are its columns
//                                a tile's sums of all blocks, in order -> epilogue.cuh -> out
//
// A tile is one or two blocks of 64 rows of w and up to 64 rows of x. Its columns, cut into steps of a stage each, are
// shared in one of two ways. In both a sum is added in the order of columns, whichever block ends first, so that every
// run has the same bits:
//   clusters  Each block of a cluster takes a part of the steps, and sends its sums for 16 rows of w to their owner.
//   streams   All steps of all tiles are one line, of which blocks take equal shares. Of a tile that a border cuts, the
//             block that comes last has the sums of the others from memory. It waits for none.
//
// Programs that follow each other overlap: where weights are ready the copy engine brings them before the kernel before
// has ended. Nothing else is read, and nothing written, until then.
#pragma once

#include "cuda/device/linear/epilogue.cuh"
#include "cuda/device/ptx/barrier.cuh"
#include "cuda/device/ptx/cluster.cuh"
#include "cuda/device/ptx/dependent.cuh"
#include "cuda/device/ptx/global.cuh"
#include "cuda/device/ptx/tensor_copy.cuh"
#include "cuda/device/ptx/wgmma.cuh"
#include "cuda/device/tile/operand.cuh"
#include "cuda/device/tile/ring.cuh"
#include "cuda/kernels/linear_sm90/params.cuh"

namespace tessella::device {

using portable::LinearSm90Config;
using portable::LinearSm90Params;

template <LinearSm90Config C>
struct LinearSm90 {
  static_assert(C.rows == 8 || C.rows == 16 || C.rows == 32 || C.rows == 64, "what swizzled boxes and products take");
  static_assert(C.cluster == 1 || C.cluster == 2 || C.cluster == 4, "each block owns whole warps' rows");
  static_assert(!C.streams || C.cluster == 1, "columns are shared in one way");
  static_assert(!C.swiglu || C.row_blocks == 2, "gates and what they multiply");
  static constexpr Element E = C.element;
  static constexpr int kRowBlocks = C.row_blocks, kColumnBlocks = C.rows / 8;
  static constexpr int kStageBytes = portable::stage_bytes(C), kWeightBytes = portable::weight_bytes(C);
  static constexpr int kBlockBytes = portable::panel_bytes(portable::kLinearBlockRows);
  static constexpr int kRowBytes = portable::panel_bytes(C.rows);
  static constexpr int kPanelColumns = portable::box_columns(E);
  static constexpr int kProducts = kPanelColumns / 16;  // of a panel
  static constexpr int kLaneBytes = 32 * 16;            // of four sums in each lane
  static constexpr int kSumBytes = portable::warp_sum_bytes(C);

  using Stages = Ring<C.stages>;
  using Sums = float[kRowBlocks][kColumnBlocks][4];  // accumulators: rows of w, and as columns rows of x

  // Steps [begin, end) of a tile.
  struct Piece {
    int32_t tile, begin, end;
  };

  const LinearSm90Params& p;
  uint32_t shared;
  int warp, lane;
  uint32_t rank, unit;
  int32_t begin, end;  // the block's steps, on the line

  __device__ __forceinline__ explicit LinearSm90(const LinearSm90Params& params)
      : p(params),
        shared(ptx::shared_address(ptx::dynamic_shared())),
        warp(static_cast<int>(threadIdx.x) / 32),
        lane(static_cast<int>(threadIdx.x) % 32),
        rank(blockIdx.x % C.cluster),
        unit(blockIdx.x / C.cluster) {
    const int32_t steps = p.unit_steps.value, first = static_cast<int32_t>(unit) * steps;
    if constexpr (C.streams) {
      begin = first;
      end = min(first + steps, p.line_steps);
    } else {  // a unit is a tile
      const auto part = [&](uint32_t of) { return first + static_cast<int32_t>(int64_t{steps} * of / C.cluster); };
      begin = part(rank);
      end = part(rank + 1);
    }
  }

  __device__ uint32_t barriers() const { return shared + portable::barriers_at(C); }
  __device__ uint32_t sent_barrier() const { return barriers() + Stages::kBytes; }
  // What `from` sends for the rows of a warp that the block owns; [step of owned warps][other blocks].
  __device__ uint32_t mail(uint32_t from) const {
    const uint32_t owner = warp % C.cluster, other = from - (from > owner ? 1 : 0);
    return shared + C.stages * kStageBytes + (warp / C.cluster * (C.cluster - 1) + other) * kSumBytes;
  }
  __device__ Piece piece_at(int32_t at) const {
    const int32_t tile = p.tile_steps.quotient(at), first = tile * p.tile_steps.value;
    return {tile, at - first, min(p.tile_steps.value, end - first)};
  }
  // A tile's first row of x and its first column of out.
  __device__ int32_t first_row(int32_t tile) const {
    return (tile - p.row_tiles.quotient(tile) * p.row_tiles.value) * C.rows;
  }
  __device__ int32_t first_column(int32_t tile) const { return p.row_tiles.quotient(tile) * portable::tile_columns(C); }

  // One thread makes the barriers, and all meet.
  __device__ __forceinline__ void begin_block() const {
    if (threadIdx.x == 0) {
      Stages::init(barriers(), 1, portable::kLinearWarps);
      if constexpr (C.cluster > 1) ptx::init_barrier(sent_barrier(), 1);
      ptx::publish_barriers();
      if constexpr (C.cluster > 1) ptx::arrive_expecting(sent_barrier(), portable::mail_bytes(C));
    }
    __syncthreads();
    if constexpr (C.cluster > 1) ptx::arrive_at_cluster();  // other blocks may send now
  }

  // Warp 4.
  __device__ __forceinline__ void load_w(const Stages& stage, int32_t at) const {
    const Piece piece = piece_at(at);
    const int32_t column = first_column(piece.tile), step = piece.begin * portable::step_columns(C);
    const uint32_t to = shared + stage.offset(kStageBytes);
#pragma unroll
    for (int panel = 0; panel < C.panels; ++panel) {
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) {
        const int32_t row = column + block * (C.swiglu ? p.out.out_features : portable::kLinearBlockRows);
        ptx::copy_box(to + (panel * kRowBlocks + block) * kBlockBytes, p.w, stage.full(), step + panel * kPanelColumns,
                      row, 0, 0);
      }
    }
  }
  __device__ __forceinline__ void load_x(const Stages& stage, int32_t at) const {
    const Piece piece = piece_at(at);
    const uint32_t to = shared + stage.offset(kStageBytes) + kWeightBytes;
#pragma unroll
    for (int panel = 0; panel < C.panels; ++panel) {
      ptx::copy_box(to + panel * kRowBytes, p.x, stage.full(),
                    piece.begin * portable::step_columns(C) + panel * kPanelColumns, first_row(piece.tile), 0, 0);
    }
  }
  __device__ __forceinline__ void load() const {
    ptx::prefetch(p.w);
    ptx::prefetch(p.x);
    const int32_t early = p.weights_are_ready != 0 ? min(begin + C.stages, end) : begin;
    Stages of_w(barriers()), stage(barriers());
#pragma unroll 1
    for (int32_t at = begin; at < early; ++at) {
      of_w.arrive_full_expecting(kStageBytes);
      load_w(of_w, at);
      of_w.advance();
    }
    // The kernel behind may start only when the one before has ended: it then sees the results of all kernels before
    // this one, even if it does not wait for this one.
    ptx::wait_for_kernel_before();
    ptx::let_kernel_behind_start();
#pragma unroll 1
    for (int32_t at = begin; at < end; ++at) {
      const bool is_early = at < early;
      if (!is_early) {
        stage.wait_empty();
        stage.arrive_full_expecting(kStageBytes);
      }
      load_x(stage, at);  // before w, behind which it would wait
      if (!is_early) load_w(stage, at);
      stage.advance();
    }
  }

  // Warps 0 to 3. Adds the products of a piece.
  __device__ __forceinline__ void multiply(Stages& stage, const Piece& piece, Sums& sums) const {
#pragma unroll 1
    for (int32_t step = piece.begin; step < piece.end; ++step) {
      stage.wait_full();
      const Operand<> w(shared + stage.offset(kStageBytes)), x(shared + stage.offset(kStageBytes) + kWeightBytes);
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) ptx::keep_in_place(sums[block]);
      ptx::fence_registers();
      // One block after the other: products that take turns in their accumulators would wait for each other.
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) {
#pragma unroll
        for (int panel = 0; panel < C.panels; ++panel) {
#pragma unroll
          for (int product = 0; product < kProducts; ++product) {
            ptx::WarpgroupMma<E, C.rows>::with_shared(sums[block],
                                                      w.at((panel * kRowBlocks + block) * kBlockBytes + product * 32),
                                                      x.at(panel * kRowBytes + product * 32), true);
          }
        }
      }
      ptx::commit_products();
#pragma unroll
      for (int block = 0; block < kRowBlocks; ++block) ptx::wait_products<0>(sums[block]);
      __syncwarp();
      if (lane == 0) stage.arrive_empty();
      stage.advance();
    }
  }

  // Calls f(sums of a lane, their bytes behind the warp's first ones).
  template <class F>
  __device__ __forceinline__ void for_sums(Sums& sums, F&& f) const {
#pragma unroll
    for (int block = 0; block < kRowBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < kColumnBlocks; ++i) {
        f(sums[block][i], static_cast<uint32_t>((block * kColumnBlocks + i) * kLaneBytes + lane * 16));
      }
    }
  }
  __device__ __forceinline__ static void add(float (&sums)[4], const float (&others)[4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] += others[i];
  }

  // Adds what the cluster's other blocks have of the warp's rows, in their order. True in the block that owns them.
  __device__ __forceinline__ bool gather(Sums& sums) const {
    if constexpr (C.cluster == 1) return true;
    ptx::wait_for_cluster();
    const uint32_t owner = warp % C.cluster;
    if (owner != rank) {
      const uint32_t to = ptx::address_in(owner, mail(rank)), barrier = ptx::address_in(owner, sent_barrier());
      for_sums(sums, [&](const float(&own)[4], uint32_t at) { ptx::send(to + at, own, barrier); });
      return false;
    }
    ptx::wait_for_sent(sent_barrier(), 0);
    for_sums(sums, [&](float(&own)[4], uint32_t at) {
      float all[4] = {0, 0, 0, 0};
#pragma unroll
      for (uint32_t from = 0; from < C.cluster; ++from) {
        if (from == rank) {
          add(all, own);
          continue;
        }
        const uint4 words = ptx::load_chunk(mail(from) + at);
        add(all,
            {__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z), __uint_as_float(words.w)});
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) own[i] = all[i];
    });
    return true;
  }

  // The warp's sums of a unit's piece of a tile, of which is_head says that it is the tile's first.
  __device__ float* partial(int32_t of_unit, bool is_head) const {
    const int64_t idx = (int64_t{of_unit} * 2 + (is_head ? 1 : 0)) * portable::kLinearWarps + warp;
    return p.partial + idx * (kSumBytes / 4);
  }
  // True in the warp that is the last of `count` to come here for its rows of a tile; it then sees their partial sums.
  __device__ __forceinline__ bool is_last(uint32_t* arrived, uint32_t count) const {
    __syncwarp();
    bool last = false;
    if (lane == 0) {
      ptx::fence_memory();
      last = ptx::is_last_arrival(arrived, count);
      if (last) ptx::fence_memory();
    }
    last = __any_sync(kAllLanes, last);
    __syncwarp();
    return last;
  }
  // True if all others of a tile have come; what they count by is then zero again. A block has a tile's first piece as
  // its last one, and the others as their first: so they mostly have, and its own sums stay in registers.
  __device__ __forceinline__ bool others_are_there(uint32_t* arrived, uint32_t count) const {
    bool are_there = false;
    if (lane == 0) {
      are_there = ptx::acquire(arrived, ~0u, 0) == count - 1;
      if (are_there) ptx::store_to_memory(arrived, 0u);
    }
    are_there = __any_sync(kAllLanes, are_there);
    __syncwarp();
    return are_there;
  }
  // Adds what other units have of a tile, in their order. True in the warp that has all.
  __device__ __forceinline__ bool finish(const Piece& piece, Sums& sums) const {
    const int32_t first = piece.tile * p.tile_steps.value, own = static_cast<int32_t>(unit);
    const int32_t head = p.unit_steps.quotient(first);
    const int32_t last = p.unit_steps.quotient(first + p.tile_steps.value - 1);
    if (head == last) return true;
    const auto count = static_cast<uint32_t>(last - head + 1);
    uint32_t* arrived = p.arrived + head * portable::kLinearWarps + warp;
    const auto load = [&](int32_t of_unit, const auto& put) {
      const float* from = partial(of_unit, of_unit == head);
      for_sums(sums, [&](float(&own_sums)[4], uint32_t at) {
        float others[4];
        ptx::load_from_memory(others, from + at / 4);
        put(own_sums, others);
      });
    };
    if (own != head || !others_are_there(arrived, count)) {
      float* to = partial(own, own == head);
      for_sums(sums, [&](const float(&own_sums)[4], uint32_t at) { ptx::store_to_memory(to + at / 4, own_sums); });
      if (!is_last(arrived, count)) return false;
      load(head, [](float(&to_sums)[4], const float(&others)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) to_sums[i] = others[i];
      });
    }
#pragma unroll 1
    for (int32_t of_unit = head + 1; of_unit <= last; ++of_unit) load(of_unit, add);
    return true;
  }

  __device__ __forceinline__ void store(int32_t tile, const Sums& sums) const {
    constexpr int kStored = C.swiglu ? 1 : kRowBlocks;
    const int32_t row = first_row(tile);
#pragma unroll
    for (int block = 0; block < kStored; ++block) {
      const OutColumns<E, C.swiglu> columns(p.out, first_column(tile) + block * portable::kLinearBlockRows + warp * 16,
                                            lane);
#pragma unroll
      for (int i = 0; i < kColumnBlocks; ++i) {
        if (row + i * 8 >= p.out.rows) break;
        if constexpr (C.swiglu) {
          columns.store(row + i * 8, sums[0][i], sums[1][i]);
        } else {
          columns.store(row + i * 8, sums[block][i]);
        }
      }
    }
  }

  __device__ __forceinline__ void compute() const {
    ptx::wait_for_kernel_before();
    Stages stage(barriers());
    int32_t at = begin;
    do {  // a block of a cluster without a step still sends zeros
      const Piece piece = C.streams ? piece_at(at) : Piece{static_cast<int32_t>(unit), 0, end - begin};
      Sums sums;
      for_sums(sums, [](float(&zeros)[4], uint32_t) {
#pragma unroll
        for (int i = 0; i < 4; ++i) zeros[i] = 0;
      });
      multiply(stage, piece, sums);
      if (C.streams ? finish(piece, sums) : gather(sums)) store(piece.tile, sums);
      at += piece.end - piece.begin;
    } while (at < end);
  }
};

template <LinearSm90Config C>
__global__ void __launch_bounds__(portable::kLinearSm90Threads, C.blocks_per_sm)
    linear_sm90(const __grid_constant__ LinearSm90Params p) {
  const LinearSm90<C> block(p);
  block.begin_block();
  if (block.warp < portable::kLinearWarps) {
    block.compute();
    return;
  }
  if (block.lane == 0) block.load();
  __syncwarp();
  if constexpr (C.cluster > 1) ptx::wait_for_cluster();
}

}  // namespace tessella::device
