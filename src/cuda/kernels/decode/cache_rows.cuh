// Rows of k and v, and their scales, as decoding reads them: a warp takes 16 keys at a time, from one tensor, from
// packed rows or from pages of any size.
#pragma once

#include "cuda/device/tile/keys.cuh"
#include "cuda/device/tile/rows.cuh"
#include "cuda/device/tile/tile.cuh"
#include "cuda/kernels/decode/params.cuh"
#include "portable/element_masks.hpp"

namespace tessella::device {

// 16 rows of a cache. Most tiles are a run: rows at one stride, all visible, of which each lane knows the first. In
// other tiles lane i knows the address of row i % 16.
struct CacheTile {
  bool is_run;
  int32_t page, row;  // row -1: no query sees the key
};

// The data of a query row that masks and ALiBi read.
struct RowInfo {
  int32_t begin, end;  // keys that it sees, beside those of keep_first
  int32_t position;    // its own, counted in keys
  float slope;
};
static_assert(sizeof(RowInfo) == portable::kRowInfoBytes);

// The draft mask: the sequence's last keys, from `begin` on; one word a query, one bit a key.
struct Drafts {
  int32_t begin = 0x7FFFFFFF;
  const uint64_t* words = nullptr;

  __device__ bool hide(int32_t query, int32_t key) const {
    return key >= begin && (words[query] >> (key - begin) & 1) == 0;
  }
};

// The query rows of one sequence and KV head from `first` on, for masks of elements.
struct MaskedRows {
  Sequence sequence;
  int32_t batch_idx, head_kv, first;
};

__device__ constexpr portable::ElementMaskSet without_drafts(portable::ElementMaskSet set) {
  set.draft_mask = false;
  return set;
}

// What a query row sees of keys. Masks of elements but the draft mask are read where they lie, key by key.
template <portable::ScoreConfig C>
class RowSight {
 public:
  __device__ __forceinline__ RowSight(const portable::DecodeParams& p, const MaskedRows& rows, const Drafts& drafts)
      : p_(p), rows_(rows), drafts_(drafts) {}

  // The first key that masks of elements may hide.
  __device__ int32_t first_masked() const { return kReadsMasks ? 0 : drafts_.begin; }

  // True if the row_idx-th row sees a key.
  __device__ __forceinline__ bool sees(const RowInfo& row, int32_t row_idx, int32_t key) const {
    if (!KeyRange{row.begin, row.end}.sees(key, p_.masks.keep_first)) return false;
    if (drafts_.hide(row.position - drafts_.begin, key)) return false;
    if constexpr (kReadsMasks) {
      const int32_t at = rows_.first + row_idx, query = p_.sequences.group.quotient(at);
      const int32_t head_idx = (rows_.head_kv - query) * p_.sequences.group.value + at;
      return portable::shown_by<kMasks>(p_.masks.elements, rows_.sequence, rows_.batch_idx, head_idx, query, key);
    }
    return true;
  }

 private:
  static constexpr portable::ElementMaskSet kMasks = without_drafts(C.element_masks);
  static constexpr bool kReadsMasks = count(kMasks) > 0;

  const portable::DecodeParams& p_;
  MaskedRows rows_;
  Drafts drafts_;
};

template <portable::ScoreConfig C>
class CacheRows {
 public:
  // The rows of one sequence and KV head, for query rows from a first to a last one. Keys that none of them sees are
  // never read. Strides count units of stride_bytes bytes, which hold stride_elements elements.
  __device__ __forceinline__ CacheRows(const portable::DecodeParams& p, const MaskedRows& of, const RowInfo* rows,
                                       int32_t num_rows, const Drafts& drafts, int32_t stride_bytes,
                                       int32_t stride_elements)
      : p_(p),
        rows_(rows),
        num_rows_(num_rows),
        sight_(p, of, drafts),
        of_first_{rows[0].begin, min(rows[0].end, sight_.first_masked())},
        of_last_{rows[num_rows - 1].begin, min(rows[num_rows - 1].end, sight_.first_masked())},
        row_kv_(of.sequence.row_kv),
        batch_idx_(of.batch_idx),
        slot_(batch_of_keys(p.sequences, of.batch_idx)),
        head_kv_(of.head_kv),
        stride_bytes_(stride_bytes),
        stride_elements_(stride_elements),
        keys_(static_cast<const char*>(p.inputs.k.data) + of.head_kv * p.inputs.k.head_stride * stride_bytes),
        values_(static_cast<const char*>(p.inputs.v.data) + of.head_kv * p.inputs.v.head_stride * stride_bytes) {}

