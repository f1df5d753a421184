// Drives pieces over threads, and hands the kernels out by instruction set.
#include "cpu/vector/decode_vector.hpp"

#include <algorithm>
#include <bit>
#include <new>

#include "core/message.hpp"
#include "cpu/cpu_features.hpp"
#include "cpu/memory.hpp"
#include "cpu/parallel.hpp"

namespace tessella::cpu {
namespace {

DecodeLayout layout_of(const core::AttentionShape& p) {
  constexpr int64_t kReals = kLineBytes / sizeof(float);
  constexpr int64_t kColumns = 32;  // of the widest block
  const auto splits = static_cast<uint64_t>(ceil_div(p.seqlen_kv, split_keys(p)));
  return {.rows = round_up(decode_unit_rows(p), kReals),
          .query_tiles = decode_unit_query_tiles(p),
          .q_stride = round_up(p.head_dim_qk, kColumns),
          .o_stride = round_up(p.head_dim_v, kColumns),
          .depth = static_cast<int64_t>(std::bit_width(splits)) + 2};
}

template <typename Real>
int64_t slot_reals(const core::AttentionShape& p) {
  const DecodeLayout layout = layout_of(p);
  return RowSums<Real>::reals(layout.rows, layout.o_stride);
}

// Scratch of all threads together.
template <typename Real>
struct SharedScratch {
  std::byte* units = nullptr;
  std::atomic<int32_t>* unfinished = nullptr;
  Real* slots = nullptr;
  int64_t bytes = 0;

  SharedScratch(const core::AttentionShape& p, int num_threads, std::byte* base) {
    Memory memory(base, bytes);
    memory.take(DecodeUnits::scratch_bytes(p), units);
    memory.take(DecodeUnits::most_units(p), unfinished);
    memory.take(DecodeUnits::most_slots(p, num_threads) * slot_reals<Real>(p), slots);
  }
};

}  // namespace

template <typename Real>
DecodeScratch<Real>::DecodeScratch(const core::AttentionShape& p, std::byte* base) : layout(layout_of(p)) {
  Memory memory(base, bytes);
  memory.take(layout.query_tiles, query_tiles);
  memory.take(layout.rows * layout.q_stride, q);
  memory.take(kQueryTileRows * kRunKeys, scores);
  memory.take(kTileKeys * kQueryTileRows, tile);
  memory.take(layout.o_stride, row);
  memory.take(2 * (kRunKeys + kMostAhead), keys);
  memory.take(kRunKeys + kMostAhead, values);
  if (p.features.has_any(core::kElementMasks)) memory.take(2 * layout.rows * kRunWords, words);
  memory.take(kRunKeys, key_scales);
  memory.take(kRunKeys, value_scales);
  memory.take(std::max(layout.q_stride, layout.o_stride) * static_cast<int64_t>(sizeof(Real)), zeros);
  memory.take(layout.depth * slot_reals<Real>(p), stack);
}

std::string decode_ineligible(const core::AttentionShape& p) {
  const core::DType cached = p.operands[core::Name::k].dtype;
  if (p.dtype() == core::DType::f64 && cached != core::DType::f64) {
    return core::message("does not compute k.dtype ", name(cached), " beside q.dtype f64");
  }
  if (cached == core::DType::i4 && (p.head_dim_qk % 2 != 0 || p.head_dim_v % 2 != 0)) {
    return core::message("takes k and v of i4 with even head dims, not ", p.head_dim_qk, " and ", p.head_dim_v);
  }
  // If no other vector kernel takes the call, the number of rows does not matter.
  if (cached != p.dtype() || std::max(p.head_dim_qk, p.head_dim_v) > kMaxHeadDim) return "";
  const bool is_few = p.query_class == core::QueryClass::few;
  if (p.batch_invariant && !is_few) {
    return "is for few queries, and batch_invariant without query_class few is for many";
  }
  const int64_t rows = p.seqlen_q * p.group();
  if (is_few) return "";
  // The other kernels' threads take whole rows: of few heads and sequences most would have none.
  const bool has_few_heads = p.batch * p.heads_kv <= kFewHeads && p.seqlen_kv > kManyKeys;
  const bool has_amx = p.dtype() == core::DType::bf16 && amx_bf16_unavailable().empty();
  const int64_t most = has_few_heads ? kMostDecodeRowsOfFewHeads : has_amx ? kMostDecodeRowsBesideAmx : kMostDecodeRows;
  if (rows <= most) return "";
  return core::message("takes at most ", most, " query rows of a KV head, and there may be ", rows, " (", p.seqlen_q,
                       p.seqlen_q == 1 ? " query" : " queries", " of ", p.group(), " heads)");
}

template <typename Real>
core::WorkspaceSize decode_workspace(const core::AttentionShape& shape, int num_threads) {
  return {.state_bytes = 0,
          .scratch_bytes = SharedScratch<Real>(shape, num_threads, nullptr).bytes +
                           num_threads * DecodeScratch<Real>(shape, nullptr).bytes};
}

template <typename Real>
void run_decode(InstructionSet set, const core::AttentionArguments& arguments, const core::Plan& plan,
                core::Workspace workspace) {
  auto* base = static_cast<std::byte*>(workspace.scratch);
  const SharedScratch<Real> shared(arguments, plan.num_threads, base);
  base += shared.bytes;
  const DecodeUnits units(arguments, plan.num_threads, shared.units);
  for (int64_t unit = 0; unit < units.num_units(); ++unit) {
    new (&shared.unfinished[unit]) std::atomic<int32_t>(units.pieces_of(unit));
  }
  const DecodeCall<Real> call{&arguments, &vector_kernel<Real>(set), split_keys(arguments), shared.slots,
                              shared.unfinished};
  const DecodeKernel<Real>& kernel = decode_kernel<Real>(set);
  const int64_t thread_bytes = DecodeScratch<Real>(arguments, nullptr).bytes;
  parallel_for(units.num_pieces(), units.num_threads(), arguments.cancel, [&](int64_t idx, int worker) {
    kernel.run_piece(call, units.piece(idx), DecodeScratch<Real>(arguments, base + worker * thread_bytes));
  });
}

template <typename Real>
const DecodeKernel<Real>& decode_kernel(InstructionSet set) {
  return of_set(set, decode_avx512<Real>, decode_avx2<Real>, decode_sse4<Real>, decode_baseline<Real>)();
}

#define TESSELLA_INSTANTIATE(Real)                                                                                     \
  template DecodeScratch<Real>::DecodeScratch(const core::AttentionShape&, std::byte*);                                \
  template core::WorkspaceSize decode_workspace<Real>(const core::AttentionShape&, int);                               \
  template void run_decode<Real>(InstructionSet, const core::AttentionArguments&, const core::Plan&, core::Workspace); \
  template const DecodeKernel<Real>& decode_kernel(InstructionSet)
TESSELLA_INSTANTIATE(float);
TESSELLA_INSTANTIATE(double);
#undef TESSELLA_INSTANTIATE

}  // namespace tessella::cpu
