// FlashAttention-2's forward (arXiv 2307.08691, algorithm 1) with the matrix instructions of one warp: any NVIDIA GPU
// from Ampere on, bf16, f16 and fp32.
//
//   for each tile of queries:                                     one thread block; a warp owns 16 or 32 of its rows
//     o = 0, max = -inf, sum = 0
//     for each tile of keys it sees:
//       s = q k^T -> scale, softcap, bias, ALiBi, text -> masks   registers
//       p = 2^(s - max), max and sum kept, o rescaled             registers
//       o += p v
//     out = o / sum, lse = max + ln(sum)
//
// k is copied asynchronously while o += p v runs, v while s = q k^T and the softmax run. Registers hold o, the scores
// and little else: what the loop over keys needs now and then (lengths, limits, the tile's place) is read from
// shared memory where it is needed.
#pragma once

#include "cuda/device/band_mask.hpp"
#include "cuda/device/keys.hpp"
#include "cuda/device/mask.hpp"
#include "cuda/device/multiply.hpp"
#include "cuda/device/output.hpp"
#include "cuda/device/schedule.hpp"
#include "cuda/device/score.hpp"
#include "cuda/device/sequence.hpp"
#include "cuda/device/softmax.hpp"
#include "cuda/device/tile.hpp"
#include "portable/dropout.hpp"
#include "portable/forward_config.hpp"
#include "portable/forward_params.hpp"

namespace tessella::device {

using portable::ForwardParams;
using portable::MaskLevel;

template <ForwardConfig C>
struct ForwardSm80 {
  static constexpr int kElementBytes = portable::size_bytes(C.element);
  static constexpr int kThreads = C.num_warps * 32;
  static constexpr int kRowsOfWarp = C.tile_q / C.num_warps;
  static constexpr int kMBlocks = kRowsOfWarp / 16;
  static constexpr int kBlocks = C.tile_kv / 8;
  static constexpr int kBlocksV = C.head_dim_v / 8;
  using TileQ = Tile<C.tile_q, C.head_dim_qk, kElementBytes>;
  using TileK = Tile<C.tile_kv, C.head_dim_qk, kElementBytes>;
  using TileV = Tile<C.tile_kv, C.head_dim_v, kElementBytes>;
  using Scores = float[kMBlocks][kBlocks][4];
  using Visited = VisitedTiles<C.mask == MaskLevel::bits>;
  static_assert(C.tile_q % (16 * C.num_warps) == 0, "a warp owns whole blocks of 16 rows");
  static_assert(C.tile_q <= 128,
                "tiles begin at their multiples, as portable::tile_queries() has them for the tile map");
  static_assert(kRowsOfWarp <= 32, "a lane a row");
  static_assert(C.tile_kv <= 128, "a bit for each of a lane's keys of a row");
  static_assert(C.tile_kv % 16 == 0 && C.head_dim_v % 16 == 0 && C.head_dim_qk % 16 == 0,
                "matrix loads take 16 rows or columns");

  // What this block works on.
  struct Place {
    WorkTile work;
    BandedSequence<int64_t> sequence;
    const char* k;                 // the head's rows, as head_of_keys() has them
    const char* v;                 // the same, from the slice's first column on
    const uint8_t* tile_map;       // classes of the key tiles
    int32_t seen_begin, seen_end;  // keys that some query of the sequence sees, beside those of keep_first
    KeyTiles tiles;                // of the block's rows
    KeyTiles warp_tiles[C.num_warps];
  };

  // Shared memory: q | k | v | begin and end of each row's keys | of a partial tile: bits of each row, bits that some
  // row of a warp has | the place. At the end out lies where q, k and v were.
  static constexpr int kWords = portable::mask_words(C);
  static constexpr int kBoundsAt = portable::tile_bytes(C);
  static constexpr int kBitsAt = kBoundsAt + C.tile_q * 8;
  static constexpr int kSeenAt = kBitsAt + C.tile_q * kWords * 4;
  static constexpr int kPlaceAt = kSeenAt + portable::seen_bytes(C);
  static_assert(kPlaceAt + portable::kPlaceBytes == portable::shared_bytes(C) &&
                sizeof(Place) <= portable::kPlaceBytes);

  const ForwardParams& p;
  const Place& place;
  uint32_t s_q;
  int thread, lane, warp_row;

