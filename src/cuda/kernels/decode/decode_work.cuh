// The work of a cluster of decode's blocks: units, and the rounds of their keys.
//
// A unit is a sequence, a KV head and a tile of query rows. Its keys are cut into rounds
// (cuda/kernels/decode/params.cuh), of which it visits those that some row sees. Clusters split the visited rounds; the
// split of a cluster is a run of rounds:
//   without a schedule  p.unit_clusters clusters split each unit evenly, or at multiples of p.split_rounds.
//   with one            all rounds of all units form one line, unit after unit. Each cluster takes a piece of the line;
// all
//                       pieces have the same length, and a piece may end in the middle of a unit.
// Lengths may have changed since the schedule was made, so a unit's last split takes the remaining rounds. Whatever the
// schedule's memory holds, no access leaves the tensors, and the loop ends.
#pragma once

#include "cuda/device/tile/keys.cuh"
#include "cuda/device/tile/sequence.cuh"
#include "cuda/kernels/decode/params.cuh"

namespace tessella::device {

using portable::DecodeParams;

using Sequence32 = BandedSequence<int32_t>;  // lengths and bounds are below portable::kLongestDecode

// Rounds [0, keep_first_end), which hold the keys of keep_first, and [begin, end), counted in one line; keep_first_end
// <= begin <= end.
struct Rounds {
  int32_t keep_first_end = 0, begin = 0, end = 0;

  Rounds() = default;
  // The rounds, of 2^log2_keys keys each, that hold keys of [keys.begin, keys.end) or keys below keep_first.
  __device__ __forceinline__ Rounds(KeyRange keys, int32_t keep_first, int32_t log2_keys) {
    const auto ceil = [=](int32_t count) { return (count + (1 << log2_keys) - 1) >> log2_keys; };
    begin = keys.begin >> log2_keys;
    end = max(ceil(keys.end), begin);
    keep_first_end = min(ceil(min(keep_first, keys.end)), begin);
  }
  __device__ int32_t count() const { return keep_first_end + end - begin; }
  __device__ int32_t at(int32_t idx) const { return idx < keep_first_end ? idx : begin + idx - keep_first_end; }
  // How many of these rounds come before `round`.
  __device__ int32_t count_before(int32_t round) const {
    return min(round, keep_first_end) + max(0, min(round, end) - begin);
  }
};

// The keys and query rows of a cluster's work.
struct DecodeUnit {
  int32_t idx = 0;  // among all units
  int32_t batch_idx = 0, head_kv = 0, row_tile = 0;

  DecodeUnit() = default;
  __device__ __forceinline__ DecodeUnit(const DecodeParams& p, int32_t unit_idx) : idx(unit_idx) {
    const int32_t heads = p.row_tiles.quotient(idx);
    batch_idx = p.heads_kv.quotient(heads);
    head_kv = heads - batch_idx * p.heads_kv.value;
    row_tile = idx - heads * p.row_tiles.value;
  }
};
struct ClusterSplit {
  int32_t begin = 0, end = 0;       // indices among the unit's visited rounds
  int32_t idx = 0, of = 1;          // which split of the unit, of how many
  int32_t first_slot = 0;           // of split 0's result in memory,
  int32_t slot = 0, slot_step = 0;  // and of the results of later splits

  __device__ int32_t slot_of(int32_t split_idx) const {
    return split_idx == 0 ? first_slot : slot + split_idx * slot_step;
  }
};

// The work of one cluster: next_unit(), then split() with the rounds that the unit visits.
class DecodeWorks {
 public:
  __device__ __forceinline__ DecodeWorks(const DecodeParams& p, int32_t cluster_idx)
      : p_(p), cluster_idx_(cluster_idx) {
    if (p.schedule == nullptr) return;
    piece_rounds_ = clamp(p.schedule[0], 1, kLongestLine / p.pieces);
    at_ = cluster_idx * piece_rounds_;
    batch_idx_ = clamp(p.schedule[portable::kScheduleStarts + p.num_sequences + 1 + cluster_idx], 0, p.num_sequences);
  }

