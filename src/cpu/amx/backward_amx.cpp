// Gradients on AMX: the blocks of backward_blocks.hpp with products of bf16 tiles, P and dS in AVX-512 between them.
//
//   for each tile of 32 keys of the block       S^T  = K Q^T      dP^T = V dO^T        32 keys x 64 rows, fp32
//                                               P^T, dS^T                              differentiate_tile(), to bf16
//                                               dV  += P^T dO     dK   += dS^T Q       sums of the block, fp32
//   in the block's turn at the query tile            dQ^T += K^T dS^T                       sums of the call, fp32
//
// Every product has its operands as tiles: K, V and K^T are packed once a block, Q, dO and both transposed once a query
// tile and block. P^T and dS^T are A tiles as they lie, and dS^T with two keys in a dword is a B tile, so nothing is
// transposed in between. dQ's sums stay transposed in C tiles until all blocks have added to them.
#include "cpu/amx/backward_amx.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "core/message.hpp"
#include "cpu/amx/target-inl.hpp"
#include "cpu/backward_blocks.hpp"
#include "cpu/cpu_features.hpp"
#include "cpu/memory.hpp"
#include "cpu/parallel.hpp"
#include "cpu/vector/backward_vector.hpp"

#if defined(__x86_64__) && defined(__linux__)

#include <immintrin.h>

TESSELLA_AMX_BEGIN

#include "cpu/amx/pack-inl.hpp"
#include "cpu/amx/tiles-inl.hpp"
#include "operations/attention/arguments.hpp"

namespace tessella::cpu {
namespace {

using namespace amx;
using core::AttentionArguments;
using core::AttentionShape;
using core::Name;

constexpr int kQueryTile = 64;  // rows
constexpr int kHalf = 32;       // rows of a pair of B tiles
constexpr int kKeys = 32;       // of a tile
constexpr int kBlockTiles = 8;

// A quarter of a megabyte of sums, and half as much of K, V and K^T.
int64_t block_keys(const AttentionShape& p) {
  const int64_t dim = std::max(p.head_dim_qk, p.head_dim_v);
  return dim <= 64 ? kBlockTiles * kKeys : dim <= 128 ? 128 : 64;
}

BackwardTiling tiling(const AttentionShape& p) {
  return {block_keys(p), kQueryTile, round_up(p.head_dim_qk, kStepDims), true, kKeys};
}

// Scratch of one thread. Steps and panels are 32 dims; "pairs" are two tiles of kTileElements.
struct AmxScratch {
  uint16_t* k = nullptr;                 // [key tile][step] pairs: A of S^T
  uint16_t* v = nullptr;                 // [key tile][panel] pairs: A of dP^T
  uint16_t* k_transposed = nullptr;      // [key tile][step] pairs: A of dQ^T
  float* dk = nullptr;                   // [key tile][step] quads
  float* dv = nullptr;                   // [key tile][panel] quads
  uint16_t* q_transposed = nullptr;      // [half][step] pairs: B of S^T
  uint16_t* d_out_transposed = nullptr;  // [half][panel] pairs: B of dP^T
  uint16_t* q = nullptr;                 // [step][half] pairs: B of dK
  uint16_t* d_out = nullptr;             // [panel][half] pairs: B of dV
  BackwardTile<float> tile;              // [kKeys][rows]
  uint16_t* probs = nullptr;             // [half] pairs: A of dV
  uint16_t* d_scores = nullptr;          // [half] pairs: A of dK
  uint16_t* d_scores_pairs = nullptr;    // [half][key tile] pairs: B of dQ^T
  float* dump = nullptr;                 // a quad: stores of accumulators that hold nothing
  int steps, panels;
  int64_t half_pairs;  // elements of a half in d_scores_pairs
  int64_t bytes = 0;

