// Attention of 32-query tiles as one stream of 32-key blocks, software-pipelined across blocks, units and query tiles.
//
//   slot of the stream     tile unit                                 vector unit
//   i                      S^T(i) = K Q^T                            P(i-1) = exp2(S(i-1) - m)
//                          O^T += V^T P^T of the unit before that    (interleaved between the tile steps)
//                          of block i-1, one slot's panels
//
// A unit is up to unit_blocks() blocks at an absolute multiple of keys: O^T tiles are loaded and stored once a unit.
// Neither knows where a query tile ends: the next query tile's S is computed while the last one's P and O are finished.
// Scores ring: 2 blocks. P ring: 2 units. A query tile's result depends on its own blocks only, not on its neighbours.
// Include inside a target region only (target-inl.hpp).
#pragma once

#include <algorithm>
#include <cstdint>

#include "cpu/amx/pack-inl.hpp"
#include "cpu/amx/softmax-inl.hpp"
#include "cpu/amx/tiles-inl.hpp"
#include "cpu/query_tile.hpp"

namespace tessella::cpu::amx {

// Blocks a unit: as many as V has panels, so that a slot does one panel; more would push P out of L1.
constexpr int unit_blocks(int v_panels) { return std::clamp(v_panels, 2, 4); }

// Data that is the same for all blocks of a call.
struct BlockContext {
  int qk_steps = 0;      // 32-dim steps of q.k
  int v_panels = 0;      // 32-dim panels of v
  float scale_log2 = 0;  // of what the chain leaves, where there is one
  ScoreChain<float> chain = nullptr;
  DropoutChain<float> dropout = nullptr;
};

struct QueryTileWork {
  QueryTile query_tile;
  SoftmaxState softmax;
  int64_t row_begin = 0;
  int64_t last_block = -1;  // of 32 keys, that some row sees
  uint16_t* q = nullptr;    // B tiles
  float* o = nullptr;       // C tiles
  bool o_live = false;      // o holds something
};

// Tile memory of a worker.
struct PipelineMemory {
  float* scores = nullptr;    // [2][kBlockFloats]
  uint16_t* probs = nullptr;  // [2][unit_blocks][kPairElements]
  float* dump = nullptr;      // 4 tiles: stores of accumulators that hold nothing
};

// A run of blocks of one query tile within a unit: blocks [block_begin, block_end) of the unit.
struct UnitWork {
  QueryTileWork* query_tile = nullptr;
  const uint16_t* v = nullptr;
  uint16_t* probs = nullptr;
  int block_begin = 0;
  int block_end = 0;
  bool last = false;  // of its query tile

  int size() const { return block_end - block_begin; }
};

// kQkSteps, kVPanels: compile-time copies of BlockContext's, or 0. kLse: LSE is wanted.
template <int kQkSteps, int kVPanels, bool kLse>
class Pipeline {
 public:
  // finish(query_tile) is called once the last unit of a query tile is in o.
  using Finish = void (*)(void* context, QueryTileWork& query_tile);

  Pipeline(const BlockContext& context, const PipelineMemory& memory, Finish finish, void* finish_context)
      : context_(context), memory_(memory), finish_(finish), finish_context_(finish_context) {
    drop_held();
  }

  // Blocks [block_begin, block_end) of the unit whose first key is unit_key; k, v: tiles of the unit.
  void push(QueryTileWork& query_tile, const uint16_t* k, const uint16_t* v, int64_t unit_key, int block_begin,
            int block_end, bool last) {
    const UnitWork unit{&query_tile, v,         memory_.probs + parity_ * blocks() * kPairElements,
                        block_begin, block_end, last};
    parity_ ^= 1;
    for (int block = block_begin; block < block_end; ++block) {
      float* scores = memory_.scores + (num_slots_++ & 1) * kBlockFloats;
      const uint16_t* k_block = k + int64_t{block} * steps() * kPairElements;
      bool steady = false;
      if constexpr (kVPanels > 0 && kVPanels % unit_blocks(kVPanels) == 0) {
        steady = is_steady();
        if (steady) steady_slot(k_block, query_tile.q, scores);
      }
      if (!steady) slot(k_block, query_tile.q, scores);
      finish_retired();
      if (block == block_begin) advance(unit);
      job_ = {scores, unit.probs + block * kPairElements, unit_key + block * kBlockKeys, block};
    }
  }

