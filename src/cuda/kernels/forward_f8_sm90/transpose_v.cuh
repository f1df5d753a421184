// v of 8 bits, (key, column) to (column, key) with the keys of every 16 in the order of
// kernels/forward_sm90/transposed_v.cuh. A block takes kKeyTile keys of a head; keys behind the sequence's last one
// become zeros.
#pragma once

#include "cuda/device/ptx/shared.cuh"
#include "cuda/device/tile/rows.cuh"
#include "cuda/kernels/forward_sm90/transposed_v.cuh"

namespace tessella::device {

using portable::TransposeVConfig;
using portable::TransposeVParams;

template <TransposeVConfig C>
__global__ void __launch_bounds__(portable::kTransposeThreads) transpose_v(const __grid_constant__ TransposeVParams p) {
  constexpr int kKeys = portable::kKeyTile, kThreads = portable::kTransposeThreads;
  constexpr int kRowBytes = C.head_dim_v + 16;  // in shared memory
  constexpr int kChunks = C.head_dim_v / 16;
  const uint32_t s_rows = ptx::shared_address(ptx::dynamic_shared());
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const auto block = static_cast<int32_t>(blockIdx.x);
  const int32_t of_tiles = p.key_tiles.quotient(block), batch_idx = p.heads_kv.quotient(of_tiles);
  const int32_t head = of_tiles - batch_idx * p.heads_kv.value;
  const Sequence of = rows_of_sequence<int32_t>(p.sequences, batch_idx);
  const int32_t first = (block - of_tiles * p.key_tiles.value) * kKeys;
  if (first >= of.len_kv) return;

  const portable::OperandParams& v = p.v;
  const auto* data = static_cast<const char*>(v.data) + head * v.head_stride;
  const auto rows = [&] {
    if constexpr (C.paged) {
      return HeadRows<true>{p.sequences, data, v.row_stride, v.batch_stride, batch_idx, of.row_kv};
    } else {
      return HeadRows<false>{data + batch_of_keys(p.sequences, batch_idx) * v.batch_stride + of.row_kv * v.row_stride,
                             v.row_stride};
    }
  }();
#pragma unroll 4
  for (int32_t i = thread; i < kKeys * kChunks; i += kThreads) {
    const int32_t key = first + i / kChunks, column = i % kChunks * 16;
    uint4 chunk = {0, 0, 0, 0};
    if (key < of.len_kv && column < p.head_dim_v) {
      chunk = *reinterpret_cast<const uint4*>(rows.at(key) + column);
    }
    ptx::store_chunk(s_rows + i / kChunks * kRowBytes + column, {chunk.x, chunk.y, chunk.z, chunk.w});
  }
  __syncthreads();
  // A thread writes 32 keys of a column.
#pragma unroll 1
  for (int32_t i = thread; i < kKeys / 32 * C.head_dim_v; i += kThreads) {
    const int32_t column = i % C.head_dim_v, key = i / C.head_dim_v * 32;
    if (column >= p.head_dim_v) continue;
    uint32_t words[8];
#pragma unroll
    for (int w = 0; w < 8; ++w) {
      words[w] = 0;
#pragma unroll
      for (int b = 0; b < 4; ++b) {
        const int32_t row = key + w / 4 * 16 + portable::key_at(w % 4 * 4 + b);
        words[w] |= ptx::load_byte(s_rows + row * kRowBytes + column) << b * 8;
      }
    }
    auto* to = reinterpret_cast<uint4*>(p.to + batch_idx * p.batch_stride +
                                        (static_cast<int64_t>(head) * p.head_dim_v + column) * p.keys +
                                        transposed_at(p.sequences, batch_idx, of) + first + key);
    to[0] = {words[0], words[1], words[2], words[3]};
    to[1] = {words[4], words[5], words[6], words[7]};
  }
}

}  // namespace tessella::device
