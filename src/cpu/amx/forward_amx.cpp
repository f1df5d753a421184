// Attention forward on AMX: S^T = K Q^T and O^T = V^T P^T in bf16 tiles, softmax between the tile steps in AVX-512.
//
//   for each wave of (batch, KV head) pairs whose packed K and V fit kPackedBytes
//     for each pair, every thread from a start of its own
//       pack     K tiles, V^T tiles                      in 256-key runs
//       compute  for chunk of keys (K, V: 512 KB of L2)  in work tiles: runs of 32-row query tiles
//                  for query tile of work tile                     O, m, l of all query tiles stay in L2 between chunks
//                    for unit, block of 32 keys          Pipeline (pipeline-inl.hpp)
//
// Threads that start at the same pair divide its packing and its work tiles, and move on when none is left. A thread
// then mostly reads from its own L2 what it has packed itself, and no thread waits for all others between packing and
// computing. Query tiles hold rows of all query heads of a KV head (query_tile.hpp), so K and V are packed and read
// once for a group. Chunks and units start at absolute keys and rows of a query tile are independent, so results do not
// depend on the number of threads.
#include "cpu/amx/forward_amx.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <string>
#include <thread>

// What the headers below TESSELLA_AMX_BEGIN include of other folders is included here first, at the baseline.
#include "core/cancel.hpp"
#include "core/message.hpp"
#include "core/plan.hpp"
#include "cpu/amx/target-inl.hpp"
#include "cpu/cpu_features.hpp"
#include "cpu/exp2.hpp"
#include "cpu/memory.hpp"
#include "cpu/parallel.hpp"
#include "cpu/query_tile.hpp"
#include "cpu/tile_map.hpp"
#include "cpu/vector/forward_vector.hpp"
#include "cpu/work_tiles.hpp"
#include "operations/attention/sequence.hpp"

#if defined(__x86_64__) && defined(__linux__)

#include <immintrin.h>

TESSELLA_AMX_BEGIN

#include "cpu/amx/forward_call-inl.hpp"
#include "cpu/amx/pack-inl.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::cpu {
namespace {

using namespace amx;

bool is_finite(const uint16_t* row, int64_t count) {
  return std::none_of(row, row + count, [](uint16_t x) { return (x & 0x7F80) == 0x7F80; });
}

// The rows of a block of keys: read in place, or gathered if they are in several pages.
class BlockRows {
 public:
  BlockRows(const core::AttentionArguments& p, const core::Operand& t, int64_t batch_idx, int64_t row, int64_t kv_head,
            int num_rows, int64_t dim) {
    const auto row_at = [&](int64_t i) { return elements(p.row_of(t, batch_idx, i, kv_head)); };
    first_ = row_at(row);
    stride_ = t.row_stride;
    if (!p.page_table || row / p.page_size == (row + num_rows - 1) / p.page_size) return;
    for (int i = 0; i < num_rows; ++i) std::copy_n(row_at(row + i), dim, together_ + i * dim);
    first_ = together_;
    stride_ = dim;
  }
  BlockRows(const BlockRows&) = delete;
  BlockRows& operator=(const BlockRows&) = delete;

  const uint16_t* operator[](int i) const { return first_ + i * stride_; }
  int64_t stride() const { return stride_; }