  // Completes everything pushed.
  void drain() {
    if (filling_.query_tile == nullptr) return;
    slot(nullptr, nullptr, nullptr);
    finish_retired();
    advance({});
    multiply_panels<false>(0, panels(), [] {});
    release_held();
    finish_retired();
    advance({});
    finish_retired();
  }

 private:
  struct Job {
    float* scores = nullptr;
    uint16_t* probs = nullptr;
    int64_t key_begin = 0;
    int block = 0;
  };

  int steps() const { return kQkSteps > 0 ? kQkSteps : context_.qk_steps; }
  int panels() const { return kVPanels > 0 ? kVPanels : context_.v_panels; }
  int blocks() const { return unit_blocks(panels()); }

  // Whole units in both stages: every count of the slot is known at compile time.
  bool is_steady() const {
    return filling_.size() == blocks() && draining_.size() == blocks() && context_.chain == nullptr &&
           context_.dropout == nullptr;
  }

  void drop_held() { held_.hold_quad(memory_.dump); }
  void release_held() {
    held_.release_all();
    drop_held();
    scores_held_ = false;
  }

  // The unit in the P.V stage is done, except for held tiles. The unit in the softmax stage moves up to the P.V stage.
  void advance(const UnitWork& next) {
    if (draining_.query_tile != nullptr) {
      draining_.query_tile->o_live = true;
      if (draining_.last) retired_ = draining_.query_tile;
    }
    draining_ = filling_;
    filling_ = next;
  }

  void finish_retired() {
    if (retired_ == nullptr) return;
    QueryTileWork* query_tile = retired_;
    retired_ = nullptr;
    finish_(finish_context_, *query_tile);
  }

  // S^T of a block; its tiles are held.
  template <typename Tick>
  [[gnu::always_inline]] void multiply_scores(const uint16_t* k, const uint16_t* q, float* scores, Tick&& tick) {
    first_tile_step(k, q, held_, tick);
    held_.hold(scores, scores + 16, scores + 16 * kRows, scores + 16 * kRows + 16, kRows * 4);
    scores_held_ = true;
    const int num_steps = steps();
#pragma GCC unroll 8
    for (int step = 1; step < num_steps; ++step) tile_step(k + step * kPairElements, q + step * kPairElements, tick);
  }

  // Panels [begin, end) of O^T += V^T P^T for the draining unit; the last one's tiles are held.
  template <bool kWholeUnit, typename Tick>
  [[gnu::always_inline]] void multiply_panels(int begin, int end, Tick&& tick) {
    const int block_begin = kWholeUnit ? 0 : draining_.block_begin;
    const int block_end = kWholeUnit ? unit_blocks(kVPanels) : draining_.block_end;
    const uint16_t* probs = draining_.probs;
#pragma GCC unroll 4
    for (int panel = begin; panel < end; ++panel) {
      const uint16_t* v = draining_.v + int64_t{panel} * blocks() * kPairElements;
      float* o = draining_.query_tile->o + panel * 4 * kTileFloats;
      if (draining_.query_tile->o_live) {
        resume_tile_step(v + block_begin * kPairElements, probs + block_begin * kPairElements, o, held_, tick);
      } else {
        first_tile_step(v + block_begin * kPairElements, probs + block_begin * kPairElements, held_, tick);
      }
      held_.hold_quad(o);
      scores_held_ = false;
#pragma GCC unroll 4
      for (int block = block_begin + 1; block < block_end; ++block) {
        tile_step(v + block * kPairElements, probs + block * kPairElements, tick);
      }
    }
  }