  __device__ __forceinline__ ForwardSm80(const ForwardParams& params, char* shared)
      : p(params),
        place(*reinterpret_cast<const Place*>(shared + kPlaceAt)),
        s_q(ptx::shared_address(shared)),
        thread(static_cast<int>(threadIdx.x)),
        lane(C.element == Element::f32 ? static_cast<int>(threadIdx.x % 32) : thread % 32),  // fp32: a register less
        warp_row(thread / 32 * kRowsOfWarp) {}

  __device__ uint32_t s_k() const { return s_q + TileQ::kBytes; }
  __device__ uint32_t s_v() const { return s_k() + TileK::kBytes; }
  __device__ uint32_t s_bounds() const { return s_q + kBoundsAt; }
  __device__ int32_t first_q() const { return place.work.tile_idx * C.tile_q; }
  // Query of accumulator row r (0 or 1) of block m; its columns are 2 (lane % 4) and the next.
  __device__ int32_t query(int m, int r) const { return first_q() + warp_row + m * 16 + r * 8 + lane / 4; }
  __device__ int32_t columns_v() const { return min(C.head_dim_v, p.head_dim_v - place.work.slice_idx * C.head_dim_v); }

  // Finds the block's place, and sends for its queries and its first keys before all else. Returns the first tile of
  // keys, or -1 where the block has no query. Every thread calls it. Short: a block that sees few keys spends much of
  // its time here, most of it waiting for instructions.
  __device__ __forceinline__ int32_t find_place(Visited& visited) const {
    const WorkTile work = work_tile(p, blockIdx.x, blockIdx.y);
    const BandedSequence<int64_t> sequence = device::sequence(p, work.batch_idx);
    write_rows_without_query<C>(p, work, sequence);
    const int32_t first = work.tile_idx * C.tile_q;
    if (first >= sequence.len_q) return -1;
    const int32_t last = min(first + C.tile_q, sequence.len_q) - 1;
    const int32_t warp_first = first + warp_row, warp_last = min(warp_first + kRowsOfWarp - 1, last);
    const int32_t head_kv = work.head_idx / (p.heads_q / p.heads_kv);
    const char* k = head_of_keys(p.k, work, sequence, head_kv, 0);
    load_q(work, sequence);

    // Lanes 0 to 5: ranges of the block's, the warp's and the sequence's first and last rows. Then, where a tile needs
    // masks, each row's own.
    Place& to = const_cast<Place&>(place);
    int32_t tile = 0;
#pragma unroll 1
    for (int part = 0; part < 2; ++part) {
      int32_t row = lane == 0   ? first
                    : lane == 1 ? last
                    : lane == 2 ? warp_first
                    : lane == 3 ? warp_last
                    : lane == 4 ? 0
                                : sequence.len_q - 1;
      if (part == 1) row = warp_first + lane % kRowsOfWarp;
      const KeyRange own = row_keys(sequence, row);
      if (part == 1) {
        ptx::store_words(s_bounds() + (warp_row + lane % kRowsOfWarp) * 8, static_cast<uint32_t>(own.begin),
                         static_cast<uint32_t>(own.end));
        break;
      }
      const auto of = [&](int i) {  // (no structured binding: clang 14 captures none)
        return KeyRange{__shfl_sync(kAllLanes, own.begin, i), __shfl_sync(kAllLanes, own.end, i)};
      };
      const KeyTiles tiles = key_tiles<C.tile_kv>(of(0), of(1), p.keep_first);
      KeyTiles warp_tiles = key_tiles<C.tile_kv>(of(2), of(3), p.keep_first);
      if (warp_first > last) warp_tiles = {0, 0, 0, 0, 0};
      const int32_t seen_begin = of(4).begin, seen_end = of(5).end;
      const uint8_t* tile_map = nullptr;
      if constexpr (C.mask == MaskLevel::bits) {
        tile_map = tile_classes(p, work.batch_idx, work.head_idx, work.tile_idx);
      }
      tile = visited.next(tiles, tile_map, 0);
      if (tile < tiles.end) load_k(k, work, sequence, tile);
      ptx::commit_copies();
      if (lane == 0) to.warp_tiles[thread / 32] = warp_tiles;
      if (thread == 0) {
        to.work = work;
        to.sequence = sequence;
        to.k = k;
        to.v = head_of_keys(p.v, work, sequence, head_kv, work.slice_idx * C.head_dim_v);
        to.tile_map = tile_map;
        to.seen_begin = seen_begin;
        to.seen_end = seen_end;
        to.tiles = tiles;
      }
      if (C.mask == MaskLevel::band && tiles.all_are_full()) break;
    }
    return tile;
  }
  __device__ KeyRange bounds(int row) const {
    const uint2 words = ptx::load_words(s_bounds() + row * 8);
    return {static_cast<int32_t>(words.x), static_cast<int32_t>(words.y)};
  }

