// The rows of one work tile of forward_amx go through the pipeline.
//
// Include inside a target region only (target-inl.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "cpu/amx/forward_call-inl.hpp"
#include "cpu/amx/pack-inl.hpp"
#include "cpu/amx/pipeline-inl.hpp"
#include "cpu/query_tile.hpp"
#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"

namespace tessella::cpu::amx {
namespace {

// One work tile: rows of a pair, its worker's memory, and the pipeline that its query tiles go through.
class WorkTileRun {
 public:
  WorkTileRun(const Call& call, int64_t pair, int64_t slot, int64_t row_begin, int64_t row_end, int worker)
      : call_(call),
        sequence_(core::sequence(call.p, pair / call.p.heads_kv)),
        kv_head_(pair % call.p.heads_kv),
        slot_(slot),
        row_begin_(row_begin),
        row_end_(row_end) {
    std::byte* memory = call.workers + worker * call.layout.worker_bytes;
    memory_.scores = reinterpret_cast<float*>(memory);
    memory_.dump = memory_.scores + 2 * kBlockFloats;
    memory_.probs = reinterpret_cast<uint16_t*>(memory_.dump + 4 * kTileFloats);
    query_tiles_ =
        reinterpret_cast<std::byte*>(memory_.probs + 2 * (call.layout.unit_keys / kBlockKeys) * kPairElements);
  }

  template <bool kLse>
  void run() {
    const Layout& l = call_.layout;
    if (l.qk_steps == 2 && l.v_panels == 2) return run_pipeline<2, 2, kLse>();
    if (l.qk_steps == 3 && l.v_panels == 3) return run_pipeline<3, 3, kLse>();
    if (l.qk_steps == 4 && l.v_panels == 4) return run_pipeline<4, 4, kLse>();
    if (l.qk_steps == 8 && l.v_panels == 8) return run_pipeline<8, 8, kLse>();
    run_pipeline<0, 0, kLse>();
  }

 private:
  template <int kQkSteps, int kVPanels, bool kLse>
  void run_pipeline() {
    const TileScope tiles;
    Pipeline<kQkSteps, kVPanels, kLse> pipeline(
        call_.block, memory_,
        [](void* run, QueryTileWork& query_tile) { static_cast<WorkTileRun*>(run)->finish_query_tile(query_tile); },
        this);
    const Layout& l = call_.layout;
    const int num_query_tiles = static_cast<int>(ceil_div(row_end_ - row_begin_, kRows));
    const int64_t first_query = row_begin_ / call_.p.group();
    const int64_t last_query = (row_end_ - 1) / call_.p.group();
    const int64_t chunk_keys = l.chunk_units * l.unit_keys;
    const int64_t chunk_begin = call_.p.keep_first > 0 ? 0 : sequence_.band.begin(first_query) / chunk_keys;
    const int64_t chunk_end = std::max(ceil_div(sequence_.band.end(last_query), chunk_keys), chunk_begin + 1);
    for (int64_t chunk = chunk_begin; chunk < chunk_end; ++chunk) {
      call_.end_if_cancelled();
      for (int i = 0; i < num_query_tiles; ++i) {
        QueryTileWork& work = query_tile_work(i);
        if (chunk == chunk_begin) {
          if (!begin_query_tile(work, i)) {
            pipeline.drain();  // so that no query tile in flight uses the memory of this one
            finish_query_tile(work);
            continue;
          }
        }
        push_units(pipeline, work, chunk * l.chunk_units, (chunk + 1) * l.chunk_units);
      }
    }
    pipeline.drain();
  }

  // Units [unit_begin, unit_end) as far as rows of the query tile see them.
  template <typename SomePipeline>
  void push_units(SomePipeline& pipeline, QueryTileWork& work, int64_t unit_begin, int64_t unit_end) {
    const Layout& l = call_.layout;
    const QueryTile& query_tile = work.query_tile;
    const int64_t blocks = l.unit_keys / kBlockKeys;
    // Blocks [0, keep) and [begin, end).
    const int64_t keep = ceil_div(query_tile.keep_end, kBlockKeys);
    const int64_t begin = std::max<int64_t>(keep, query_tile.keys_begin / kBlockKeys);
    const int64_t end = std::max(begin, ceil_div(query_tile.keys_end, kBlockKeys));
    const int64_t last = work.last_block;
    // Blocks [from, to) as far as they are in the unit, and runs of those that element masks do not hide.
    const auto push = [&](int64_t unit, int64_t from, int64_t to) {
      from = std::max<int64_t>(from - unit * blocks, 0);
      to = std::min<int64_t>(to - unit * blocks, blocks);
      const auto is_hidden = [&](int64_t block) { return hides_block(query_tile, unit * blocks + block); };
      for (int64_t stop; from < to; from = stop) {
        stop = from + 1;
        if (is_hidden(from)) continue;
        while (stop < to && !is_hidden(stop)) ++stop;
        pipeline.push(work, call_.k_tiles(slot_) + unit * l.k_unit, call_.v_tiles(slot_) + unit * l.v_unit,
                      unit * l.unit_keys, static_cast<int>(from), static_cast<int>(stop),
                      unit * blocks + stop == last + 1);
      }
    };
    for (int64_t unit = unit_begin; unit < std::min(unit_end, last / blocks + 1); ++unit) {
      if (begin == keep) {
        push(unit, 0, end);
      } else {
        push(unit, 0, keep);
        push(unit, begin, end);
      }
    }
  }

