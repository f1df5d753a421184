// quantize: rows become elements of 8 bits, rotated, less their mean and times a Hadamard matrix on their way
// (portable/hadamard.hpp). For Ampere and later. The kernels in the order of a call that asks for everything:
//
//   quantize_sums    rows -> sums of 32 of them        quantize_means    sums -> means
//   clear_scales     scales -> 0                       largest_values    rows -> the largest magnitude of each scale
//   finish_scales    magnitudes -> scales              quantize_rows or quantize_tiles    rows -> elements
//
// A block of rows with a scale of its own needs but the last: quantize_blocks, or quantize_rows where it is one row.
#pragma once

#include "cuda/device/ptx/dependent.cuh"
#include "cuda/kernels/quantize/transposed_tile.cuh"

namespace tessella::device {

// A chunk of kMeanRows rows, or fewer, of a sequence. Packed, those of sequence b begin at index cu[b] / kMeanRows + b,
// which leaves room for the last chunk of each.
struct Chunk {
  int32_t batch_idx, begin, end;  // rows of the tensor's batch entry
};
__device__ __forceinline__ int32_t first_chunk(const QuantizeParams& p, int32_t batch_idx) {
  if (p.tables.cu_seqlens.data == nullptr) return batch_idx * p.chunks;
  return portable::span_of(p.tables, batch_idx).begin / portable::kMeanRows + batch_idx;
}
__device__ __forceinline__ Chunk chunk_at(const QuantizeParams& p, int32_t idx) {
  int32_t batch_idx = 0;
  if (p.tables.cu_seqlens.data == nullptr) {
    batch_idx = idx / p.chunks;
  } else {
    int32_t high = p.tables.batch - 1;  // the last sequence that begins at or before the chunk
    while (batch_idx < high) {
      const int32_t middle = batch_idx + (high - batch_idx + 1) / 2;
      if (first_chunk(p, middle) <= idx) {
        batch_idx = middle;
      } else {
        high = middle - 1;
      }
    }
  }
  const portable::SequenceSpan span = portable::span_of(p.tables, batch_idx);
  const int64_t begin = span.begin + int64_t{idx - first_chunk(p, batch_idx)} * portable::kMeanRows;
  return {batch_idx, static_cast<int32_t>(portable::clamped(begin, span.begin, span.end)),
          static_cast<int32_t>(portable::clamped(begin + portable::kMeanRows, span.begin, span.end))};
}

// p.rows: chunks times heads.
template <QuantizeConfig C>
__global__ void __launch_bounds__(portable::kQuantizeThreads, portable::blocks_per_sm(C))
    quantize_sums(const __grid_constant__ QuantizeParams p) {
  ptx::wait_for_kernel_before();
  ptx::let_kernel_behind_start();
  const RowLane<C> t(p);
  constexpr int N = RowLane<C>::kColumns;
  constexpr int64_t kAtOnce = portable::kQuantizeThreads / RowLane<C>::kLanes;
  for (int64_t idx = blockIdx.x * kAtOnce + t.row; idx < p.rows; idx += gridDim.x * kAtOnce) {
    const auto head = static_cast<int32_t>(idx % p.heads);
    const Chunk chunk = chunk_at(p, static_cast<int32_t>(idx / p.heads));
    const int32_t tensor_batch = portable::span_of(p.tables, chunk.batch_idx).tensor_batch;
    float sums[N] = {};
    for (int32_t row = chunk.begin; row < chunk.end; ++row) {
      float values[N];
      load_rotated_row(p, t, {portable::sequence_row(p.tables, tensor_batch, row), head}, values);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] = __fadd_rn(sums[i], values[i]);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (t.first_column + i < p.head_dim) p.sums[idx * p.head_dim + t.first_column + i] = sums[i];
    }
  }
}