  AmxScratch(const AttentionShape& p, std::byte* base)
      : steps(static_cast<int>(ceil_div(p.head_dim_qk, kStepDims))),
        panels(static_cast<int>(ceil_div(p.head_dim_v, kStepDims))) {
    const int64_t key_tiles = block_keys(p) / kKeys, halves = kQueryTile / kHalf;
    half_pairs = key_tiles * kPairElements;
    Memory memory(base, bytes);
    memory.take(key_tiles * steps * kPairElements, k);
    memory.take(key_tiles * panels * kPairElements, v);
    memory.take(key_tiles * steps * kPairElements, k_transposed);
    memory.take(key_tiles * steps * kQuadFloats, dk);
    memory.take(key_tiles * panels * kQuadFloats, dv);
    memory.take(halves * steps * kPairElements, q_transposed);
    memory.take(halves * panels * kPairElements, d_out_transposed);
    memory.take(halves * steps * kPairElements, q);
    memory.take(halves * panels * kPairElements, d_out);
    tile.take(memory, p, kKeys * kQueryTile);
    memory.take(halves * kPairElements, probs);
    memory.take(halves * kPairElements, d_scores);
    memory.take(halves * half_pairs, d_scores_pairs);
    memory.take(kQuadFloats, dump);
  }
};

int64_t scratch_bytes(const AttentionShape& p) {
  return std::max(AmxScratch(p, nullptr).bytes,
                  vector_scratch_bytes<float>(p));  // run_bias is that of the vector kernel
}

// Products of tiles; a product's sums are stored while the next one runs, or by release().
class Products {
 public:
  explicit Products(float* dump) : dump_(dump) { held_.hold_quad(dump); }

  // C = A B: 32 rows of 32 floats, `stride` apart.
  void multiply(const uint16_t* a, const uint16_t* b, int steps, float* c, int64_t stride) {
    first_tile_step(a, b, held_, [] {});
    held_.hold(c, c + 16, c + 16 * stride, c + 16 * stride + 16, stride * 4);
    for (int step = 1; step < steps; ++step) tile_step(a + step * kPairElements, b + step * kPairElements, [] {});
  }

  // C += A B for a quad; step i has pair a_of(i) and pair i of b.
  template <typename AOf>
  void add(AOf&& a_of, const uint16_t* b, int steps, float* c) {
    resume_tile_step(a_of(0), b, c, held_, [] {});
    held_.hold_quad(c);
    for (int step = 1; step < steps; ++step) tile_step(a_of(step), b + step * kPairElements, [] {});
  }

  void release() {
    held_.release_all();
    held_.hold_quad(dump_);
  }