  // Computes scores of the next block, probabilities of the job, and a slot's panels of P.V. All counts are constants.
  [[gnu::noinline]] void steady_slot(const uint16_t* k, const uint16_t* q, float* next_scores) {
    constexpr int kPanels = kVPanels / unit_blocks(kVPanels);
    constexpr int kTicks = 4 * (kQkSteps + kVPanels);
    if (scores_held_) release_held();
    if (needs_prepare()) prepare();
    SoftmaxState& softmax = filling_.query_tile->softmax;
    SoftmaxRows<kLse> rows(softmax, job_.scores, job_.probs, context_.scale_log2);
    int ticks = 0;
    const auto tick = [&]() __attribute__((always_inline)) {
      rows.run(kPieces * ticks / kTicks, kPieces * (ticks + 1) / kTicks);
      ++ticks;
    };
    multiply_scores(k, q, next_scores, tick);
    multiply_panels<true>(job_.block * kPanels, (job_.block + 1) * kPanels, tick);
    end_block(rows);
  }

  // The same with counts known at run time; k null: no next block.
  [[gnu::noinline]] void slot(const uint16_t* k, const uint16_t* q, float* next_scores) {
    if (scores_held_) release_held();
    if (filling_.query_tile == nullptr) return multiply_scores(k, q, next_scores, [] {});
    const bool done = needs_prepare() && prepare();
    const int position = job_.block - filling_.block_begin;
    const int panel_begin = draining_.query_tile == nullptr ? 0 : position * panels() / filling_.size();
    const int panel_end = draining_.query_tile == nullptr ? 0 : (position + 1) * panels() / filling_.size();
    const int num_ticks = 4 * ((k == nullptr ? 0 : steps()) + (panel_end - panel_begin) * draining_.size());
    SoftmaxState& softmax = filling_.query_tile->softmax;
    SoftmaxRows<kLse> rows(softmax, job_.scores, job_.probs, context_.scale_log2);
    int piece = done ? kPieces : 0;
    int credit = 0;  // pieces due, in units of 1 / num_ticks
    const auto tick = [&]() __attribute__((always_inline)) {
      for (credit += kPieces; credit >= 2 * num_ticks && piece < kPieces; credit -= 2 * num_ticks, piece += 2) {
        rows.run(piece, piece + 2);
      }
    };
    if (k != nullptr) multiply_scores(k, q, next_scores, tick);
    multiply_panels<false>(panel_begin, panel_end, tick);
    for (; piece < kPieces; piece += 2) rows.run(piece, piece + 2);
    if (!done) end_block(rows);
  }

  bool needs_prepare() const {
    return filling_.query_tile->softmax.unset != 0 || is_special(filling_.query_tile->query_tile, job_.key_begin);
  }

  // True if the block needs prepare() for more than rows without a maximum.
  bool is_special(const QueryTile& query_tile, int64_t key) const {
    const bool inside = (key >= query_tile.full_begin || key + kBlockKeys <= query_tile.keep_end) &&
                        key + kBlockKeys <= query_tile.full_end;
    return !inside || context_.chain != nullptr || context_.dropout != nullptr;
  }