// A thread a column of a mean; p.rows: of those, the number.
template <QuantizeConfig C>
__global__ void __launch_bounds__(portable::kQuantizeThreads, portable::blocks_per_sm(C))
    quantize_means(const __grid_constant__ QuantizeParams p) {
  ptx::wait_for_kernel_before();
  ptx::let_kernel_behind_start();
  const int64_t columns = int64_t{p.heads} * p.head_dim;
  for (int64_t idx = int64_t{blockIdx.x} * portable::kQuantizeThreads + threadIdx.x; idx < p.rows;
       idx += int64_t{gridDim.x} * portable::kQuantizeThreads) {
    const auto batch_idx = static_cast<int32_t>(idx / columns);
    const int64_t column = idx - batch_idx * columns;  // of all heads
    const portable::SequenceSpan span = portable::span_of(p.tables, batch_idx);
    const int32_t rows = span.end - span.begin;
    const int32_t chunks = (rows + portable::kMeanRows - 1) / portable::kMeanRows, first = first_chunk(p, batch_idx);
    float sum = 0;
    for (int32_t chunk = 0; chunk < chunks; ++chunk) {
      sum = __fadd_rn(sum, p.sums[int64_t{first + chunk} * columns + column]);
    }
    const auto head = static_cast<int32_t>(column / p.head_dim);
    float* mean = p.mean + offset_of(p.mean_strides, batch_idx, 0, head);
    mean[column - int64_t{head} * p.head_dim] = sum / static_cast<float>(rows < 1 ? 1 : rows);
  }
}

// A thread an entry of the scales, which gathers the largest magnitude before it becomes a scale.
template <class F>
__device__ __forceinline__ void for_entries(const QuantizeParams& p, F&& f) {
  for (int64_t idx = int64_t{blockIdx.x} * portable::kQuantizeThreads + threadIdx.x; idx < p.entries;
       idx += int64_t{gridDim.x} * portable::kQuantizeThreads) {
    const int64_t of_batch = idx / p.entry_heads, batch = of_batch / p.entry_blocks;
    float* scale =
        p.scale + offset_of(p.scale_strides, batch, of_batch - batch * p.entry_blocks, idx - of_batch * p.entry_heads);
    *scale = f(*scale);
  }
}
template <QuantizeConfig C>
__global__ void __launch_bounds__(portable::kQuantizeThreads, portable::blocks_per_sm(C))
    clear_scales(const __grid_constant__ QuantizeParams p) {
  ptx::wait_for_kernel_before();
  ptx::let_kernel_behind_start();
  for_entries(p, [](float) { return 0.0f; });
}
template <QuantizeConfig C>
__global__ void __launch_bounds__(portable::kQuantizeThreads, portable::blocks_per_sm(C))
    finish_scales(const __grid_constant__ QuantizeParams p) {
  ptx::wait_for_kernel_before();
  ptx::let_kernel_behind_start();
  for_entries(p, [](float most) { return portable::scale_of(portable::magnitude(most), C.quantized); });
}

template <QuantizeConfig C>
__global__ void __launch_bounds__(portable::kQuantizeThreads, portable::blocks_per_sm(C))
    largest_values(const __grid_constant__ QuantizeParams p) {
  ptx::wait_for_kernel_before();
  ptx::let_kernel_behind_start();
  const RowLane<C> t(p);
  // Rows that follow each other mostly have one scale: what is known to be there is not raised again.
  for_rows<C>(p, t, [&](const HeadRow& r) {
    float row[RowLane<C>::kColumns];
    load_prepared_row(p, t, r, row);
    const uint32_t most = largest_of_lanes<RowLane<C>::kLanes>(largest_magnitude(row));
    if (!r.at.exists || t.lane != 0) return;
    auto* gathered = reinterpret_cast<uint32_t*>(scale_at(p, r.at, r.head));
    if (*static_cast<volatile uint32_t*>(gathered) < most) atomicMax(gathered, most);
  });
}

// Scales are given, computed before, or of one row each.
template <QuantizeConfig C>
__global__ void __launch_bounds__(portable::kQuantizeThreads, portable::blocks_per_sm(C))
    quantize_rows(const __grid_constant__ QuantizeParams p) {
  ptx::wait_for_kernel_before();
  ptx::let_kernel_behind_start();
  const RowLane<C> t(p);
  for_rows<C>(p, t, [&](const HeadRow& r) {
    if constexpr (C.shifts) write_shift(p, t, r);
    float row[RowLane<C>::kColumns];
    load_prepared_row(p, t, r, row);
    float scale;
    if constexpr (C.own_scales) {
      scale = portable::scale_of(largest_of_lanes<RowLane<C>::kLanes>(largest_magnitude(row)), C.quantized);
      if (r.is_of_tensor && t.lane == 0) *scale_at(p, r.at, r.head) = scale;
    } else {
      scale = scale_of(p, r);
    }
    store_row(p, t, r, row, scale);
  });
}