  // Finds the next unit. False if there is none.
  __device__ __forceinline__ bool next_unit(DecodeUnit& unit) {
    if (p_.schedule != nullptr) return next_of_line(unit);
    if (is_done_) return false;
    is_done_ = true;
    unit = DecodeUnit(p_, p_.unit_clusters.quotient(cluster_idx_));
    return true;
  }
  // Finds this cluster's rounds of the unit. False if the unit has fewer splits than clusters and leaves it none.
  __device__ __forceinline__ bool split(const DecodeUnit& unit, const Rounds& rounds, ClusterSplit& split) const {
    return p_.schedule != nullptr ? split_of_line(rounds, split) : split_of_unit(unit, rounds, split);
  }

 private:
  __device__ __forceinline__ bool split_of_unit(const DecodeUnit& unit, const Rounds& rounds,
                                                ClusterSplit& split) const {
    const auto ceil = [](int32_t count, int32_t size) { return (count + size - 1) / size; };
    split.idx = cluster_idx_ - unit.idx * p_.unit_clusters.value;
    split.first_slot = split.slot = unit.idx * p_.unit_clusters.value;
    split.slot_step = 1;
    if (p_.split_rounds > 0) {  // at multiples of split_rounds, whichever rounds are visited
      const int32_t size = p_.split_rounds;
      const int32_t keep_first_end = ceil(rounds.keep_first_end, size),
                    first = max(keep_first_end, rounds.begin / size);
      split.of = max(keep_first_end + max(0, ceil(rounds.end, size) - first), 1);
      const int32_t at = split.idx < keep_first_end ? split.idx : first + split.idx - keep_first_end;
      split.begin = rounds.count_before(at * size);
      split.end = rounds.count_before((at + 1) * size);
    } else if (p_.unit_clusters.value > 1) {
      const int32_t size = max((rounds.count() + p_.unit_clusters.value - 1) / p_.unit_clusters.value, 1);
      split.of = max(ceil(rounds.count(), size), 1);
      split.begin = split.idx * size;
      split.end = min(split.begin + size, rounds.count());
    } else {
      split.end = rounds.count();
    }
    return split.idx < split.of;
  }

  // On the line each unit starts with kUnitOverhead rounds, the cost of starting a unit.
  __device__ __forceinline__ bool next_of_line(DecodeUnit& unit) {
    const auto start = [this](int32_t idx) {
      return clamp(p_.schedule[portable::kScheduleStarts + idx], 0, kLongestLine);
    };
    const int32_t end = (cluster_idx_ + 1) * piece_rounds_, units = p_.heads_kv.value * p_.row_tiles.value;
    while (batch_idx_ < p_.num_sequences && at_ < end) {
      const int32_t first = start(batch_idx_), rounds = (start(batch_idx_ + 1) - first) / units;
      const int32_t of_batch = rounds <= portable::kUnitOverhead ? units : max(at_ - first, 0) / rounds;
      if (of_batch >= units) {
        ++batch_idx_;
        continue;
      }
      unit = DecodeUnit(p_, batch_idx_ * units + of_batch);
      begin_ = at_;
      from_ = first + of_batch * rounds + portable::kUnitOverhead;
      at_ = first + (of_batch + 1) * rounds;
      return end > from_;  // else only what comes before its first round is in this piece
    }
    return false;
  }
  __device__ __forceinline__ bool split_of_line(const Rounds& rounds, ClusterSplit& split) const {
    const int32_t end = (cluster_idx_ + 1) * piece_rounds_, count = rounds.count();
    const int32_t first_piece = min(from_ / piece_rounds_, cluster_idx_);
    const int32_t last_piece = clamp((at_ - 1) / piece_rounds_, cluster_idx_, p_.pieces - 1);
    split.idx = cluster_idx_ - first_piece;
    split.of = last_piece - first_piece + 1;
    split.begin = min(max(begin_ - from_, 0), count);
    split.end = split.idx == split.of - 1 ? count : min(end - from_, count);
    // A piece shares at most two units with other pieces: the one in which it begins and the one in which it ends.
    split.first_slot = 2 * first_piece + (first_piece * piece_rounds_ < from_ ? 1 : 0);
    split.slot = 2 * first_piece;
    split.slot_step = 2;
    return true;
  }

  static constexpr int32_t kLongestLine = 1 << 30;

  const DecodeParams& p_;
  int32_t cluster_idx_;
  bool is_done_ = false;
  // With a schedule: rounds of a piece; position on the line; current sequence; the unit's first round on the line; the
  // line position where this piece starts in the unit.
  int32_t piece_rounds_ = 0, at_ = 0, batch_idx_ = 0, from_ = 0, begin_ = 0;
};

}  // namespace tessella::device