  static bool hides_block(const QueryTile& query_tile, int64_t block) {
    return query_tile.hides(block * kBlockKeys, (block + 1) * kBlockKeys);
  }

  QueryTileWork& query_tile_work(int i) const {
    return *reinterpret_cast<QueryTileWork*>(query_tiles_ +
                                             i % call_.layout.num_query_tiles * call_.layout.query_tile_bytes);
  }

  // False if no row of the query tile sees a key.
  bool begin_query_tile(QueryTileWork& work, int i) const {
    const core::AttentionArguments& p = call_.p;
    work.row_begin = row_begin_ + int64_t{i} * kRows;
    work.q =
        reinterpret_cast<uint16_t*>(reinterpret_cast<std::byte*>(&work) + ceil_div(sizeof(QueryTileWork), 64) * 64);
    work.o = reinterpret_cast<float*>(work.q + call_.layout.q_elements);
    work.o_live = false;
    work.softmax.reset();
    const int num_rows = static_cast<int>(std::min<int64_t>(kRows, row_end_ - work.row_begin));
    fill_query_tile(work.query_tile, p, sequence_, kv_head_, work.row_begin, num_rows, kRows);
    if (work.query_tile.keys_begin >= work.query_tile.keys_end && work.query_tile.keep_end <= 0) return false;
    work.query_tile.classes = call_.map.classes(sequence_, kv_head_, work.row_begin / kRows);
    work.query_tile.tile_keys = kBlockKeys;
    work.last_block = ceil_div(work.query_tile.keys_end, kBlockKeys) - 1;
    while (work.last_block >= 0 && hides_block(work.query_tile, work.last_block)) --work.last_block;
    if (work.last_block < 0) return false;
    const uint16_t* rows[kRows];
    for (int r = 0; r < kRows; ++r) {
      rows[r] =
          elements(p.q().row(sequence_.batch_idx, sequence_.row_q + work.query_tile.query[r], work.query_tile.head[r]));
    }
    pack_q(rows, p.head_dim_qk, work.q);
    return true;
  }

  // Divides by the sum, includes the sink, applies dropout's factor, and writes out and lse.
  void finish_query_tile(QueryTileWork& work) const {
    const core::AttentionArguments& p = call_.p;
    SoftmaxState& softmax = work.softmax;
    alignas(64) float factor[kRows];
    std::byte* rows[kRows];
    const bool wants_lse = p.lse().data != nullptr;
    if (softmax.unset != 0) softmax.unset = softmax.unseen();
    for (int r = 0; r < kRows; ++r) factor[r] = 1 / (softmax.sum[0][r] + softmax.sum[1][r]);
    for (int r = 0; r < work.query_tile.num_rows; ++r) {
      const int64_t row_q = sequence_.row_q + work.query_tile.query[r];
      rows[r] = p.out().row(sequence_.batch_idx, row_q, work.query_tile.head[r]);
      if (!wants_lse && !p.sink) continue;
      const float lse = finish_row(softmax, r, p.sink ? p.sink.at(0, work.query_tile.head[r]) : -INFINITY, factor[r]);
      if (wants_lse) std::memcpy(p.lse().row(sequence_.batch_idx, row_q, work.query_tile.head[r]), &lse, sizeof lse);
    }
    const auto keep_scale = static_cast<float>(dropout_of(p).keep_scale());
    for (float& row : factor) row *= keep_scale;
    store_o(work.o, factor, ~softmax.unset, p.head_dim_v, work.query_tile.num_rows, p.out().dtype, rows);
  }

  // LSE of row r with its sink (natural units) in the sum; factor becomes 1 / sum.
  float finish_row(const SoftmaxState& softmax, int r, float sink, float& factor) const {
    if (softmax.unset >> r & 1) return sink;
    const double maximum =  // log2 units
        double{softmax.origin[r]} * double{call_.block.scale_log2} - double{softmax.offset[r]};
    const double sink_log2 = static_cast<double>(sink) * static_cast<double>(kLog2E<float>);  // fp32 might overflow
    const double top = sink_log2 > maximum ? sink_log2 : maximum;
    const float weight = std::exp2(static_cast<float>(maximum - top));
    const float sink_weight = std::exp2(static_cast<float>(sink_log2 - top));
    factor = weight / ((softmax.sum[0][r] + softmax.sum[1][r]) * weight + sink_weight);
    const float sum = (softmax.exact[0][r] + softmax.exact[1][r]) * weight + sink_weight;
    return static_cast<float>(top / static_cast<double>(kLog2E<float>) + static_cast<double>(std::log(sum)));
  }

  const Call& call_;
  const core::Sequence sequence_;
  const int64_t kv_head_;
  const int64_t slot_;  // of the pair in the packed wave
  const int64_t row_begin_, row_end_;
  PipelineMemory memory_;
  std::byte* query_tiles_;
};

}  // namespace

template <bool kLse>
void attend_rows(const Call& call, int64_t pair, int64_t slot, int64_t row_begin, int64_t row_end, int worker) {
  WorkTileRun(call, pair, slot, row_begin, row_end, worker).run<kLse>();
}

}  // namespace tessella::cpu::amx