 private:
  float* dump_;
  HeldTiles held_;
};

// K, V and K^T of the block. Rows of K that hold NaN or infinity and that no query sees become zero in K^T, since
// 0 * NaN is NaN; P and dS of a hidden key are 0 whatever its products are.
void pack_block(const BlockWork<float>& block, const TileMap& map, const AmxScratch& scratch) {
  const AttentionArguments& p = block.p;
  for (int64_t key = block.key_begin, tile = 0; key < block.key_end; key += kKeys, ++tile) {
    const int num_keys = static_cast<int>(std::min<int64_t>(kKeys, block.key_end - key));
    const auto row = [&](const core::Operand& t, int64_t i) {
      return elements(t.row(block.s.batch_idx, block.s.row_kv + key + i, block.kv_head));
    };
    pack_k_block(row(p.k(), 0), p.k().row_stride, num_keys, p.head_dim_qk,
                 scratch.k + tile * scratch.steps * kPairElements);
    pack_k_block(row(p.v(), 0), p.v().row_stride, num_keys, p.head_dim_v,
                 scratch.v + tile * scratch.panels * kPairElements);
    if (!block.wants.dq) continue;
    uint16_t* transposed = scratch.k_transposed + tile * scratch.steps * kPairElements;
    uint32_t keys = lanes32(num_keys);
    if (pack_v_block(row(p.k(), 0), p.k().row_stride, keys, p.head_dim_qk, transposed, kPairElements)) continue;
    for (int i = 0; i < num_keys; ++i) {
      if (!map.is_seen(p, block.s, block.kv_head, key + i)) keys &= ~(uint32_t{1} << i);
    }
    pack_v_block(row(p.k(), 0), p.k().row_stride, keys, p.head_dim_qk, transposed, kPairElements);
  }
}

// q and dO of the query tile's rows: transposed, for products with K and V, and pairs of rows, for dK and dV.
void pack_query_tile(QueryTileRows<float>& of, const RowData<float>& data, const Wanted& wants,
                     const AmxScratch& scratch) {
  static constexpr uint16_t kZeros[kMaxHeadDim] = {};
  const AttentionArguments& p = *of.query_tile.arguments;
  const std::byte* addresses[2][kMaxQueryTileRows];
  of.begin(data, addresses[0], addresses[1]);
  const uint16_t* rows[2][kMaxQueryTileRows];
  for (int operand = 0; operand < 2; ++operand) {
    for (int r = 0; r < of.lanes; ++r) {
      rows[operand][r] = addresses[operand][r] == nullptr ? kZeros : elements(addresses[operand][r]);
    }
  }
  const int halves = of.lanes / kHalf;
  for (int half = 0; half < halves; ++half) {
    const uint16_t* const* q = rows[0] + half * kHalf;
    const uint16_t* const* d_out = rows[1] + half * kHalf;
    pack_q(q, p.head_dim_qk, scratch.q_transposed + half * scratch.steps * kPairElements);
    pack_q(d_out, p.head_dim_v, scratch.d_out_transposed + half * scratch.panels * kPairElements);
    if (wants.dk) pack_row_pairs(q, p.head_dim_qk, scratch.q + half * kPairElements, halves * kPairElements);
    if (wants.dv) pack_row_pairs(d_out, p.head_dim_v, scratch.d_out + half * kPairElements, halves * kPairElements);
  }
}

// A tile [kKeys][lanes] in bf16: rows as they lie, [half][2][16 keys][32 rows].
void round_tile(const float* tile, int lanes, uint16_t* to) {
  for (int half = 0; half < lanes / kHalf; ++half) {
    for (int key = 0; key < kKeys; ++key) {
      const float* from = tile + key * lanes + half * kHalf;
      _mm512_store_si512(to + half * kPairElements + key * 32,
                         (__m512i)_mm512_cvtne2ps_pbh(_mm512_load_ps(from + 16), _mm512_load_ps(from)));
    }
  }
}

// From [half][2][16 keys][32 rows] to two keys in a dword, [half][2][16 pairs of keys][16 rows][2]; halves of `to` lie
// half_elements apart.
void pair_keys(const uint16_t* from, int halves, uint16_t* to, int64_t half_elements) {
  const __m512i low = pair_lanes(0), high = pair_lanes(16);
  for (int half = 0; half < halves; ++half) {
    for (int pair = 0; pair < 16; ++pair) {
      const __m512i even = _mm512_load_si512(from + half * kPairElements + pair * 64);
      const __m512i odd = _mm512_load_si512(from + half * kPairElements + pair * 64 + 32);
      uint16_t* row = to + half * half_elements + pair * 32;
      _mm512_store_si512(row, _mm512_permutex2var_epi16(even, low, odd));
      _mm512_store_si512(row + kTileElements, _mm512_permutex2var_epi16(even, high, odd));
    }
  }
}

// One block of keys.
class Block {
 public:
  Block(const BlockWork<float>& work, const BackwardShared<float>& shared, const AmxScratch& scratch)
      : work_(work),
        shared_(shared),
        scratch_(scratch),
        vector_(vector_backward<float>(InstructionSet::avx512)),
        products_(scratch.dump),
        key_tiles_(static_cast<int>(ceil_div(work.num_keys(), kKeys))) {}

  void run() {
    pack_block(work_, shared_.map, scratch_);
    std::memset(scratch_.dk, 0, sizeof(float) * static_cast<size_t>(key_tiles_ * scratch_.steps * kQuadFloats));
    std::memset(scratch_.dv, 0, sizeof(float) * static_cast<size_t>(key_tiles_ * scratch_.panels * kQuadFloats));
    const bool is_whole = walk_query_tiles(
        work_, shared_, kHalf, [&](QueryTileRows<float>& of, const RowData<float>& rows) { compute(of, rows); },
        [&](const QueryTileRows<float>& of, int64_t query_tile) { add_dq(of, query_tile); });
    if (!is_whole) return;
    products_.release();
    alignas(64) float row[kMaxHeadDim];
    store_block(work_, vector_.store_gradient, [&](Name name, int key) {
      const int panels = name == Name::dk ? scratch_.steps : scratch_.panels;
      copy_row((name == Name::dk ? scratch_.dk : scratch_.dv) + key / kKeys * panels * kQuadFloats, key % kKeys, panels,
               row);
      return row;
    });
  }