 private:
  const uint16_t* first_;
  int64_t stride_;
  uint16_t together_[kBlockKeys * kMaxHeadDim];
};

// Packs one block; rows of V that hold NaN or infinity and that no query sees become zero, since 0 * NaN is NaN.
void pack_block(const Call& call, const core::Sequence& s, int64_t kv_head, int64_t key, uint16_t* k, uint16_t* v,
                int64_t panel_stride) {
  const core::AttentionArguments& p = call.p;
  const int num_keys = static_cast<int>(std::min<int64_t>(kBlockKeys, s.len_kv - key));
  const int64_t row = s.row_kv + key;
  const BlockRows k_rows(p, p.k(), s.batch_idx, row, kv_head, num_keys, p.head_dim_qk);
  pack_k_block(k_rows[0], k_rows.stride(), num_keys, p.head_dim_qk, k);
  const BlockRows v_rows(p, p.v(), s.batch_idx, row, kv_head, num_keys, p.head_dim_v);
  uint32_t keys = lanes32(num_keys);
  if (pack_v_block(v_rows[0], v_rows.stride(), keys, p.head_dim_v, v, panel_stride)) return;
  for (int i = 0; i < num_keys; ++i) {
    if (!is_finite(v_rows[i], p.head_dim_v) && !call.map.is_seen(p, s, kv_head, key + i)) keys &= ~(uint32_t{1} << i);
  }
  pack_v_block(v_rows[0], v_rows.stride(), keys, p.head_dim_v, v, panel_stride);
}

// Units [unit_begin, unit_end) of a pair, as far as some query sees them.
void pack_units(const Call& call, int64_t pair, int64_t slot, int64_t unit_begin, int64_t unit_end) {
  const Layout& layout = call.layout;
  const int64_t kv_head = pair % call.p.heads_kv;
  const core::Sequence s = core::sequence(call.p, pair / call.p.heads_kv);
  if (s.len_q <= 0) return;
  const int64_t seen_begin = s.band.begin(0);
  const int64_t seen_end = s.band.end(s.len_q - 1);
  const int64_t blocks = layout.unit_keys / kBlockKeys;
  for (int64_t unit = unit_begin; unit < unit_end; ++unit) {
    uint16_t* k = call.k_tiles(slot) + unit * layout.k_unit;
    uint16_t* v = call.v_tiles(slot) + unit * layout.v_unit;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t key = unit * layout.unit_keys + block * kBlockKeys;
      if (key >= seen_end) return;
      if (key + kBlockKeys <= seen_begin && key >= call.p.keep_first) continue;
      if (!call.map.is_reached(s, kv_head, key / kBlockKeys)) continue;
      pack_block(call, s, kv_head, key, k + block * layout.qk_steps * kPairElements, v + block * kPairElements,
                 blocks * kPairElements);
    }
  }
}

// Rows [row_begin, row_begin + rows_per_work_tile) of a pair: queries, then rows that are none.
void run_work_tile(const Call& call, int64_t pair, int64_t slot, int64_t row_begin, int worker) {
  const core::AttentionArguments& p = call.p;
  const core::Sequence s = core::sequence(p, pair / p.heads_kv);
  const int64_t row_end = std::min(row_begin + call.layout.rows_per_work_tile, s.slots_q * p.group());
  const int64_t query_end = std::min(row_end, s.len_q * p.group());
  if (row_begin < query_end) {
    const auto attend = p.lse().data != nullptr ? &attend_rows<true> : &attend_rows<false>;
    attend(call, pair, slot, row_begin, query_end, worker);
  }
  const int64_t hidden_begin = std::max(row_begin, query_end);
  if (hidden_begin >= row_end) return;
  const WorkTile work_tile{s.batch_idx, pair % p.heads_kv, row_begin, row_end - row_begin};
  fill_hidden_rows(p, work_tile, hidden_begin, row_end);
}

// Rows of a packed tensor past its sequences.
void fill_rows_of_no_sequence(const core::AttentionArguments& p) {
  if (!p.cu_seqlens_q) return;
  const int64_t group = p.group();
  for (int64_t kv_head = 0; kv_head < p.heads_kv; ++kv_head) {
    const WorkTile work_tile{-1, kv_head, 0, 0};
    fill_hidden_rows(p, work_tile, p.cu_seqlens_q.at(0, p.batch) * group, p.total_q * group);
  }
}