  // First element of a head from a row and a column of the tensor on.
  __device__ static const char* head(const portable::OperandParams& t, int32_t batch_idx, int32_t head_idx, int32_t row,
                                     int32_t column) {
    return static_cast<const char*>(t.data) +
           (batch_idx * t.batch_stride + head_idx * t.head_stride + row * t.row_stride + column) * kElementBytes;
  }

  // The same of k or v, from the sequence's first key on; paged, from the pool's first row on.
  __device__ static const char* head_of_keys(const portable::OperandParams& t, const WorkTile& work,
                                             const Sequence& sequence, int32_t head_idx, int32_t column) {
    return C.paged ? head(t, 0, head_idx, 0, column) : head(t, work.batch_idx, head_idx, sequence.row_kv, column);
  }
  // The keys of a sequence in such a head.
  __device__ HeadRows<C.paged> key_rows(const char* head, const portable::OperandParams& t, const WorkTile& work,
                                        const Sequence& sequence) const {
    const int64_t row_bytes = t.row_stride * kElementBytes;
    if constexpr (C.paged) {
      return {p, head, row_bytes, t.batch_stride * kElementBytes, work.batch_idx, sequence.row_kv};
    } else {
      return {head, row_bytes};
    }
  }

  // Right operands of matrix instructions are loaded so many loads ahead: with one block of rows there are two
  // instructions a load, and the loads keep shared memory busy, so that one takes as long as eight of them. Texts and
  // the softcap need the registers; fp32 hides its loads behind its many instructions.
  static constexpr int kAhead = kMBlocks == 1 ? 4 : C.score || C.softcap ? 0 : 1;

  // Registers are short but in the usual kernels. These are choices with which the assembler spills none
  // (tests/kernel_matrix_test.cpp).
  static constexpr bool kIsUsual = Score<C>::kIsPlain && C.mask == MaskLevel::band && C.vector_loads &&
                                   C.head_dim_qk == C.head_dim_v && C.head_dim_qk % 64 == 0;
  static constexpr bool kIsSmallText =  // for_small_text() of cuda/forward_config.hpp
      C.score && kMBlocks * (kBlocks + kBlocksV) * 4 > 176;
  static constexpr bool kIsHeavy = C.bias || C.dropout;
  static constexpr bool kIsWideOrOdd = C.head_dim_qk % 64 != 0 || C.head_dim_v > 128;
  static constexpr bool kFewCopies =  // addresses at once
      C.element == Element::f32 || C.alibi || C.score || C.paged || (kIsHeavy && kIsWideOrOdd) ||
      (Score<C>::kIsPlain && C.mask == MaskLevel::band && !kIsUsual);
  static constexpr bool kKeepsPlaces =  // of copies in shared memory
      C.mask == MaskLevel::band && !C.score && (!kIsHeavy || kIsWideOrOdd);
  static constexpr bool kLimitsShared =  // of the warp, read each time
      !C.softcap && !C.alibi && !C.keep && !kIsSmallText && !kIsUsual;

  // Rows of a tile; one that lies within [begin, end) is copied without a look at each row.
  template <class Tile, int Rows, bool Paged, class IsThere>
  __device__ __forceinline__ void load_rows(uint32_t to, const HeadRows<Paged>& rows, int32_t first, int32_t columns,
                                            int32_t begin, int32_t end, const IsThere& is_there) const {
    constexpr int kUnroll = kFewCopies ? 4 : Rows;
    if (first >= begin && first + Rows <= end) {
      load_tile<Tile, Rows, kThreads, C.vector_loads, kUnroll, kKeepsPlaces>(to, rows, first, columns, threadIdx.x,
                                                                             [](int) { return true; });
    } else {
      load_tile<Tile, Rows, kThreads, C.vector_loads, kUnroll, kKeepsPlaces>(to, rows, first, columns, threadIdx.x,
                                                                             is_there);
    }
  }
  __device__ __forceinline__ void load_q(const WorkTile& work, const Sequence& sequence) const {
    const char* q = head(p.q, work.batch_idx, work.head_idx, sequence.row_q, 0);
    const int32_t len = sequence.len_q;
    load_rows<TileQ, C.tile_q>(s_q, HeadRows<false>{q, p.q.row_stride * kElementBytes}, work.tile_idx * C.tile_q,
                               p.head_dim_qk, 0, len, [&](int row) { return row < len; });
  }
  __device__ __forceinline__ void load_k(const char* k, const WorkTile& work, const Sequence& sequence,
                                         int32_t tile) const {
    const int32_t len_kv = sequence.len_kv;
    load_rows<TileK, C.tile_kv>(s_k(), key_rows(k, p.k, work, sequence), tile * C.tile_kv, p.head_dim_qk, 0, len_kv,
                                [&](int key) { return key < len_kv; });
  }
  // Keys that no query of the sequence sees may hold anything: they become zeros, as 0 * NaN is NaN.
  __device__ __forceinline__ void load_v(int32_t tile) const {
    const int32_t begin = place.seen_begin, end = place.seen_end;
    const HeadRows<C.paged> rows = key_rows(place.v, p.v, place.work, place.sequence);
    load_rows<TileV, C.tile_kv>(s_v(), rows, tile * C.tile_kv, columns_v(), begin, end,
                                [&](int key) { return key < end && (key >= begin || key < p.keep_first); });
  }