// Scales of blocks of rows that follow each other, of one head or of all: a block of threads reads its rows twice, the
// second time from the GPU's caches. p.entries: of the scales.
template <QuantizeConfig C>
__global__ void __launch_bounds__(portable::kQuantizeThreads, portable::blocks_per_sm(C))
    quantize_blocks(const __grid_constant__ QuantizeParams p) {
  extern __shared__ __align__(128) char shared[];
  auto* s_most = reinterpret_cast<uint32_t*>(shared);  // of each warp
  ptx::wait_for_kernel_before();
  ptx::let_kernel_behind_start();
  constexpr int32_t kAtOnce = portable::kQuantizeThreads / RowLane<C>::kLanes, kWarps = portable::kQuantizeThreads / 32;
  const RowLane<C> t(p);
  const int32_t heads = p.heads / p.entry_heads;  // of an entry
  const RowsInTurn of_entry(t.row, kAtOnce, heads);
  for (int64_t idx = blockIdx.x; idx < p.entries; idx += gridDim.x) {
    const int64_t of_batch = idx / p.entry_heads;
    const auto batch = static_cast<int32_t>(of_batch / p.entry_blocks);
    const auto block = static_cast<int32_t>(of_batch - int64_t{batch} * p.entry_blocks);
    const auto first_head = static_cast<int32_t>(idx - of_batch * p.entry_heads) * heads;
    const int32_t begin = block * p.scale_block.value;
    const int32_t count = min(p.scale_block.value, p.tensor_rows.value - begin) * heads;
    const auto head_row = [&](const RowsInTurn& rows, int32_t i) -> HeadRow {
      if (i >= count) return {};
      return {portable::sequence_row(p.tables, batch, begin + rows.row()), first_head + rows.head()};
    };
    float row[RowLane<C>::kColumns];
    uint32_t most = 0;
    RowsInTurn rows = of_entry;
    for (int32_t first = 0; first < count; first += kAtOnce, rows.advance()) {
      load_prepared_row(p, t, head_row(rows, first + t.row), row);
      most = max(most, largest_magnitude(row));
    }
    most = largest_of_lanes<32>(most);
    if (threadIdx.x % 32 == 0) s_most[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kWarps; ++i) most = max(most, s_most[i]);
    __syncthreads();  // before the next entry's
    const float scale = portable::scale_of(most, C.quantized);
    if (threadIdx.x == 0) p.scale[offset_of(p.scale_strides, batch, block, idx - of_batch * p.entry_heads)] = scale;
    rows = of_entry;
    for (int32_t first = 0; first < count; first += kAtOnce, rows.advance()) {
      const HeadRow r = head_row(rows, first + t.row);
      if constexpr (C.shifts) write_shift(p, t, r);
      load_prepared_row(p, t, r, row);
      store_row(p, t, r, row, scale);
    }
  }
}

// Rows into columns, through shared memory.
template <QuantizeConfig C>
__global__ void __launch_bounds__(portable::kQuantizeThreads, portable::blocks_per_sm(C))
    quantize_tiles(const __grid_constant__ QuantizeParams p) {
  extern __shared__ __align__(128) char shared[];
  ptx::wait_for_kernel_before();
  ptx::let_kernel_behind_start();
  constexpr int N = RowLane<C>::kColumns;
  using Tile = TransposedTile<C>;
  const RowLane<C> t(p);
  Tile::for_tiles(p, [&](const Tile& tile) {
    for (int32_t row = t.row; row < Tile::kRows; row += Tile::kAtOnce) {
      const HeadRow r = tile.head_row(p, row);
      if constexpr (C.shifts) write_shift(p, t, r);
      float values[N];
      load_prepared_row(p, t, r, values);
      uint32_t words[N / 4];
      quantize_columns<C.quantized>(values, scale_of(p, r), words);  // of rows behind the last, zeros
      const auto place = static_cast<int32_t>(portable::key_place(row));
#pragma unroll
      for (int i = 0; i < N; ++i) {
        shared[(t.first_column + i) * Tile::kPitch + place] = static_cast<char>(words[i / 4] >> i % 4 * 8);
      }
    }
    __syncthreads();
    Tile::for_words(p.head_dim, [&](int32_t column, int32_t word, int32_t at) {
      const auto bits = *reinterpret_cast<const uint32_t*>(shared + at);
      auto* into = static_cast<uint8_t*>(p.out) + tile.offset(p.out_strides, column, word);
      if constexpr (C.vectors) {
        *reinterpret_cast<uint32_t*>(into) = bits;
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) into[j] = static_cast<uint8_t>(bits >> 8 * j);
      }
    });
  });
}

}  // namespace tessella::device