  // Call it well before the rows are used: it reads the page table.
  __device__ __forceinline__ CacheTile find(int32_t first_key, int lane) const {
    constexpr int32_t kKeys = portable::kDecodeTile;
    const int32_t first = row_kv_ + first_key;
    const bool is_paged = p_.sequences.page_table.data != nullptr;
    const portable::Divisor& page_size = p_.sequences.page_size;
    const int32_t row_in_page = is_paged ? first - page_size.quotient(first) * page_size.value : 0;
    CacheTile tile;
    const auto hold = [=](const KeyRange& keys) { return first_key >= keys.begin && first_key + kKeys <= keys.end; };
    tile.is_run = (hold(of_first_) || hold(of_last_)) && (!is_paged || row_in_page + kKeys <= page_size.value);
    const int32_t key = tile.is_run ? first_key : first_key + lane % kKeys;
    tile.page = slot_;
    tile.row = -1;
    if (!tile.is_run && !is_seen(key)) return tile;
    tile.row = row_kv_ + key;
    if (is_paged) {
      const PagedRow paged = paged_row(p_.sequences, batch_idx_, tile.row);
      tile.page = paged.page;
      tile.row = paged.row;
    }
    return tile;
  }

  // Copies the tile's rows of k or v, or one of `Portions` equal portions of k. Rows that no query sees become zeros.
  template <class TileK, int Portions = 1>
  __device__ __forceinline__ void load_keys(uint32_t to, const CacheTile& tile, int lane, int portion = 0) const {
    load<TileK, portable::kDecodeTile / Portions>(to, keys_, p_.inputs.k, p_.inputs.head_dim_qk / stride_elements_,
                                                  tile, lane, portion);
  }
  template <class TileV>
  __device__ __forceinline__ void load_values(uint32_t to, const CacheTile& tile, int lane) const {
    load<TileV>(to, values_, p_.inputs.v, p_.inputs.head_dim_v / stride_elements_, tile, lane);
  }
  // Lanes 0 to 15 copy the scales of keys, the others those of values. Scales of unseen keys are not read.
  __device__ __forceinline__ void load_scales(uint32_t to, const CacheTile& tile, int lane) const {
    const portable::CacheScaleParams& of = lane < portable::kDecodeTile ? p_.k_scale : p_.v_scale;
    to += static_cast<uint32_t>(lane) * 4;
    if (of.data == nullptr) return ptx::store_word(to, __float_as_uint(1.0f));
    // Packed rows have one block of scales for all of them, or a few blocks for each sequence.
    const int32_t batch_idx =
        p_.sequences.cu_seqlens_kv.data != nullptr && p_.sequences.page_table.data == nullptr ? batch_idx_ : tile.page;
    const int32_t row = tile.row + (tile.is_run ? lane % portable::kDecodeTile : 0);
    const float* from = static_cast<const float*>(of.data) + batch_idx * of.batch_stride +
                        p_.scale_block.quotient(row) * of.row_stride + head_kv_ * of.head_stride;
    ptx::copy_word_async(to, from, row >= 0);
  }