// Packs the tasks that no other thread has taken, waits for the others, then computes work tiles in the same way.
void work_on_pair(const Call& call, int64_t pair, int64_t slot, int worker) {
  Progress& progress = call.progress[slot];
  const int64_t pack_tasks = call.pack_tasks();
  const int64_t work_tiles = call.num_work_tiles();
  if (progress.next_work_tile.load(std::memory_order_relaxed) >= work_tiles) return;
  for (int64_t task; (task = progress.next_pack.fetch_add(1, std::memory_order_relaxed)) < pack_tasks;) {
    call.end_if_cancelled();
    const int64_t unit = task * kPackUnits;
    pack_units(call, pair, slot, unit, std::min(unit + kPackUnits, call.layout.units));
    progress.packed.fetch_add(1, std::memory_order_release);
  }
  while (progress.packed.load(std::memory_order_acquire) < pack_tasks) {
    call.end_if_cancelled();
    std::this_thread::yield();
  }
  for (int64_t work_tile; (work_tile = progress.next_work_tile.fetch_add(1, std::memory_order_relaxed)) < work_tiles;) {
    call.end_if_cancelled();
    // Later rows first: under causal masks they see most.
    run_work_tile(call, pair, slot, (work_tiles - 1 - work_tile) * call.layout.rows_per_work_tile, worker);
  }
  _mm256_zeroupper();  // as the vector kernels do (forward-inl.hpp); wanted where functions are not inlined
}

void run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void*) {
  const core::AttentionArguments& p = core::attention(arguments);
  auto* base = static_cast<std::byte*>(workspace.scratch);
  Call call{p, Layout(p, plan.num_threads), TileMap(p, kAmxMap, base), {}};
  const Layout& l = call.layout;
  call.block = {l.qk_steps, l.v_panels, exponent_scale<float>(p), nullptr, nullptr};
  const VectorKernel<float>& vector = vector_kernel<float>(InstructionSet::avx512);
  if (needs_score_chain(p)) call.block.chain = vector.score_chain;
  if (p.features.has(core::Feature::dropout)) call.block.dropout = vector.dropout_chain;
  call.map.classify(p, runs_alone(p) ? 1 : plan.num_threads, vector.classify_tiles);
  call.packed = base + TileMap::bytes(p, kAmxMap);
  call.progress = reinterpret_cast<Progress*>(call.packed + l.packed_bytes);
  call.workers = call.packed + l.packed_bytes + l.progress_bytes;

  fill_rows_of_no_sequence(p);
  for (int64_t pair_begin = 0; pair_begin < l.pairs; pair_begin += l.wave_pairs) {
    const int64_t wave_pairs = std::min(l.wave_pairs, l.pairs - pair_begin);
    for (int64_t slot = 0; slot < wave_pairs; ++slot) new (&call.progress[slot]) Progress;
    const int64_t starts = std::min<int64_t>(plan.num_threads, wave_pairs * call.num_work_tiles());
    parallel_for(starts, plan.num_threads, p.cancel, [&](int64_t start, int worker) {
      for (int64_t step = 0; step < wave_pairs; ++step) {
        const int64_t slot = (start * wave_pairs / starts + step) % wave_pairs;
        work_on_pair(call, pair_begin + slot, slot, worker);
      }
    });
  }
}

}  // namespace
}  // namespace tessella::cpu

TESSELLA_AMX_END

namespace tessella::cpu {
namespace {

std::string unavailable(core::Device) {
  const std::string& reason = amx_bf16_unavailable();
  return reason.empty() ? vector_unavailable(InstructionSet::avx512) : reason;
}

core::WorkspaceSize workspace(const core::Shape& shape, int num_threads) {
  const Layout l(core::attention(shape), num_threads);
  return {.scratch_bytes = TileMap::bytes(core::attention(shape), kAmxMap) + l.packed_bytes + l.progress_bytes +
                           num_threads * l.worker_bytes};
}

std::string describe(const core::Plan& plan) {
  const Layout l(core::attention(plan.shape), plan.num_threads);
  return core::message("tiles: query tiles of ", kRows, " rows, work tiles of ", l.rows_per_work_tile, ", units of ",
                       l.unit_keys, " keys, chunks of ", l.chunk_units * l.unit_keys, "; ", l.wave_pairs,
                       " KV heads packed at a time");
}

}  // namespace

constinit const core::Kernel kForwardAmx = {
    .name = "cpu.forward_amx",
    .summary = "bf16 on AMX tiles, softmax between tile steps",
    .architectures = "amx",
    .dtypes = core::dtype_bit(core::DType::bf16),
    .max_head_dim = 512,
    .features = core::kCommonFeatures,
    .unavailable = unavailable,
    .offer = core::needs<workspace>,
    .threads = threads_for,
    .describe = describe,
    .run = run,
};

}  // namespace tessella::cpu

#endif
