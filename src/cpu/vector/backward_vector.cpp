// Compiles backward-inl.hpp once per instruction set and drives its items over threads.
#include "cpu/vector/backward_vector.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_AVX3_DL | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/vector/backward_vector.cpp"
#include "hwy/foreach_target.h"  // must come before all that includes highway.h

#include "cpu/vector/backward-inl.hpp"
#include "hwy/highway.h"

#if HWY_ONCE

#include "core/cancel.hpp"
#include "core/sequence.hpp"
#include "cpu/parallel.hpp"

namespace tessella::cpu {
namespace {

using core::AttentionArguments;
using core::AttentionShape;
using core::Feature;
using core::Gradient;
using core::Name;
using core::Sequence;

constexpr int64_t kRowsPerItem = 512;  // of the passes over rows, which only read and write them

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t round_up(int64_t value, int64_t multiple) { return ceil_div(value, multiple) * multiple; }

// K, V and their gradients fill about half a megabyte.
template <typename Real>
int64_t block_keys(const AttentionShape& p) {
  const int64_t row_bytes = std::max(p.head_dim_qk, p.head_dim_v) * static_cast<int64_t>(sizeof(Real));
  return row_bytes <= 256 ? 256 : row_bytes <= 512 ? 128 : kTileKeys;
}

int64_t all_rows(const AttentionShape& p) {
  return (p.features.has(Feature::packed_q) ? p.total_q : p.batch * p.seqlen_q) * p.group();
}

// Hands out memory; a null base only counts.
class Memory {
 public:
  Memory(std::byte* base, int64_t& bytes) : base_(base), bytes_(bytes) {}
  template <typename T>
  void take(int64_t count, T*& pointer) {
    pointer = base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += round_up(count * static_cast<int64_t>(sizeof(T)), 64);
  }