 private:
  void compute(QueryTileRows<float>& of, const RowData<float>& rows) {
    pack_query_tile(of, rows, work_.wants, scratch_);
    num_seen_ = 0;
    for (int tile = 0; tile < key_tiles_; ++tile) {
      const int64_t key = work_.key_begin + tile * kKeys;
      const int64_t end = std::min(key + kKeys, work_.key_end);
      if (of.query_tile.hides(key, end)) continue;
      compute_tile(of, tile, key, static_cast<int>(end - key));
      seen_[num_seen_++] = tile;
    }
  }

  void compute_tile(QueryTileRows<float>& of, int tile, int64_t key, int num_keys) {
    const int lanes = of.lanes, halves = lanes / kHalf, steps = scratch_.steps, panels = scratch_.panels;
    for (int half = 0; half < halves; ++half) {
      products_.multiply(scratch_.k + tile * steps * kPairElements,
                         scratch_.q_transposed + half * steps * kPairElements, steps,
                         scratch_.tile.probs + half * kHalf, lanes);
      products_.multiply(scratch_.v + tile * panels * kPairElements,
                         scratch_.d_out_transposed + half * panels * kPairElements, panels,
                         scratch_.tile.d_scores + half * kHalf, lanes);
    }
    products_.release();
    vector_.differentiate_tile(of, scratch_.tile, key, num_keys);
    if (num_keys < kKeys) {
      const auto rest = sizeof(float) * static_cast<size_t>((kKeys - num_keys) * lanes);
      std::memset(scratch_.tile.probs + num_keys * lanes, 0, rest);
      std::memset(scratch_.tile.d_scores + num_keys * lanes, 0, rest);
    }
    if (work_.wants.dv) {
      round_tile(scratch_.tile.probs, lanes, scratch_.probs);
      add_rows(scratch_.probs, scratch_.d_out, halves, panels, scratch_.dv + tile * panels * kQuadFloats);
    }
    if (!work_.wants.dk && !work_.wants.dq) return;
    round_tile(scratch_.tile.d_scores, lanes, scratch_.d_scores);
    if (work_.wants.dk) {
      add_rows(scratch_.d_scores, scratch_.q, halves, steps, scratch_.dk + tile * steps * kQuadFloats);
    }
    if (work_.wants.dq) {
      pair_keys(scratch_.d_scores, halves, scratch_.d_scores_pairs + num_seen_ * kPairElements, scratch_.half_pairs);
    }
  }

  // Sums of one tile of keys, all panels, += weights [half] x rows [panel][half].
  void add_rows(const uint16_t* weights, const uint16_t* rows, int halves, int panels, float* sums) {
    for (int panel = 0; panel < panels; ++panel) {
      products_.add([&](int half) { return weights + half * kPairElements; }, rows + panel * halves * kPairElements,
                    halves, sums + panel * kQuadFloats);
    }
  }

  // dQ's sums of a query tile: [half][step] quads.
  void add_dq(const QueryTileRows<float>& of, int64_t query_tile) {
    if (num_seen_ == 0) return;
    float* sums = shared_.dq + query_tile * kQueryTile * shared_.tiling.qk_stride;
    for (int half = 0; half < of.lanes / kHalf; ++half) {
      for (int step = 0; step < scratch_.steps; ++step, sums += kQuadFloats) {
        products_.add(
            [&](int i) { return scratch_.k_transposed + (int64_t{seen_[i]} * scratch_.steps + step) * kPairElements; },
            scratch_.d_scores_pairs + half * scratch_.half_pairs, num_seen_, sums);
      }
    }
    products_.release();  // before another block's turn
  }

  // Row `key` of a tile's quads.
  static void copy_row(const float* quads, int key, int panels, float* row) {
    const float* from = quads + key / 16 * 2 * kTileFloats + key % 16 * 16;
    for (int panel = 0; panel < panels; ++panel, from += kQuadFloats, row += kStepDims) {
      _mm512_store_ps(row, _mm512_load_ps(from));
      _mm512_store_ps(row + 16, _mm512_load_ps(from + kTileFloats));
    }
  }