  // The tile after `tile`. Without a tile map that is the next one but at the gap behind those of keep_first.
  __device__ int32_t after(Visited& visited, int32_t tile) const {
    if (C.mask == MaskLevel::band && (p.keep_first == 0 || tile + 1 != place.tiles.kept)) return tile + 1;
    return visited.next(place.tiles, place.tile_map, tile + 1);
  }
  __device__ const KeyTiles& warp_tiles() const { return place.warp_tiles[thread / 32]; }

  template <class Meanwhile>
  __device__ __forceinline__ void scores(Scores& s, const Meanwhile& meanwhile) const {
    multiply_qk<C.element, C.head_dim_qk, TileQ, TileK, kAhead>(s, s_q, s_k(), warp_row, lane, meanwhile);
  }

  __device__ Score<C> score_of_place() const {
    return Score<C>(p, place.sequence, place.work.batch_idx, place.work.head_idx);
  }
  // True if the tile's keys and all of the warp's queries are the sequence's.
  __device__ bool is_within(const Score<C>& score, int32_t tile) const {
    return score.are_within(first_q() + warp_row, kRowsOfWarp, tile * C.tile_kv, C.tile_kv);
  }
  // Returns the lane's least score, wanted of a series alone. IsWithin: what is_within() says; false serves as well.
  template <bool Series, bool IsWithin = false>
  __device__ __forceinline__ float modify(Scores& s, const Score<C>& score, int32_t tile) const {
    float least = kInfinity;
    const typename Score<C>::Corner corner = score.corner(query(0, 0), tile * C.tile_kv + lane % 4 * 2);
#pragma unroll
    for (int j = 0; j < kBlocks; ++j) {
#pragma unroll
      for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          s[m][j][i] = score.template value<Series, IsWithin>(s[m][j][i], corner, m * 16 + i / 2 * 8, j * 8 + i % 2);
          if (Series) least = fminf(least, s[m][j][i]);
        }
      }
      // What 16 keys load is used before more is loaded: a whole tile's would fill all registers.
      if ((C.bias || (C.score && !kIsSmallText)) && j % 2 == 1) ptx::keep_loads_in_place();
    }
    return least;
  }

  // True if the softcap's series serves a tile whose scores it has made: none above the maxima, none below `least`.
  __device__ __forceinline__ static bool series_serves(const float (&tile_max)[kMBlocks][2], float least,
                                                       const Score<C>& score) {
    float largest = tile_max[0][0];
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) largest = fmaxf(largest, fmaxf(tile_max[m][0], tile_max[m][1]));
    return __all_sync(kAllLanes, score.series_serves(least, largest));
  }

  // Hides what lies outside the band.
  __device__ __forceinline__ void mask(Scores& s, int32_t tile) const {
    hide_outside(s, tile * C.tile_kv, p.keep_first, lane,
                 [&](int m, int r) { return bounds(query(m, r) - first_q()); });
  }

  __device__ uint32_t s_bits(int row, int word) const { return s_q + kBitsAt + (row * kWords + word) * 4; }
  __device__ uint32_t s_seen(int warp, int word) const { return s_q + kSeenAt + (warp * kWords + word) * 4; }
  // What the warp's rows see of a partial tile, band and element masks together, as words of 32 keys: a lane a key,
  // before the scores take the registers. False if they see nothing.
  __device__ __forceinline__ bool store_bits(int32_t tile, bool sees, bool is_full) const {
    const int num_rows = sees ? min(kRowsOfWarp, place.sequence.len_q - first_q() - warp_row) : 0;
    uint32_t seen[kWords] = {}, of_row[kWords] = {};
#pragma unroll 3
    for (int row = 0; row < num_rows; ++row) {
      const KeyRange keys = is_full ? KeyRange{0, (tile + 1) * C.tile_kv} : bounds(warp_row + row);
#pragma unroll
      for (int word = 0; word < kWords; ++word) {
        const int key = tile * C.tile_kv + word * 32 + lane;
        const bool visible =
            keys.sees(key, p.keep_first) && is_visible<C>(p, place.sequence, place.work.batch_idx, place.work.head_idx,
                                                          first_q() + warp_row + row, key);
        const uint32_t bits = __ballot_sync(kAllLanes, visible);
        seen[word] |= bits;
        if (lane == row) of_row[word] = bits;
      }
    }
    uint32_t any = 0;
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      if (lane < kRowsOfWarp) ptx::store_word(s_bits(warp_row + lane, word), of_row[word]);
      if (lane == 0) ptx::store_word(s_seen(thread / 32, word), seen[word]);
      any |= seen[word];
    }
    __syncwarp();
    return any != 0;
  }
  // Hides what store_bits() found hidden.
  __device__ __forceinline__ void mask_bits(Scores& s) const {
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int word = 0; word < kWords; ++word) {
          const uint32_t visible = ptx::load_word(s_bits(warp_row + m * 16 + r * 8 + lane / 4, word)) >> (lane % 4 * 2);
#pragma unroll
          for (int j = word * 4; j < word * 4 + 4 && j < kBlocks; ++j) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              if ((visible & (1u << (j % 4 * 8 + c))) == 0) s[m][j][r * 2 + c] = -kInfinity;
            }
          }
        }
      }
    }
  }

  // Zeroes what dropout takes from block columns j and j + 1, 16 keys.
  __device__ __forceinline__ void drop(Scores& s, int32_t tile, int j) const {
    const portable::Dropout dropout = {p.seed_data != nullptr ? static_cast<uint64_t>(*p.seed_data) : p.seed,
                                       p.offset_data != nullptr ? static_cast<uint64_t>(*p.offset_data) : p.offset,
                                       p.dropout_threshold};
    const uint64_t head_idx = static_cast<uint64_t>(place.work.batch_idx) * p.heads_q + place.work.head_idx;
#pragma unroll
    for (int m = 0; m < kMBlocks; ++m) {
      const portable::Random4 random =
          dropout.bits(head_idx, (first_q() + warp_row) / 16 + m, (tile * C.tile_kv + j * 8) / 16, lane / 4, lane % 4);
#pragma unroll
      for (int word = 0; word < 4; ++word) {  // row word % 2, block word / 2
        float* pair = &s[m][j + word / 2][word % 2 * 2];
        if ((random.word[word] & 0xFFFF) < dropout.threshold) pair[0] = 0;
        if (random.word[word] >> 16 < dropout.threshold) pair[1] = 0;
      }
    }
  }

  // A key that no query of this tile sees must not count, whatever its value holds: 0 * NaN is NaN.
  __device__ __forceinline__ void clear_unseen_values() const {
    bool clears = false;
#pragma unroll
    for (int word = 0; word < kWords; ++word) {
      uint32_t seen = 0;
#pragma unroll
      for (int warp = 0; warp < C.num_warps; ++warp) seen |= ptx::load_word(s_seen(warp, word));
      constexpr int kLast = C.tile_kv % 32;
      const uint32_t unseen = ~seen & (kLast != 0 && word == kWords - 1 ? (1u << kLast) - 1 : ~0u);
      if (unseen == 0) continue;
      clears = true;
#pragma unroll 1
      for (int key = thread / 32; key < 32; key += C.num_warps) {
        if ((unseen >> key & 1) == 0) continue;
        for (int chunk = lane; chunk < TileV::kChunks; chunk += 32) {
          ptx::store_chunk(s_v() + TileV::offset(word * 32 + key, chunk), {0, 0, 0, 0});
        }
      }
    }
    if (clears) __syncthreads();
  }

  using OutputOfWarp = Output<C, C.tile_q, C.tile_q / C.num_warps, portable::tile_bytes(C)>;
  __device__ OutputOfWarp output() const {
    return {p, place.work, place.sequence, s_q, place.work.tile_idx * C.tile_q, lane, warp_row};
  }
};

