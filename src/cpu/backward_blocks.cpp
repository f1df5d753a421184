#include "cpu/backward_blocks.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <thread>

#include "core/cancel.hpp"
#include "core/message.hpp"
#include "cpu/memory.hpp"
#include "cpu/parallel.hpp"
#include "cpu/vector/forward_vector.hpp"

namespace tessella::cpu {
namespace {

using core::AttentionArguments;
using core::AttentionShape;
using core::Feature;
using core::Gradient;
using core::Name;
using core::Sequence;

constexpr int64_t kRowsPerTask = 512;               // of the passes over rows, which only read and write them
constexpr int64_t kSumsPerTask = int64_t{1} << 16;  // that are set to zero

int64_t all_rows(const AttentionShape& p) {
  return (p.features.has(Feature::packed_q) ? p.total_q : p.batch * p.seqlen_q) * p.group();
}

// A thread that spins leaves the core to its twin.
void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Rows [begin, end) of a KV head of each sequence in turn: fn(sequence, kv_head, begin, end).
template <typename Fn>
void for_each_rows(const AttentionArguments& p, int num_threads, Fn&& fn) {
  const int64_t most = ceil_div(std::max<int64_t>(p.seqlen_q, 1) * p.group(), kRowsPerTask);
  parallel_for(p.batch * p.heads_kv * most, num_threads, p.cancel, [&](int64_t task, int) {
    const Sequence s = core::sequence(p, task / most / p.heads_kv);
    const int64_t begin = task % most * kRowsPerTask;
    const int64_t end = std::min(begin + kRowsPerTask, s.len_q * p.group());
    if (begin < end) fn(s, task / most % p.heads_kv, begin, end);
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
      if (idx * shared.tiling.block_keys >= core::sequence(p, b).len_kv) continue;
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
  const int64_t rows = entries(to.q_stride, ceil_div(to.queries, kQueryTileRows));
  const int64_t columns = entries(to.kv_stride, ceil_div(to.keys, kTileKeys));
  parallel_for(batch * heads * rows * columns, num_threads, p.cancel, [&](int64_t task, int worker) {
    const int64_t column = task % columns, row = task / columns % rows;
    const int64_t head = task / columns / rows % heads, b = task / columns / rows / heads;
    kernel.run_bias(p, b, head, row * kQueryTileRows, column * kTileKeys, shared, scratch + worker * thread_bytes);
  });
}

// Pieces of work that saw the caller's flag have ended without a result.
template <typename Real>
void end_if_over(const BackwardShared<Real>& shared) {
  if (shared.is_over->load(std::memory_order_relaxed) != 0) throw core::Cancelled();
}

// A query's term of d_sink: exp(sink - LSE) (dLSE - dO . out).
double sink_term(const AttentionArguments& p, const Sequence& s, int64_t head, int64_t i, double delta) {
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
          sum += gradient == Gradient::d_sink ? sink_term(p, s, head, i, shared.delta[at])
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
BackwardShared<Real>::BackwardShared(const AttentionShape& p, const BackwardTiling& of_kernel, std::byte* base)
    : tiling(of_kernel), rows(all_rows(p)), query_tiles(rows / tiling.query_tile_rows + p.batch + 1) {
  const int64_t keys = p.features.has(Feature::packed_kv) ? p.total_kv : p.batch * p.seqlen_kv;
  if (p.operands[Name::dq].dtype != core::DType::none) {
    dq_count = p.heads_kv * (tiling.pads_query_tiles ? query_tiles * tiling.query_tile_rows : rows) * tiling.qk_stride;
  }
  Memory memory(base, bytes);
  memory.take(keys / tiling.block_keys + p.batch + 1, blocks);
  memory.take(p.heads_kv * query_tiles, turn);
  memory.take(p.heads_kv * rows, lse);
  memory.take(p.heads_kv * rows, delta);
  memory.take(p.heads_kv * rows, slope);
  if (dq_count > 0) memory.take(dq_count, dq);
  memory.take(1, is_over);
  bytes += TileMap::bytes(p, tiling.map());
}

template <typename Real>
void QueryTileRows<Real>::begin(const RowData<Real>& rows, const std::byte** q, const std::byte** d_out) {
  constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
  const AttentionArguments& p = *query_tile.arguments;
  const Sequence& s = *query_tile.sequence;
  for (int r = 0; r < lanes; ++r) {
    const bool is_idle = r >= query_tile.num_rows || rows.lse[r] == kInfinity;
    const int64_t row = s.row_q + query_tile.query[r], head = query_tile.head[r];
    q[r] = is_idle ? nullptr : p.q().row(s.batch_idx, row, head);
    d_out[r] = is_idle ? nullptr : p.tensors[Name::d_out].row(s.batch_idx, row, head);
    lse[r] = is_idle ? kInfinity : rows.lse[r];
    delta[r] = is_idle ? 0 : rows.delta[r];
    slope[r] = 0;
  }
}

template <typename Real>
bool is_over(const AttentionArguments& p, const BackwardShared<Real>& shared) {
  if (shared.is_over->load(std::memory_order_relaxed) != 0) return true;
  if (!core::is_cancelled(p.cancel)) return false;
  shared.is_over->store(1, std::memory_order_relaxed);
  return true;
}

template <typename Real>
bool wait_for_turn(const std::atomic<int32_t>& turn, int32_t expected, const AttentionArguments& p,
                   const BackwardShared<Real>& shared) {
  for (int spins = 0; turn.load(std::memory_order_acquire) != expected; ++spins) {
    if (is_over(p, shared)) return false;
    if (spins < 256) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
  return true;
}

template <typename Real>
std::string describe_backward(const BackwardKernel<Real>& kernel, const AttentionShape& shape, int num_threads) {
  const BackwardTiling tiling = kernel.tiling(shape);
  return core::message("blocks of ", tiling.block_keys, " keys, query tiles of ", tiling.query_tile_rows, " rows, ",
                       threads_string(num_threads));
}

template <typename Real>
core::WorkspaceSize backward_workspace(const BackwardKernel<Real>& kernel, const AttentionShape& shape,
                                       int num_threads) {
  return {.scratch_bytes = BackwardShared<Real>(shape, kernel.tiling(shape), nullptr).bytes +
                           num_threads * kernel.scratch_bytes(shape)};
}

template <typename Real>
void run_backward(const BackwardKernel<Real>& kernel, const AttentionArguments& p, const core::Plan& plan,
                  core::Workspace workspace) {
  auto* base = static_cast<std::byte*>(workspace.scratch);
  const int threads = runs_alone(p) ? 1 : plan.num_threads;
  BackwardShared<Real> shared(p, kernel.tiling(p), base);
  new (shared.is_over) std::atomic<int32_t>(0);
  base += shared.bytes;
  shared.map = TileMap(p, shared.tiling.map(), base - TileMap::bytes(p, shared.tiling.map()));
  shared.map.classify(p, threads, kernel.classify_tiles);
  const int64_t thread_bytes = kernel.scratch_bytes(p);
  for (int64_t i = 0; i < p.heads_kv * shared.query_tiles; ++i) new (shared.turn + i) std::atomic<int32_t>(0);
  zero_unused_rows(p);
  parallel_for(ceil_div(shared.dq_count, kSumsPerTask), threads, p.cancel, [&](int64_t task, int) {
    const int64_t begin = task * kSumsPerTask;
    std::fill(shared.dq + begin, shared.dq + std::min(begin + kSumsPerTask, shared.dq_count), Real{0});
  });
  for_each_rows(p, threads, [&](const Sequence& s, int64_t kv_head, int64_t begin, int64_t end) {
    kernel.begin_rows(p, s, kv_head, begin, end, shared);
  });
  // A block waits for those before it, which have begun, as tasks begin in order. Only blocks themselves read the
  // caller's flag: one that never ran would be waited for.
  const int64_t blocks = p.wants_scores() ? list_blocks(p, shared) : 0;
  parallel_for(blocks * p.heads_kv, threads, nullptr, [&](int64_t task, int worker) {
    kernel.run_block(p, shared.blocks[task / p.heads_kv], task % p.heads_kv, shared, base + worker * thread_bytes);
  });
  end_if_over(shared);
  if (p.wants(Name::dq)) {
    for_each_rows(p, threads, [&](const Sequence& s, int64_t kv_head, int64_t begin, int64_t end) {
      kernel.end_rows(p, s, kv_head, begin, end, shared);
    });
  }
  if (p.d_bias.data != nullptr) run_all_bias(kernel, p, threads, shared, base, thread_bytes);
  end_if_over(shared);
  sum_heads(p, shared);
}

#define TESSELLA_INSTANTIATE(Real)                                                                          \
  template void QueryTileRows<Real>::begin(const RowData<Real>&, const std::byte**, const std::byte**);     \
  template bool is_over(const AttentionArguments&, const BackwardShared<Real>&);                            \
  template bool wait_for_turn(const std::atomic<int32_t>&, int32_t, const AttentionArguments&,              \
                              const BackwardShared<Real>&);                                                 \
  template std::string describe_backward(const BackwardKernel<Real>&, const AttentionShape&, int);          \
  template core::WorkspaceSize backward_workspace(const BackwardKernel<Real>&, const AttentionShape&, int); \
  template void run_backward(const BackwardKernel<Real>&, const AttentionArguments&, const core::Plan&, core::Workspace)
TESSELLA_INSTANTIATE(float);
TESSELLA_INSTANTIATE(double);
#undef TESSELLA_INSTANTIATE

}  // namespace tessella::cpu
