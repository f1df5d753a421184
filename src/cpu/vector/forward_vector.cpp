// Drives work tiles over threads, and hands the kernels out by instruction set.
//
// Highway 1.0.3 knows no plain SSE2: the x86 baseline is one lane wide and only there so that every machine runs.
#include "cpu/vector/forward_vector.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/memory.hpp"
#include "cpu/parallel.hpp"
#include "hwy/targets.h"

namespace tessella::cpu {
namespace {

// Keys whose K and V rows fill about 256 KB of scratch.
template <typename Real>
int64_t chunk_keys(const core::AttentionShape& p) {
  const int64_t row_bytes = std::max(p.head_dim_qk, p.head_dim_v) * static_cast<int64_t>(sizeof(Real));
  const int64_t keys = row_bytes <= 256 ? 512 : row_bytes <= 512 ? 256 : row_bytes <= 1024 ? 128 : kTileKeys;
  return std::min(keys, round_up(std::max<int64_t>(p.seqlen_kv, 1), kTileKeys));
}

// The most query tiles whose Q and O fit about 1.1 MB: each chunk of K and V is converted once for all of them.
template <typename Real>
int most_query_tiles(const core::AttentionShape& p) {
  constexpr int64_t kReals = (1152 << 10) / sizeof(Real);
  const int64_t most = std::clamp<int64_t>(kReals / (kQueryTileRows * (p.head_dim_qk + p.head_dim_v)), 12, 48);
  const int64_t query_tiles = round_up(std::max<int64_t>(p.seqlen_q * p.group(), 1), kQueryTileRows) / kQueryTileRows;
  return static_cast<int>(std::min(query_tiles, most));
}

}  // namespace

bool runs_alone(const core::AttentionShape& p) {
  constexpr double kFlops = 1e6;
  const auto rows = static_cast<double>(p.features.has(core::Feature::packed_q) ? p.total_q : p.batch * p.seqlen_q);
  return 2.0 * rows * static_cast<double>(p.heads_q * p.seqlen_kv * (p.head_dim_qk + p.head_dim_v)) < kFlops;
}

template <typename Real>
VectorScratch<Real>::VectorScratch(const core::AttentionShape& p, std::byte* base) {
  const int64_t num_query_tiles = most_query_tiles<Real>(p);
  chunk_keys = cpu::chunk_keys<Real>(p);
  q_stride = kQueryTileRows * p.head_dim_qk;
  k_stride = round_up(p.head_dim_qk, 16);
  o_stride = round_up(p.head_dim_v, 16);
  Memory memory(base, bytes);
  memory.take(num_query_tiles, query_tiles);
  memory.take(num_query_tiles * q_stride, q);
  memory.take(num_query_tiles * kQueryTileRows * o_stride, o);
  memory.take(chunk_keys * k_stride, k);
  memory.take(chunk_keys * o_stride, v);
  memory.take(kTileKeys * kQueryTileRows, tile);
}

template <typename Real>
core::WorkspaceSize vector_workspace(const core::AttentionShape& shape, int num_threads) {
  const int64_t list = round_up(WorkTiles::scratch_bytes(shape, kQueryTileRows), kLineBytes);
  return {.state_bytes = 0,
          .scratch_bytes =
              TileMap::bytes(shape, kVectorMap) + list + num_threads * VectorScratch<Real>(shape, nullptr).bytes};
}

template <typename Real>
void run_vector(const VectorKernel<Real>& kernel, const core::AttentionArguments& arguments, const core::Plan& plan,
                core::Workspace workspace) {
  const int threads = runs_alone(arguments) ? 1 : plan.num_threads;
  auto* base = static_cast<std::byte*>(workspace.scratch);
  const TileMap map(arguments, kVectorMap, base);
  map.classify(arguments, threads, kernel.classify_tiles);
  base += TileMap::bytes(arguments, kVectorMap);
  const WorkTiles work_tiles(
      arguments, map, work_tile_rows(arguments, threads, kQueryTileRows, most_query_tiles<Real>(arguments)), base);
  base += round_up(WorkTiles::scratch_bytes(arguments, kQueryTileRows), kLineBytes);
  const int64_t thread_bytes = VectorScratch<Real>(arguments, nullptr).bytes;
  parallel_for(work_tiles.size(), threads, arguments.cancel, [&](int64_t idx, int worker) {
    kernel.run_work_tile(arguments, map, work_tiles[idx], VectorScratch<Real>(arguments, base + worker * thread_bytes));
  });
}

template <typename Real>
void end_rows(const QueryTileState<Real>& state, RowEnds<Real>& ends) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const core::AttentionArguments& p = *state.query_tile.arguments;
  const double keep_scale = dropout_of(p).keep_scale();
  for (int r = 0; r < state.query_tile.num_rows; ++r) {
    double top = double{state.origin[r]} * double{state.scale_log2} + double{state.offset[r]};
    double total = state.sum[r];
    double scale = 1;
    const double natural_sink = p.sink ? p.sink.at(0, state.query_tile.head[r]) : -kInfinity;
    if (total == 0) {
      ends.factor[r] = 0;
      ends.lse[r] = static_cast<Real>(natural_sink);
      continue;
    }
    if (top == -kInfinity) top = 0;  // a row of NaN
    const double sink = natural_sink / state.natural;
    if (sink != -kInfinity) {  // the larger of sink and maximum keeps both powers finite
      const double largest = std::max(top, sink);
      scale = std::exp2(top - largest);
      total = total * scale + std::exp2(sink - largest);
      top = largest;
    }
    ends.factor[r] = static_cast<Real>(scale / total * keep_scale);
    if (p.lse().data != nullptr) ends.lse[r] = static_cast<Real>((top + std::log2(total)) * state.natural);
  }
}

template <typename Real>
const VectorKernel<Real>& vector_kernel(InstructionSet set) {
  return of_set(set, forward_avx512<Real>, forward_avx2<Real>, forward_sse4<Real>, forward_baseline<Real>)();
}

std::string vector_unavailable(InstructionSet set) {
  if (vector_kernel<float>(set).run_work_tile == nullptr) return "not in this build";
  const auto supported = static_cast<uint64_t>(hwy::SupportedTargets());
  switch (set) {
    case InstructionSet::avx512: return supported & HWY_AVX3 ? "" : "the CPU lacks AVX-512 F, BW, CD, DQ or VL";
    case InstructionSet::avx2: return supported & HWY_AVX2 ? "" : "the CPU lacks AVX2, FMA, BMI2 or F16C";
    case InstructionSet::sse4: return supported & HWY_SSE4 ? "" : "the CPU lacks SSE4.2, AES or PCLMUL";
    case InstructionSet::baseline: break;
  }
  return "";
}

#define TESSELLA_INSTANTIATE(Real)                                                                        \
  template VectorScratch<Real>::VectorScratch(const core::AttentionShape&, std::byte*);                   \
  template core::WorkspaceSize vector_workspace<Real>(const core::AttentionShape&, int);                  \
  template void run_vector(const VectorKernel<Real>&, const core::AttentionArguments&, const core::Plan&, \
                           core::Workspace);                                                              \
  template void end_rows(const QueryTileState<Real>&, RowEnds<Real>&);                                    \
  template const VectorKernel<Real>& vector_kernel(InstructionSet)
TESSELLA_INSTANTIATE(float);
TESSELLA_INSTANTIATE(double);
#undef TESSELLA_INSTANTIATE

}  // namespace tessella::cpu
