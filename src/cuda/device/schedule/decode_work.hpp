// What a cluster of decode's blocks works on: units, and which rounds of their keys.
//
// A unit is a sequence, a KV head and a tile of query rows. Its keys are cut in rounds (portable/decode_params.hpp), of
// which it visits those that some row sees. They are split over clusters, each of which has a part, a run of rounds:
//   without a schedule  every unit has p.parts clusters. Its rounds are cut evenly, or at multiples of p.split_rounds.
//   with one            all rounds of all units lie on one line, unit after unit, and each cluster has a piece of it of
//                       the same length, which may end in the middle of a unit.
// Lengths may have changed since a schedule was made: the last part of a unit takes what is left. Whatever stands in
// its memory, nothing leaves the tensors and the walk ends.
#pragma once

#include "cuda/device/schedule/sequence.hpp"
#include "cuda/device/tile/keys.hpp"
#include "portable/decode_params.hpp"

namespace tessella::device {

using portable::DecodeParams;

// Rounds [0, kept) and [begin, end), counted in one line; kept <= begin <= end.
struct Rounds {
  int32_t kept = 0, begin = 0, end = 0;

  __device__ int32_t count() const { return kept + end - begin; }
  __device__ int32_t at(int32_t idx) const { return idx < kept ? idx : begin + idx - kept; }
  // Of these, those below a round.
  __device__ int32_t count_before(int32_t round) const {
    return min(round, kept) + max(0, min(round, end) - begin);
  }
};

// Rounds with keys that rows of queries [first, last] see.
__device__ __forceinline__ Rounds rounds_of(const BandedSequence<int64_t>& sequence, int32_t first, int32_t last,
                                            int32_t round_keys) {
  if (sequence.len_q == 0) return {};
  const auto begin = row_keys(sequence, first).begin, end = row_keys(sequence, last).end;
  const auto ceil = [=](int32_t keys) { return (keys + round_keys - 1) / round_keys; };
  Rounds rounds;
  rounds.begin = begin / round_keys;
  rounds.end = max(ceil(end), rounds.begin);
  rounds.kept = min(ceil(min(static_cast<int32_t>(sequence.band.keep_first), end)), rounds.begin);
  return rounds;
}

struct DecodeUnit {
  int32_t batch_idx, head_kv, row_tile;
  int32_t idx;  // of all
};

// Query rows of a unit: those of the sequence's queries, from first_row on.
struct UnitRows {
  int32_t first_row = 0, num_rows = 0;

  UnitRows() = default;
  __device__ UnitRows(const DecodeParams& p, const Sequence& sequence, int32_t row_tile)
      : first_row(row_tile * p.rows),
        num_rows(clamp(sequence.len_q * p.forward.group.value - first_row, 0, p.rows)) {}
  __device__ int32_t query(const DecodeParams& p, int32_t row) const {
    return p.forward.group.quotient(first_row + min(row, max(num_rows, 1) - 1));
  }
};

struct DecodeWork {
  DecodeUnit unit;
  BandedSequence<int64_t> sequence;
  UnitRows rows;
  Rounds rounds;
  int32_t begin, end;        // of the rounds, as count() counts them
  int32_t part, num_parts;   // of the unit
  int32_t first_slot, slot, slot_step;  // of the results of part 0, and of those behind it

  __device__ int32_t slot_of(int32_t of_part) const { return of_part == 0 ? first_slot : slot + of_part * slot_step; }
};

__device__ __forceinline__ DecodeUnit decode_unit(const DecodeParams& p, int32_t idx) {
  const int32_t heads = p.row_tiles.quotient(idx);
  const int32_t batch_idx = p.heads_kv.quotient(heads);
  return {batch_idx, heads - batch_idx * p.heads_kv.value, idx - heads * p.row_tiles.value, idx};
}
__device__ __forceinline__ DecodeWork begin_work(const DecodeParams& p, int32_t unit_idx, int32_t round_keys) {
  const DecodeUnit unit = decode_unit(p, unit_idx);
  const auto of = sequence(p.forward, unit.batch_idx);
  const UnitRows rows(p, of, unit.row_tile);
  const Rounds rounds =
      rows.num_rows == 0 ? Rounds{} : rounds_of(of, rows.query(p, 0), rows.query(p, rows.num_rows - 1), round_keys);
  return {unit, of, rows, rounds, 0, rounds.count(), 0, 1, 0, 0, 0};
}

inline constexpr int32_t kLongestLine = 1 << 30;

// The work of one cluster.
class DecodeWorks {
 public:
  __device__ DecodeWorks(const DecodeParams& p, int32_t cluster_idx, int32_t round_keys)
      : p_(p), cluster_idx_(cluster_idx), round_keys_(round_keys) {
    if (p.schedule == nullptr) return;
    piece_rounds_ = clamp(p.schedule[0], 1, kLongestLine / p.pieces);
    at_ = cluster_idx * piece_rounds_;
    const int32_t* firsts = p.schedule + portable::kScheduleStarts + p.sequences + 1;
    batch_idx_ = clamp(firsts[cluster_idx], 0, p.sequences);
    units_ = p.heads_kv.value * p.row_tiles.value;
  }