 private:
  std::byte* base_;
  int64_t& bytes_;
};

// Rows [begin, end) of a KV head of each sequence in turn: fn(sequence, kv_head, begin, end).
template <typename Fn>
void for_each_rows(const AttentionArguments& p, int num_threads, Fn&& fn) {
  const int64_t most = ceil_div(std::max<int64_t>(p.seqlen_q, 1) * p.group(), kRowsPerItem);
  parallel_for(p.batch * p.heads_kv * most, num_threads, p.cancel, [&](int64_t item, int) {
    const Sequence s = core::sequence(p, item / most / p.heads_kv);
    const int64_t begin = item % most * kRowsPerItem;
    const int64_t end = std::min(begin + kRowsPerItem, s.len_q * p.group());
    if (begin < end) fn(s, item / most % p.heads_kv, begin, end);
  });
}

// Zeros in rows of a gradient that are of no query or key, [begin, end) of the tensor.
void zero_rows(const AttentionArguments& p, Name name, Gradient gradient, int64_t batch_idx, int64_t begin,
               int64_t end) {
  const core::Operand& to = p.tensors[name];
  if (to.data == nullptr || p.accumulates(gradient)) return;
  const int64_t heads = name == Name::dq ? p.heads_q : p.heads_kv;
  const int64_t dim = name == Name::dv ? p.head_dim_v : p.head_dim_qk;
  for (int64_t row = begin; row < end; ++row) {
    for (int64_t head = 0; head < heads; ++head) {
      std::memset(to.row(batch_idx, row, head), 0, static_cast<size_t>(core::bytes_of(to.dtype, dim)));
    }
  }
}

void zero_unused_rows(const AttentionArguments& p) {
  const auto keys = [&](int64_t b, int64_t begin, int64_t end) {
    zero_rows(p, Name::dk, Gradient::dk, b, begin, end);
    zero_rows(p, Name::dv, Gradient::dv, b, begin, end);
  };
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = core::sequence(p, b);
    zero_rows(p, Name::dq, Gradient::dq, b, s.row_q + s.len_q, s.row_q + s.slots_q);
    const int64_t first = s.row_kv - s.slot_kv;
    const int64_t slots = p.cu_seqlens_kv ? p.cu_seqlens_kv.at(0, b + 1) - p.cu_seqlens_kv.at(0, b) : p.seqlen_kv;
    keys(b, first, s.row_kv);
    keys(b, s.row_kv + s.len_kv, first + slots);
  }
  if (p.cu_seqlens_q) zero_rows(p, Name::dq, Gradient::dq, 0, p.cu_seqlens_q.at(0, p.batch), p.total_q);
  if (p.cu_seqlens_kv) keys(0, p.cu_seqlens_kv.at(0, p.batch), p.total_kv);
}

template <typename Real>
int64_t list_blocks(const AttentionArguments& p, const BackwardShared<Real>& shared) {
  int64_t count = 0;
  bool are_more = true;
  for (int32_t idx = 0; are_more; ++idx) {
    are_more = false;
    for (int64_t b = 0; b < p.batch; ++b) {
      if (idx * shared.block_keys >= core::sequence(p, b).len_kv) continue;
      shared.blocks[count++] = {static_cast<int32_t>(b), idx};
      are_more = true;
    }
  }
  return count;
}

template <typename Real>
void run_all_bias(const BackwardKernel<Real>& kernel, const AttentionArguments& p, int num_threads,
                  const BackwardShared<Real>& shared, std::byte* scratch, int64_t thread_bytes) {
  const core::ScoreGradient& to = p.d_bias;
  const auto entries = [](int64_t stride, int64_t size) { return stride == 0 ? 1 : size; };
  const int64_t batch = entries(to.batch_stride, p.batch), heads = entries(to.head_stride, p.heads_q);
  const int64_t rows = entries(to.q_stride, ceil_div(to.queries, kStripRows));
  const int64_t columns = entries(to.kv_stride, ceil_div(to.keys, kTileKeys));
  parallel_for(batch * heads * rows * columns, num_threads, p.cancel, [&](int64_t item, int worker) {
    const int64_t column = item % columns, row = item / columns % rows;
    const int64_t head = item / columns / rows % heads, b = item / columns / rows / heads;
    kernel.run_bias(p, b, head, row * kStripRows, column * kTileKeys, shared,
                    BackwardScratch<Real>(p, scratch + worker * thread_bytes));
  });
}

// Pieces of work that saw the caller's flag have ended without a result.
template <typename Real>
void end_if_over(const BackwardShared<Real>& shared) {
  if (shared.is_over->load(std::memory_order_relaxed) != 0) throw core::Cancelled();
}

// A query's part of d_sink: exp(sink - LSE) (dLSE - dO . out).
double sink_part(const AttentionArguments& p, const Sequence& s, int64_t head, int64_t i, double delta) {
  const double lse = load_lse(p.lse(), s.batch_idx, s.row_q + i, head);
  if (lse == -std::numeric_limits<double>::infinity()) return 0;
  return -std::exp(static_cast<double>(p.sink.at(0, head)) - lse) * delta;
}

// d_sink and d_alibi_slopes of each head, in double: sums over queries, in order.
template <typename Real>
void sum_heads(const AttentionArguments& p, const BackwardShared<Real>& shared) {
  for (const auto& [to, gradient] :
       {std::pair{&p.d_sink, Gradient::d_sink}, {&p.d_alibi_slopes, Gradient::d_alibi_slopes}}) {
    const int64_t entries = to->data == nullptr ? 0 : to->batch_stride == 0 ? 1 : p.batch;
    for (int64_t entry = 0; entry < entries * p.heads_q; ++entry) {
      const int64_t head = entry % p.heads_q, first_batch = entry / p.heads_q;
      double sum = 0;
      for (int64_t b = first_batch; b < (to->batch_stride == 0 ? p.batch : first_batch + 1); ++b) {
        const Sequence s = core::sequence(p, b);
        const int64_t first = head / p.group() * shared.rows + shared.first_row(p, s) + head % p.group();
        for (int64_t i = 0; i < s.len_q; ++i) {
          const int64_t at = first + i * p.group();
          sum += gradient == Gradient::d_sink ? sink_part(p, s, head, i, shared.delta[at])
                                              : -static_cast<double>(shared.slope[at]);
        }
      }
      std::byte* at = to->data + core::bytes_of(to->dtype, to->index(first_batch, head, 0, 0));
      float was = 0;
      if (p.accumulates(gradient)) std::memcpy(&was, at, sizeof was);
      const auto value = static_cast<float>(was + sum);
      std::memcpy(at, &value, sizeof value);
    }
  }
}

}  // namespace

template <typename Real>
BackwardShared<Real>::BackwardShared(const AttentionShape& p, std::byte* base)
    : block_keys(cpu::block_keys<Real>(p)),
      rows(all_rows(p)),
      strips(rows / kStripRows + p.batch + 1),
      qk_stride(round_up(p.head_dim_qk, 16)) {
  const int64_t keys = p.features.has(Feature::packed_kv) ? p.total_kv : p.batch * p.seqlen_kv;
  Memory memory(base, bytes);
  memory.take(keys / block_keys + p.batch + 1, blocks);
  memory.take(p.heads_kv * strips, turn);
  memory.take(p.heads_kv * rows, delta);
  memory.take(p.heads_kv * rows, slope);
  if (p.operands[Name::dq].dtype != core::DType::none) memory.take(p.heads_kv * rows * qk_stride, dq);
  memory.take(1, is_over);
}

template <typename Real>
BackwardScratch<Real>::BackwardScratch(const AttentionShape& p, std::byte* base)
    : qk_stride(round_up(p.head_dim_qk, 16)), v_stride(round_up(p.head_dim_v, 16)) {
  const int64_t keys = cpu::block_keys<Real>(p);
  Memory memory(base, bytes);
  memory.take(p.head_dim_qk * kStripRows, q_transposed);
  memory.take(p.head_dim_v * kStripRows, d_out_transposed);
  memory.take(kStripRows * qk_stride, q);
  memory.take(kStripRows * v_stride, d_out);
  memory.take(kStripRows * qk_stride, dq);
  memory.take(keys * qk_stride, k);
  memory.take(keys * v_stride, v);
  memory.take(keys * qk_stride, dk);
  memory.take(keys * v_stride, dv);
  memory.take(kTileKeys * kStripRows, probs);
  memory.take(kTileKeys * kStripRows, d_scores);
  if (p.features.has(Feature::softcap)) memory.take(kTileKeys * kStripRows, products);
  if (p.features.has(Feature::dropout)) memory.take(kTileKeys * kStripRows, kept);
}