  const BlockWork<float>& work_;
  const BackwardShared<float>& shared_;
  const AmxScratch& scratch_;
  const VectorBackward<float>& vector_;
  Products products_;
  const int key_tiles_;
  int seen_[kBlockTiles];  // tiles of keys that the query tile sees, num_seen_ of them
  int num_seen_ = 0;
};

void run_block(const AttentionArguments& p, const KeyBlock& block, int64_t kv_head, const BackwardShared<float>& shared,
               std::byte* scratch) {
  if (is_over(p, shared)) return;
  const BlockWork<float> work(p, block, kv_head, shared);
  const AmxScratch memory(p, scratch);
  {
    const TileScope tiles;
    Block(work, shared, memory).run();
  }
  _mm256_zeroupper();  // as the vector kernels do
}

// dQ of rows, whose sums lie transposed.
void end_rows(const AttentionArguments& p, const core::Sequence& s, int64_t kv_head, int64_t begin, int64_t end,
              const BackwardShared<float>& shared) {
  alignas(64) float rows[16][kMaxHeadDim];
  const core::Operand& to = p.tensors[Name::dq];
  const StoreGradient<float> store = vector_backward<float>(InstructionSet::avx512).store_gradient;
  const int64_t first_query_tile = kv_head * shared.query_tiles + shared.first_query_tile(p, s);
  const int64_t steps = shared.tiling.qk_stride / kStepDims;
  for (int64_t row = begin; row < end; row += 16) {
    const int64_t in_query_tile = row % kQueryTile;
    const float* sums = shared.dq + (first_query_tile + row / kQueryTile) * kQueryTile * shared.tiling.qk_stride +
                        in_query_tile / kHalf * steps * kQuadFloats + in_query_tile % kHalf / 16 * kTileFloats;
    for (int64_t dim = 0; dim < shared.tiling.qk_stride; dim += 16) {
      const float* tile = sums + dim / kStepDims * kQuadFloats + dim % kStepDims / 16 * 2 * kTileFloats;
      __m512i r[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) r[i] = _mm512_load_si512(tile + i * 16);
      transpose16(r);
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) _mm512_store_si512(rows[i] + dim, r[i]);
    }
    for (int64_t f = row; f < std::min(row + 16, end); ++f) {
      store(rows[f - row], p.scale, p.head_dim_qk, to.dtype, p.accumulates(core::Gradient::dq),
            to.row(s.batch_idx, s.row_q + f / p.group(), kv_head * p.group() + f % p.group()));
    }
  }
  _mm256_zeroupper();
}

}  // namespace
}  // namespace tessella::cpu

TESSELLA_AMX_END

namespace tessella::cpu {
namespace {

BackwardKernel<float> kernel() {
  const BackwardKernel<float>& vector = vector_backward<float>(InstructionSet::avx512).kernel;
  return {&tiling, &scratch_bytes, vector.classify_tiles, vector.begin_rows, &run_block, &end_rows, vector.run_bias};
}

std::string unavailable(core::Device) {
  const std::string& reason = amx_bf16_unavailable();
  return reason.empty() ? vector_unavailable(InstructionSet::avx512) : reason;
}

core::Offer offer(const core::Shape& shape, int num_threads) {
  const core::DType d_out = core::attention(shape).operands[Name::d_out].dtype;
  if (d_out != core::DType::bf16) {
    return {.ineligible = core::message("d_out is ", core::name(d_out), ", expected bf16")};
  }
  return {.workspace = backward_workspace(kernel(), core::attention(shape), num_threads)};
}

std::string describe(const core::Plan& plan) {
  return describe_backward(kernel(), core::attention(plan.shape), plan.num_threads);
}

void run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void*) {
  run_backward(kernel(), core::attention(arguments), plan, workspace);
}

}  // namespace

constinit const core::Kernel kBackwardAmx = {
    .name = "cpu.backward_amx",
    .operation = core::Operation::backward,
    .summary = "bf16 on AMX tiles, P and dS in AVX-512",
    .architectures = "amx",
    .dtypes = core::dtype_bit(core::DType::bf16),
    .max_head_dim = kMaxHeadDim,
    .features = core::kCommonFeatures.without(core::kForwardOnlyFeatures) | core::kGradientFeatures,
    .unavailable = unavailable,
    .offer = offer,
    .threads = threads_for,
    .describe = describe,
    .run = run,
};

}  // namespace tessella::cpu

#endif