  // False if there is no more.
  __device__ __forceinline__ bool next(DecodeWork& work) {
    return p_.schedule == nullptr ? next_of_unit(work) : next_of_line(work);
  }

 private:
  __device__ __forceinline__ bool next_of_unit(DecodeWork& work) {
    if (is_done_) return false;
    is_done_ = true;
    const int32_t unit_idx = p_.parts.quotient(cluster_idx_), part = cluster_idx_ - unit_idx * p_.parts.value;
    work = begin_work(p_, unit_idx, round_keys_);
    const Rounds& rounds = work.rounds;
    const auto parts_of = [](int32_t count, int32_t size) { return (count + size - 1) / size; };
    if (p_.split_rounds > 0) {  // at multiples of it, whatever is visited
      const int32_t size = p_.split_rounds;
      const int32_t kept = parts_of(rounds.kept, size), first = max(kept, rounds.begin / size);
      work.num_parts = max(kept + max(0, parts_of(rounds.end, size) - first), 1);
      const int32_t split = part < kept ? part : first + part - kept;
      work.begin = rounds.count_before(split * size);
      work.end = rounds.count_before((split + 1) * size);
    } else {
      const int32_t size = max(parts_of(rounds.count(), p_.parts.value), 1);
      work.num_parts = max(parts_of(rounds.count(), size), 1);
      work.begin = part * size;
      work.end = min(work.begin + size, rounds.count());
    }
    work.part = part;
    work.first_slot = work.slot = unit_idx * p_.parts.value;
    work.slot_step = 1;
    return part < work.num_parts;
  }

  // A unit begins with kUnitOverhead rounds for what it takes to begin.
  __device__ __forceinline__ bool next_of_line(DecodeWork& work) {
    const auto start = [this](int32_t idx) {
      return clamp(p_.schedule[portable::kScheduleStarts + idx], 0, kLongestLine);
    };
    const int32_t end = (cluster_idx_ + 1) * piece_rounds_;
    while (batch_idx_ < p_.sequences && at_ < end) {
      const int32_t first = start(batch_idx_), rounds = (start(batch_idx_ + 1) - first) / units_;
      const int32_t of_batch = rounds <= portable::kUnitOverhead ? units_ : max(at_ - first, 0) / rounds;
      if (of_batch >= units_) {
        ++batch_idx_;
        continue;
      }
      const int32_t unit_idx = batch_idx_ * units_ + of_batch;
      const int32_t from = first + of_batch * rounds + portable::kUnitOverhead, until = first + (of_batch + 1) * rounds;
      const int32_t begin = at_;
      at_ = until;
      if (end <= from) return false;  // only what comes before its first round is in this piece
      work = begin_work(p_, unit_idx, round_keys_);
      const int32_t first_piece = min(from / piece_rounds_, cluster_idx_);
      const int32_t last_piece = clamp((until - 1) / piece_rounds_, cluster_idx_, p_.pieces - 1);
      work.part = cluster_idx_ - first_piece;
      work.num_parts = last_piece - first_piece + 1;
      const bool is_last = work.part == work.num_parts - 1;
      const int32_t count = work.rounds.count();
      work.begin = min(max(begin - from, 0), count);
      work.end = is_last ? count : min(end - from, count);
      // A piece has at most two units that others have too: the one in which it begins, and that in which it ends.
      work.first_slot = 2 * first_piece + (first_piece * piece_rounds_ < from ? 1 : 0);
      work.slot = 2 * first_piece;
      work.slot_step = 2;
      return true;
    }
    return false;
  }

  const DecodeParams& p_;
  int32_t cluster_idx_, round_keys_;
  bool is_done_ = false;
  int32_t piece_rounds_ = 0, at_ = 0, batch_idx_ = 0, units_ = 0;
};

}  // namespace tessella::device
