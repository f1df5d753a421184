// Rows of k and v as decoding reads them: a warp takes 16 keys at a time, from one tensor, from packed rows or from
// pages of any size.
#pragma once

#include "cuda/device/schedule/decode_work.hpp"
#include "cuda/device/tile/rows.hpp"
#include "cuda/device/tile/tile.hpp"

namespace tessella::device {

class CacheRows {
 public:
  // Of one sequence and KV head. visible: keys that some query row of the unit sees, beside those of keep_first; all
  // others are never read.
  __device__ __forceinline__ CacheRows(const portable::ForwardParams& p, const DecodeWork& work, KeyRange visible,
                                       int32_t element_bytes)
      : p_(p),
        visible_(visible),
        row_kv_(work.sequence.row_kv),
        batch_idx_(work.unit.batch_idx),
        element_bytes_(element_bytes),
        keys_(static_cast<const char*>(p.k.data) + work.unit.head_kv * p.k.head_stride * element_bytes),
        values_(static_cast<const char*>(p.v.data) + work.unit.head_kv * p.v.head_stride * element_bytes) {}

  // Lane i knows where key first_key + i % 16 lies. It is there a while before it is used: a page is looked up.
  struct Row {
    int32_t page, row;  // row -1: nobody sees the key
  };
  __device__ __forceinline__ Row find(int32_t first_key, int lane) const {
    const int32_t key = first_key + lane % portable::kDecodeTile;
    if (!visible_.sees(key, p_.keep_first)) return {0, -1};
    if (p_.page_table.data == nullptr) return {batch_idx_, row_kv_ + key};
    const PagedRow paged = paged_row(p_, batch_idx_, row_kv_ + key);
    return {paged.page, paged.row};
  }

  // Copies the keys' rows of k or v to a tile; those that nobody sees become zeros.
  template <class TileK>
  __device__ __forceinline__ void load_keys(uint32_t to, const Row& row, int lane) const {
    load<TileK>(to, keys_, p_.k, p_.head_dim_qk, row, lane);
  }
  template <class TileV>
  __device__ __forceinline__ void load_values(uint32_t to, const Row& row, int lane) const {
    load<TileV>(to, values_, p_.v, p_.head_dim_v, row, lane);
  }

 private:
  template <class Tile>
  __device__ __forceinline__ void load(uint32_t to, const char* first, const portable::OperandParams& of,
                                       int32_t columns, const Row& row, int lane) const {
    // Lanes that copy a row side by side.
    constexpr int kLanes = 32 % Tile::kChunks == 0 ? Tile::kChunks : Tile::kPanelChunks;
    constexpr int kRowsAStep = 32 / kLanes;
    const int64_t mine = row.row < 0 ? -1 : (row.page * of.batch_stride + row.row * of.row_stride) * element_bytes_;
#pragma unroll
    for (int step = 0; step < portable::kDecodeTile; step += kRowsAStep) {
      const int of_row = step + lane / kLanes;
      const int64_t offset = __shfl_sync(kAllLanes, mine, of_row);
      const char* source = first + max(offset, int64_t{0}) + lane % kLanes * 16;
#pragma unroll
      for (int part = 0; part < Tile::kChunks; part += kLanes) {
        const int chunk = part + lane % kLanes;
        ptx::copy_chunk_async(to + Tile::offset(of_row, chunk), source + part * 16,
                              offset >= 0 && chunk * Tile::kChunkElements < columns);
      }
    }
  }

  const portable::ForwardParams& p_;
  KeyRange visible_;
  int32_t row_kv_, batch_idx_, element_bytes_;
  const char *keys_, *values_;
};

}  // namespace tessella::device