  // Masks, score chain, first maxima, dropout of the job. True if its probabilities are done too.
  [[gnu::noinline]] bool prepare() {
    QueryTileWork& work = *filling_.query_tile;
    const float scale_log2 = context_.scale_log2;
    const bool has_chain = context_.chain != nullptr;
    if (has_chain) {
      // Past the last key there is no bias or mask to read; the band hides what the chain left out.
      const int64_t left = work.query_tile.keys_end - job_.key_begin;
      const int64_t keys = left < 0 ? 0 : left < kBlockKeys ? left : kBlockKeys;
      const bool is_partial =
          keys > 0 && work.query_tile.class_of(job_.key_begin, job_.key_begin + keys) == TileClass::partial;
      context_.chain(work.query_tile, kRows, job_.scores, job_.key_begin, static_cast<int>(keys), is_partial);
      if (keys < kBlockKeys) hide_outside_band(work.query_tile, job_.scores, job_.key_begin);
    } else if (is_special(work.query_tile, job_.key_begin)) {
      hide_outside_band(work.query_tile, job_.scores, job_.key_begin);
    }
    if (work.softmax.unset != 0) set_first_maximum(work.softmax, job_.scores, scale_log2, has_chain);
    if (!has_chain && context_.dropout == nullptr) return false;
    raise_and_rescale(~uint32_t{0});
    if (has_chain) subtract_origins(work.softmax, job_.scores);
    if (context_.dropout == nullptr) return false;
    exponentiate_block(work.softmax, job_.scores, scale_log2);
    context_.dropout(work.query_tile, kRows, job_.scores, job_.key_begin, kBlockKeys);
    round_block(job_.scores, job_.probs);
    return true;
  }

  [[gnu::always_inline]] void end_block(const SoftmaxRows<kLse>& rows) {
    const uint32_t too_low = rows.too_low();
    if (__builtin_expect(too_low != 0, 0)) return raise_and_repeat(rows, too_low);  // a copy: rows stay in registers
    rows.finish(filling_.query_tile->softmax);
  }

  // Rare: the job's probabilities used maxima that are too low for these rows, none of which has an origin (rows with
  // origins raise their maxima before). Scores beyond 2^27 may exceed even the new maxima, because these are rounded,
  // but the sums of the neighbouring rows are needed.
  [[gnu::noinline, gnu::cold]] void raise_and_repeat(SoftmaxRows<kLse> rows, uint32_t too_low) {
    raise_and_rescale(too_low);
    for (int half = 0; half < 2; ++half) {
      if ((too_low >> (16 * half) & 0xFFFF) != 0) rows.repeat(filling_.query_tile->softmax, half);
    }
    rows.finish(filling_.query_tile->softmax);
  }

  // Brings everything accumulated for these rows of the job's query tile (sums, O, P not yet multiplied) to higher
  // maxima.
  void raise_and_rescale(uint32_t rows) {
    alignas(64) float factor[kRows];
    QueryTileWork& work = *filling_.query_tile;
    const bool has_origins = context_.chain != nullptr;
    const uint32_t raised = raise_maximum(work.softmax, job_.scores, context_.scale_log2, rows, has_origins, factor);
    if (raised == 0) return;
    release_held();  // tiles of O may be among them
    for (int half = 0; half < 2; ++half) {
      if ((raised >> half & 1) == 0) continue;
      const __m512 power = _mm512_load_ps(factor + 16 * half);
      if (work.o_live || draining_.query_tile == &work) {
        for (int i = 0; i < 2 * panels(); ++i) rescale_floats(work.o + (2 * i + half) * kTileFloats, power);
      }
      for (int block = filling_.block_begin; block < job_.block; ++block) {
        rescale_probs(filling_.probs + (2 * block + half) * kTileElements, power);
      }
      if (draining_.query_tile != &work) continue;
      for (int block = draining_.block_begin; block < draining_.block_end; ++block) {
        rescale_probs(draining_.probs + (2 * block + half) * kTileElements, power);
      }
    }
  }

  const BlockContext context_;
  const PipelineMemory memory_;
  const Finish finish_;
  void* const finish_context_;
  HeldTiles held_;
  bool scores_held_ = false;  // the held tiles are scores
  UnitWork filling_;          // in the softmax stage
  UnitWork draining_;         // in the P.V stage
  Job job_;
  QueryTileWork* retired_ = nullptr;  // its last tiles are held
  int parity_ = 0;
  int num_slots_ = 0;
};

}  // namespace tessella::cpu::amx