 private:
  // There may be keys that no row sees between those of the first row and those of the last one.
  __device__ __forceinline__ bool is_seen(int32_t key) const {
    bool is_seen = false;
#pragma unroll 1
    for (int32_t row = 0; row < num_rows_; ++row) is_seen = is_seen || sight_.sees(rows_[row], row, key);
    return is_seen;
  }

  // Rows [portion * Rows, portion * Rows + Rows) of the tile.
  template <class Tile, int Rows = portable::kDecodeTile>
  __device__ __forceinline__ void load(uint32_t to, const char* first, const portable::OperandParams& of,
                                       int32_t columns, const CacheTile& tile, int lane, int portion = 0) const {
    // The lanes that copy one row.
    constexpr int kLanes = 32 % Tile::kChunks == 0 ? Tile::kChunks : Tile::kPanelChunks;
    constexpr int kRowsAStep = 32 / kLanes;
    static_assert(Rows % kRowsAStep == 0);
    const int first_row = Rows == portable::kDecodeTile ? 0 : portion * Rows;
    const int own_row = first_row + lane / kLanes, own_chunk = lane % kLanes;
    const char* source =
        first + (tile.page * of.batch_stride + tile.row * of.row_stride) * stride_bytes_ + own_chunk * 16;
    // The panels of a long row are a constant distance apart, so only the first address needs a register.
    constexpr bool kIsLong = Tile::kChunks > 64;
    const auto copy_panels = [=](int row, const char* row_source, bool is_seen) {
      const uint32_t target = to + Tile::offset(row, own_chunk);
#pragma unroll
      for (int panel = 0; panel < Tile::kChunks / kLanes; ++panel) {
        ptx::copy_chunk_async(
            target + panel * Tile::kPanelBytes, row_source + panel * kLanes * 16,
            is_seen && own_chunk * Tile::kChunkElements < columns - panel * kLanes * Tile::kChunkElements);
      }
    };
    if (tile.is_run) {
      const int64_t row_bytes = of.row_stride * stride_bytes_;
      source += own_row * row_bytes;
#pragma unroll
      for (int step = 0; step < Rows; step += kRowsAStep) {
        if constexpr (kIsLong) copy_panels(own_row + step, source, true);
#pragma unroll
        for (int part = 0; part < (kIsLong ? 0 : Tile::kChunks); part += kLanes) {
          const int chunk = part + own_chunk;
          // Rows eight apart have the same swizzle.
          const uint32_t target = Tile::advance(to + Tile::offset(own_row + step % 8, chunk), step - step % 8, 0);
          ptx::copy_chunk_async(target, source + part * 16, chunk * Tile::kChunkElements < columns);
        }
        source += kRowsAStep * row_bytes;
      }
      return;
    }
    const auto address = static_cast<int64_t>(reinterpret_cast<uintptr_t>(source)) - own_chunk * 16;
#pragma unroll 1
    for (int row = own_row; row < first_row + Rows; row += kRowsAStep) {
      const bool is_seen = __shfl_sync(kAllLanes, tile.row, row) >= 0;
      const auto* at = reinterpret_cast<const char*>(static_cast<uintptr_t>(__shfl_sync(kAllLanes, address, row)));
      if constexpr (kIsLong) copy_panels(row, at + own_chunk * 16, is_seen);
#pragma unroll
      for (int part = 0; part < (kIsLong ? 0 : Tile::kChunks); part += kLanes) {
        const int chunk = part + own_chunk;
        ptx::copy_chunk_async(to + Tile::offset(row, chunk), at + chunk * 16,
                              is_seen && chunk * Tile::kChunkElements < columns);
      }
    }
  }

  const portable::DecodeParams& p_;
  const RowInfo* rows_;  // in shared memory
  int32_t num_rows_;
  RowSight<C> sight_;
  KeyRange of_first_, of_last_;
  int32_t row_kv_, batch_idx_, slot_, head_kv_, stride_bytes_, stride_elements_;
  const char *keys_, *values_;
};

}  // namespace tessella::device