template <ForwardConfig C>
__global__ void __launch_bounds__(C.num_warps * 32, C.blocks_per_sm)
    forward_sm80(const __grid_constant__ ForwardParams p) {
  using Block = ForwardSm80<C>;
  extern __shared__ __align__(128) char shared[];
  const Block block(p, shared);
  const auto& place = block.place;
  typename Block::Visited visited;
  int32_t tile = block.find_place(visited);
  if (tile < 0) return;
  __syncthreads();
  if (C.element == Element::f32 || p.scale < 0) {
    ptx::wait_copies<0>();
    __syncthreads();
    prepare_q<C.element, typename Block::TileQ, Block::kThreads>(block.s_q, block.thread, p.scale < 0);
  }

  const Score<C> score = block.score_of_place();
  const float scale_log2 = score.scale_log2();
  float o[Block::kMBlocks][Block::kBlocksV][4] = {};
  RowState rows[Block::kMBlocks];
  bool is_large = false;
  bool has_series = Score<C>::kHasSeries && p.softcap_limit > 0;  // serves so far

  const int32_t end = place.tiles.end;
  const int32_t full_begin = block.warp_tiles().full_begin, full_end = block.warp_tiles().full_end;
  while (tile < end) {
    ptx::wait_copies<0>();
    __syncthreads();  // k has landed for every thread, and all are done with the last v
    // Each product's first instructions come before the next copy's addresses are computed.
    const auto load_v = [&] {
      block.load_v(tile);
      ptx::commit_copies();
    };
    const bool is_full =
        Block::kLimitsShared ? block.warp_tiles().is_full(tile) : tile >= full_begin && tile < full_end;
    bool sees = is_full || block.warp_tiles().sees(tile);
    const bool has_bits = visited.is_partial(tile);
    if constexpr (C.mask == MaskLevel::bits) {
      if (has_bits) sees = block.store_bits(tile, sees, is_full);
    }
    typename Block::Scores s;
    if (sees) {
      float tile_max[Block::kMBlocks][2], least = 0;
      // Once; twice where the softcap's series turns out not to serve, for then products are needed again.
      for (bool is_first = true;; is_first = false) {
        block.scores(s, [&] {
          if (is_first) load_v();
        });
        if (has_series) {
          least = block.template modify<true>(s, score, tile);
        } else if constexpr (Block::kIsSmallText) {
          const Score<C> of_tile = block.score_of_place();  // not the loop's: a register less
          if (block.is_within(of_tile, tile)) {
            block.template modify<false, true>(s, of_tile, tile);
          } else {
            block.template modify<false>(s, of_tile, tile);
          }
        } else if constexpr (!Score<C>::kIsPlain) {
          block.template modify<false>(s, score, tile);
        }
        if (!is_full && !has_bits) block.mask(s, tile);
        if constexpr (C.mask == MaskLevel::bits) {
          if (has_bits) block.mask_bits(s);
        }
        find_max(s, tile_max);
        if (!has_series || block.series_serves(tile_max, least, score)) break;
        has_series = false;
      }
      update_max(tile_max, rows, scale_log2, kLag, is_large, [&](int m, const float(&factor)[2]) {
#pragma unroll
        for (int j = 0; j < Block::kBlocksV; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) o[m][j][i] *= factor[i / 2];
        }
      });
      if constexpr (Score<C>::kHasSeries) is_large = p.softcap > 0x1p19f;  // bounds them: a register less
      if (is_large) subtract_max(s, rows);
    } else {
      load_v();
    }
    ptx::wait_copies<0>();
    __syncthreads();  // v has landed for every thread, and all are done with k
    const int32_t next = block.after(visited, tile);
    const auto load_k = [&] {
      if (next < end) block.load_k(place.k, place.work, place.sequence, next);
      ptx::commit_copies();
    };
    if constexpr (C.mask == MaskLevel::bits) {
      if (has_bits) block.clear_unseen_values();
    }
    if (sees) {
      multiply_pv<C.element, typename Block::TileV, Block::kAhead>(o, s, block.s_v(), block.lane, [&](int j) {
        exponentiate(s, rows, scale_log2, is_large, j, j + 2);
        if constexpr (C.dropout) block.drop(s, tile, j);
        if (j == 0) load_k();
      });
    } else {
      load_k();
    }
    tile = next;
  }
  ptx::wait_copies<0>();
  const auto output = block.output();
  float by[Block::kMBlocks][2];
  output.finish_rows(rows, score.scale(), by);
  scale_rows(o, by);
  __syncthreads();  // every warp is done with q, k and v
  output.store(o);
}

}  // namespace tessella::device
