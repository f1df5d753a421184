// The schedule of ragged decoding: it cuts one line of all rounds into equal pieces (kernels/decode/decode_work.cuh).
// Only the GPU knows the lengths, so one block computes it. A model computes it once a step, and all its layers of one
// kind use it. (FlashMLA also cuts all requests as one line, with a constant for the start of each.)
#pragma once

#include "cuda/device/ptx/shared.cuh"
#include "cuda/kernels/decode/decode_work.cuh"

namespace tessella::device {

__global__ void __launch_bounds__(portable::kScheduleThreads) decode_schedule(const __grid_constant__ DecodeParams p) {
  constexpr int32_t kThreads = portable::kScheduleThreads;
  auto* rounds_of_thread = reinterpret_cast<int32_t*>(ptx::dynamic_shared());
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t units = p.heads_kv.value * p.row_tiles.value;
  int32_t* starts = p.schedule + portable::kScheduleStarts;
  int32_t* firsts = starts + p.num_sequences + 1;
  for (int32_t i = thread; i < p.pieces; i += kThreads) firsts[i] = p.num_sequences;  // past the line's end
  const int32_t num_counters = p.num_sequences * units * p.cluster;
  for (int32_t i = thread; i < num_counters; i += kThreads) p.arrived[i] = 0;

  // Each thread handles consecutive sequences.
  const int32_t own = (p.num_sequences + kThreads - 1) / kThreads;
  const int32_t begin = min(thread * own, p.num_sequences), end = min(begin + own, p.num_sequences);
  const auto length = [&](int32_t batch_idx) {
    const Sequence32 of = sequence<int32_t>(p.sequences, p.masks, batch_idx);
    const KeyRange keys = {row_keys(of, 0).begin, row_keys(of, max(of.len_q - 1, 0)).end};
    const int32_t count = of.len_q == 0 ? 0 : Rounds(keys, p.masks.keep_first, p.log2_round_keys).count();
    return units * (max(count, 1) + portable::kUnitOverhead);
  };
  int32_t sum = 0;
  for (int32_t i = begin; i < end; ++i) sum += length(i);
  rounds_of_thread[thread] = sum;
  __syncthreads();
  int32_t at = 0, all = 0;
  for (int32_t i = 0; i < kThreads; ++i) {
    if (i == thread) at = all;
    all += rounds_of_thread[i];
  }
  const int32_t piece = max((all + p.pieces - 1) / p.pieces, 1);
  if (thread == 0) {
    p.schedule[0] = piece;
    starts[p.num_sequences] = all;
  }
  for (int32_t i = begin; i < end; ++i) {
    starts[i] = at;
    const int32_t next = at + length(i);
    for (int32_t j = (at + piece - 1) / piece; j < p.pieces && j * piece < next; ++j) firsts[j] = i;
    at = next;
  }
}

}  // namespace tessella::device