template <typename Real>
const BackwardKernel<Real>& backward_kernel(InstructionSet set) {
#define TESSELLA_BACKWARD_KERNEL(target) \
  { &target::begin_rows<Real>, &target::run_block<Real>, &target::end_rows<Real>, &target::run_bias<Real> }
  static constexpr BackwardKernel<Real> kBaseline = {
      &HWY_STATIC_DISPATCH(begin_rows<Real>), &HWY_STATIC_DISPATCH(run_block<Real>),
      &HWY_STATIC_DISPATCH(end_rows<Real>), &HWY_STATIC_DISPATCH(run_bias<Real>)};
  static constexpr BackwardKernel<Real> kNone;
  switch (set) {
    case InstructionSet::avx512: {
#if HWY_TARGETS & HWY_AVX3
      static constexpr BackwardKernel<Real> kAvx512 = TESSELLA_BACKWARD_KERNEL(N_AVX3);
      return kAvx512;
#else
      return kNone;
#endif
    }
    case InstructionSet::avx2: {
#if HWY_TARGETS & HWY_AVX2
      static constexpr BackwardKernel<Real> kAvx2 = TESSELLA_BACKWARD_KERNEL(N_AVX2);
      return kAvx2;
#else
      return kNone;
#endif
    }
    case InstructionSet::sse4: {
#if HWY_TARGETS & HWY_SSE4
      static constexpr BackwardKernel<Real> kSse4 = TESSELLA_BACKWARD_KERNEL(N_SSE4);
      return kSse4;
#else
      return kNone;
#endif
    }
    case InstructionSet::baseline: return kBaseline;
  }
  return kNone;
#undef TESSELLA_BACKWARD_KERNEL
}

template <typename Real>
core::WorkspaceSize backward_workspace(const AttentionShape& shape, int num_threads) {
  return {.scratch_bytes =
              BackwardShared<Real>(shape, nullptr).bytes + num_threads * BackwardScratch<Real>(shape, nullptr).bytes};
}

template <typename Real>
void run_backward(const BackwardKernel<Real>& kernel, const AttentionArguments& p, const core::Plan& plan,
                  core::Workspace workspace) {
  auto* base = static_cast<std::byte*>(workspace.scratch);
  const int threads = runs_alone(p) ? 1 : plan.num_threads;
  const BackwardShared<Real> shared(p, base);
  new (shared.is_over) std::atomic<int32_t>(0);
  base += shared.bytes;
  const int64_t thread_bytes = BackwardScratch<Real>(p, nullptr).bytes;
  for (int64_t i = 0; i < p.heads_kv * shared.strips; ++i) new (shared.turn + i) std::atomic<int32_t>(0);
  zero_unused_rows(p);
  for_each_rows(p, threads, [&](const Sequence& s, int64_t kv_head, int64_t begin, int64_t end) {
    kernel.begin_rows(p, s, kv_head, begin, end, shared);
  });
  const bool wants_operands = p.tensors[Name::dq].data != nullptr || p.tensors[Name::dk].data != nullptr ||
                              p.tensors[Name::dv].data != nullptr || p.d_alibi_slopes.data != nullptr;
  // A block waits for those before it, which have begun, as items begin in order. Only blocks themselves read the
  // caller's flag: one that never ran would be waited for.
  const int64_t blocks = wants_operands ? list_blocks(p, shared) : 0;
  parallel_for(blocks * p.heads_kv, threads, nullptr, [&](int64_t item, int worker) {
    kernel.run_block(p, shared.blocks[item / p.heads_kv], item % p.heads_kv, shared,
                     BackwardScratch<Real>(p, base + worker * thread_bytes));
  });
  end_if_over(shared);
  if (p.tensors[Name::dq].data != nullptr) {
    for_each_rows(p, threads, [&](const Sequence& s, int64_t kv_head, int64_t begin, int64_t end) {
      kernel.end_rows(p, s, kv_head, begin, end, shared);
    });
  }
  if (p.d_bias.data != nullptr) run_all_bias(kernel, p, threads, shared, base, thread_bytes);
  end_if_over(shared);
  sum_heads(p, shared);
}

#define TESSELLA_INSTANTIATE(Real)                                                    \
  template BackwardShared<Real>::BackwardShared(const AttentionShape&, std::byte*);   \
  template BackwardScratch<Real>::BackwardScratch(const AttentionShape&, std::byte*); \
  template const BackwardKernel<Real>& backward_kernel(InstructionSet);               \
  template core::WorkspaceSize backward_workspace<Real>(const AttentionShape&, int);  \
  template void run_backward(const BackwardKernel<Real>&, const AttentionArguments&, const core::Plan&, core::Workspace)
TESSELLA_INSTANTIATE(float);
TESSELLA_INSTANTIATE(double);
#undef TESSELLA_INSTANTIATE

}  // namespace tessella::cpu

#endif  // HWY_ONCE
