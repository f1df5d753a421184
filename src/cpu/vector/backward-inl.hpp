// Gradients of one task in vectors: a block of keys outside, query tiles inside (backward_vector.hpp).
//
// A tile of scores is computed again, transposed [key][row] as in the forward, and so is dP; both turn into
//   P = exp(S - LSE),  dS = P (D dP - delta),
// which meet V, K and Q in products whose lanes are columns.
#pragma once

#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "cpu/vector/backward_vector.hpp"
#include "cpu/vector/classify-inl.hpp"
#include "cpu/vector/convert-inl.hpp"
#include "cpu/vector/exp2-inl.hpp"
#include "cpu/vector/score-inl.hpp"
#include "cpu/vector/tiles-inl.hpp"
#include "hwy/highway.h"
#include "operations/attention/arguments.hpp"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using core::Name;

template <typename T, typename Real>
void load_row(const T* from, int dim, Real* to, int64_t stride) {
  const Tag<Real> d;
  int i = 0;
  for (; i + kLanes<Real> <= dim; i += kLanes<Real>) hn::Store(load_floats(d, from + i), d, to + i);
  if (i < dim) {
    hn::Store(load_first<Real>(from + i, dim - i), d, to + i);
    i += kLanes<Real>;
  }
  for (; i < stride; i += kLanes<Real>) hn::Store(hn::Zero(d), d, to + i);
}

// Loads rows of a tensor by their addresses, and their transpose; a null address gives zeros.
template <typename Real>
void load_rows(core::DType dtype, const std::byte* const* rows, int num_rows, int lanes, int64_t dim, Real* to,
               int64_t stride, Real* transposed) {
  with_elements<Real>(dtype, [&]<typename T>(const T*) HWY_ATTR {
    static constexpr T kZeros[kMaxHeadDim] = {};
    const T* from[kQueryTileRows] = {};
    for (int r = 0; r < lanes; ++r) from[r] = rows[r] == nullptr ? kZeros : reinterpret_cast<const T*>(rows[r]);
    for (int r = 0; r < num_rows; ++r) load_row(from[r], static_cast<int>(dim), to + r * stride, stride);
    load_transposed(from, lanes, static_cast<int>(dim), 1, transposed);
  });
}

template <typename Real>
bool is_finite(const Real* row, int64_t count) {
  const Tag<Real> d;
  const Vec<Real> infinity = hn::Set(d, std::numeric_limits<Real>::infinity());
  for (int64_t i = 0; i < count; i += kLanes<Real>) {
    if (!hn::AllTrue(d, hn::Lt(hn::Abs(hn::Load(d, row + i)), infinity))) return false;
  }
  return true;
}

// Rows of k or v, and zero rows up to a multiple of kScoreKeys. 0 * NaN is NaN: rows that no query may see are zero.
template <typename Real>
void load_block(const core::AttentionArguments& p, const core::Sequence& s, const TileMap& map, Name name,
                int64_t kv_head, int64_t key_begin, int num_keys, int64_t dim, Real* to, int64_t stride) {
  const core::Operand& operand = p.tensors[name];
  with_elements<Real>(operand.dtype, [&]<typename T>(const T*) HWY_ATTR {
    for (int key = 0; key < num_keys; ++key) {
      const std::byte* from = operand.row(s.batch_idx, s.row_kv + key_begin + key, kv_head);
      Real* row = to + key * stride;
      load_row(reinterpret_cast<const T*>(from), static_cast<int>(dim), row, stride);
      if (is_finite(row, stride) || map.is_seen(p, s, kv_head, key_begin + key)) continue;
      std::memset(row, 0, sizeof(Real) * static_cast<size_t>(stride));
    }
  });
  const int rest = (kScoreKeys - num_keys % kScoreKeys) % kScoreKeys;
  std::memset(to + num_keys * stride, 0, sizeof(Real) * static_cast<size_t>(rest * stride));
}

// to = factor * from, and what is there where the gradient accumulates.
template <typename Real>
void store_gradient(const Real* from, std::type_identity_t<Real> factor, int64_t count, core::DType dtype,
                    bool accumulates, std::byte* to) {
  with_elements<Real>(dtype, [&]<typename T>(const T*) HWY_ATTR {
    T* out = reinterpret_cast<T*>(to);
    if (!accumulates) return store_row(from, factor, static_cast<int>(count), out);
    alignas(64) Real sum[kMaxHeadDim];
    const Tag<Real> d;
    load_row(out, static_cast<int>(count), sum, 0);
    for (int64_t i = 0; i < count; i += kLanes<Real>) {
      hn::Store(hn::MulAdd(hn::Load(d, from + i), hn::Set(d, factor), hn::Load(d, sum + i)), d, sum + i);
    }
    store_row(sum, Real{1}, static_cast<int>(count), out);
  });
}

// Reads q, dO and LSE of the query tile's rows.
template <typename Real>
void load_queries(QueryTileRows<Real>& to, const RowData<Real>& rows, const BackwardScratch<Real>& scratch) {
  const core::AttentionArguments& p = *to.query_tile.arguments;
  const std::byte* q[kQueryTileRows];
  const std::byte* d_out[kQueryTileRows];
  to.begin(rows, q, d_out);
  load_rows(p.dtype(), q, to.query_tile.num_rows, to.lanes, p.head_dim_qk, scratch.q, scratch.qk_stride,
            scratch.q_transposed);
  load_rows(p.tensors[Name::d_out].dtype, d_out, to.query_tile.num_rows, to.lanes, p.head_dim_v, scratch.d_out,
            scratch.v_stride, scratch.d_out_transposed);
}

// slope += sum over keys of dS times ALiBi's distance.
template <typename Real>
void add_slopes(QueryTileRows<Real>& of, const Real* d_scores, int64_t key_begin, int num_keys) {
  const Tag<Real> d;
  alignas(64) Real position[kMaxQueryTileRows];
  for (int r = 0; r < of.lanes; ++r) {
    position[r] = static_cast<Real>(of.query_tile.sequence->band.position(of.query_tile.query[r]) - key_begin);
  }
  for (int row = 0; row < of.lanes; row += kLanes<Real>) {
    Vec<Real> sum = hn::Zero(d);
    for (int key = 0; key < num_keys; ++key) {
      const Vec<Real> distance = hn::Abs(hn::Sub(hn::Load(d, position + row), hn::Set(d, static_cast<Real>(key))));
      sum = hn::MulAdd(hn::Load(d, d_scores + key * of.lanes + row), distance, sum);
    }
    hn::Store(hn::Add(hn::Load(d, of.slope + row), sum), d, of.slope + row);
  }
}

// Turns products into P times dropout's factors, and dP into dS after softcap, for keys [key_begin, key_begin +
// num_keys), which the element masks show as their class says.
template <typename Real>
void differentiate_scores(const QueryTileRows<Real>& of, const BackwardTile<Real>& tile, int64_t key_begin,
                          int num_keys, TileClass tile_class) {
  const QueryTile& query_tile = of.query_tile;
  const core::AttentionArguments& p = *query_tile.arguments;
  const int lanes = of.lanes;
  const bool has_dropout = p.features.has(core::Feature::dropout);
  Real* probs = tile.probs;
  Real* d_scores = tile.d_scores;
  const size_t tile_bytes = sizeof(Real) * static_cast<size_t>(num_keys * lanes);
  if (p.features.has(core::Feature::softcap)) std::memcpy(tile.products, probs, tile_bytes);
  if (!scores_are_products(p) || tile_class == TileClass::partial) {
    score_chain(query_tile, lanes, probs, key_begin, num_keys, tile_class == TileClass::partial);
  } else if (key_begin < query_tile.full_begin || key_begin + num_keys > query_tile.full_end) {
    apply_band(query_tile, lanes, probs, key_begin, num_keys);
  }
  const Tag<Real> d;
  if (has_dropout) {
    const Vec<Real> keep_scale = hn::Set(d, static_cast<Real>(dropout_of(p).keep_scale()));
    for (int i = 0; i < num_keys * lanes; i += kLanes<Real>) hn::Store(keep_scale, d, tile.dropout + i);
    dropout_chain(query_tile, lanes, tile.dropout, key_begin, num_keys);
  }
  const Vec<Real> scale = hn::Set(d, scores_are_products(p) ? static_cast<Real>(p.scale) : Real{1});
  const Vec<Real> log2_e = hn::Set(d, kLog2E<Real>);
  // The largest exponent: an LSE that does not belong to these scores could give a larger one.
  const Vec<Real> most = hn::Set(d, std::numeric_limits<Real>::max_exponent - 1);
  for (int row = 0; row < lanes; row += kLanes<Real>) {
    const Vec<Real> lse = hn::Load(d, of.lse + row);
    const Vec<Real> delta = hn::Load(d, of.delta + row);
    for (int key = 0; key < num_keys; ++key) {
      const int at = key * lanes + row;
      const Vec<Real> exponent = hn::Mul(hn::MulSub(hn::Load(d, probs + at), scale, lse), log2_e);
      Vec<Real> prob = exp2(hn::IfThenElse(hn::Gt(exponent, most), most, exponent));
      Vec<Real> d_prob = hn::Load(d, d_scores + at);
      if (has_dropout) d_prob = hn::Mul(d_prob, hn::Load(d, tile.dropout + at));
      // V of a hidden key may hold NaN.
      const Mask<Real> is_hidden = hn::Eq(prob, hn::Zero(d));
      hn::Store(hn::IfThenZeroElse(is_hidden, hn::Mul(prob, hn::Sub(d_prob, delta))), d, d_scores + at);
      if (has_dropout) prob = hn::Mul(prob, hn::Load(d, tile.dropout + at));
      hn::Store(prob, d, probs + at);
    }
  }
}

// d_scores times softcap's derivative 1 - tanh^2.
template <typename Real>
void apply_softcap_derivative(const core::AttentionArguments& p, int lanes, int num_keys,
                              const BackwardTile<Real>& tile) {
  if (!p.features.has(core::Feature::softcap)) return;
  const Tag<Real> d;
  const Vec<Real> scale = hn::Set(d, product_scale<Real>(p));
  for (int i = 0; i < num_keys * lanes; i += kLanes<Real>) {
    const Vec<Real> capped = tanh(hn::Mul(hn::Load(d, tile.products + i), scale));
    const Vec<Real> derivative = hn::NegMulAdd(capped, capped, hn::Set(d, 1));
    const Vec<Real> d_score = hn::Load(d, tile.d_scores + i);
    const Mask<Real> is_hidden = hn::Eq(d_score, hn::Zero(d));  // K of a hidden key may hold NaN
    hn::Store(hn::IfThenZeroElse(is_hidden, hn::Mul(d_score, derivative)), d, tile.d_scores + i);
  }
}

template <typename Real>
void differentiate_tile(QueryTileRows<Real>& of, const BackwardTile<Real>& tile, int64_t key_begin, int num_keys) {
  differentiate_scores(of, tile, key_begin, num_keys, of.query_tile.class_of(key_begin, key_begin + num_keys));
  const core::AttentionArguments& p = *of.query_tile.arguments;
  if (p.features.has(core::Feature::d_alibi_slopes)) add_slopes(of, tile.d_scores, key_begin, num_keys);
  apply_softcap_derivative(p, of.lanes, num_keys, tile);
}

// Products of a tile, whose K and V rows are given.
template <typename Real>
void multiply_tile(const QueryTileRows<Real>& of, const Real* k, const Real* v, int num_keys,
                   const BackwardScratch<Real>& scratch) {
  const core::AttentionArguments& p = *of.query_tile.arguments;
  alignas(64) Real unused_max[kQueryTileRows] = {};
  multiply_scores(k, scratch.qk_stride, scratch.q_transposed, of.lanes, static_cast<int>(p.head_dim_qk), num_keys,
                  scratch.tile.probs, unused_max);
  multiply_scores(v, scratch.v_stride, scratch.d_out_transposed, of.lanes, static_cast<int>(p.head_dim_v), num_keys,
                  scratch.tile.d_scores, unused_max);
}

template <typename Real>
void add_rows(const Real* rows, int64_t count, Real* sums) {
  const Tag<Real> d;
  for (int64_t i = 0; i < count; i += kLanes<Real>) {
    hn::Store(hn::Add(hn::Load(d, sums + i), hn::Load(d, rows + i)), d, sums + i);
  }
}

// Computes a query tile with the keys [key_begin, key_end) of a block: adds to dK and dV, and returns the block's terms
// of dQ and of the slopes.
template <typename Real>
void compute_query_tile(QueryTileRows<Real>& of, const RowData<Real>& rows, const BlockWork<Real>& block,
                        const BackwardScratch<Real>& scratch) {
  const Wanted& wants = block.wants;
  const int num_rows = of.query_tile.num_rows;
  load_queries(of, rows, scratch);
  if (wants.dq) std::memset(scratch.dq, 0, sizeof(Real) * static_cast<size_t>(num_rows * scratch.qk_stride));
  for (int64_t begin = block.key_begin; begin < block.key_end; begin += kTileKeys) {
    const int64_t end = block.key_end < begin + kTileKeys ? block.key_end : begin + kTileKeys;
    if (of.query_tile.hides(begin, end)) continue;
    const int num_keys = static_cast<int>(end - begin);
    const int64_t at = begin - block.key_begin;
    const Real* k = scratch.k + at * scratch.qk_stride;
    multiply_tile(of, k, scratch.v + at * scratch.v_stride, num_keys, scratch);
    differentiate_tile(of, scratch.tile, begin, num_keys);
    const Weights<Real> probs{scratch.tile.probs, of.lanes, 1};
    const Weights<Real> d_scores{scratch.tile.d_scores, of.lanes, 1};
    if (wants.dv) {
      multiply_rows(probs, num_keys, num_rows, scratch.d_out, scratch.dv + at * scratch.v_stride, scratch.v_stride);
    }
    if (wants.dk) {
      multiply_rows(d_scores, num_keys, num_rows, scratch.q, scratch.dk + at * scratch.qk_stride, scratch.qk_stride);
    }
    if (wants.dq) {
      multiply_rows({scratch.tile.d_scores, 1, of.lanes}, num_rows, num_keys, k, scratch.dq, scratch.qk_stride);
    }
  }
}

template <typename Real>
void compute_block(const BlockWork<Real>& block, const BackwardShared<Real>& shared,
                   const BackwardScratch<Real>& scratch) {
  const core::AttentionArguments& p = block.p;
  const int num_keys = block.num_keys();
  load_block(p, block.s, shared.map, Name::k, block.kv_head, block.key_begin, num_keys, p.head_dim_qk, scratch.k,
             scratch.qk_stride);
  load_block(p, block.s, shared.map, Name::v, block.kv_head, block.key_begin, num_keys, p.head_dim_v, scratch.v,
             scratch.v_stride);
  std::memset(scratch.dk, 0, sizeof(Real) * static_cast<size_t>(num_keys * scratch.qk_stride));
  std::memset(scratch.dv, 0, sizeof(Real) * static_cast<size_t>(num_keys * scratch.v_stride));
  const bool is_whole = walk_query_tiles(
      block, shared, kLanes<Real>,
      [&](QueryTileRows<Real>& of, const RowData<Real>& rows)
          HWY_ATTR { compute_query_tile(of, rows, block, scratch); },
      [&](const QueryTileRows<Real>& of, int64_t row) HWY_ATTR {
        add_rows(scratch.dq, of.query_tile.num_rows * scratch.qk_stride, shared.dq + row * scratch.qk_stride);
      });
  if (!is_whole) return;
  store_block(block, &store_gradient<Real>, [&](Name name, int key) {
    return name == Name::dk ? scratch.dk + key * scratch.qk_stride : scratch.dv + key * scratch.v_stride;
  });
}

template <typename Real>
void run_block(const core::AttentionArguments& p, const KeyBlock& block, int64_t kv_head,
               const BackwardShared<Real>& shared, std::byte* scratch) {
  if (is_over(p, shared)) return;
  compute_block(BlockWork<Real>(p, block, kv_head, shared), shared, BackwardScratch<Real>(p, scratch));
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  _mm256_zeroupper();  // as run_work_tile() of the forward
#endif
}

// Sums of two rows' products in vectors.
template <typename Real>
Real dot_rows(const Real* a, const Real* b, int64_t count) {
  const Tag<Real> d;
  Vec<Real> sum = hn::Zero(d);
  for (int64_t i = 0; i < count; i += kLanes<Real>) sum = hn::MulAdd(hn::Load(d, a + i), hn::Load(d, b + i), sum);
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

template <typename Real>
void begin_rows(const core::AttentionArguments& p, const core::Sequence& s, int64_t kv_head, int64_t begin, int64_t end,
                const BackwardShared<Real>& shared) {
  constexpr Real kInfinity = std::numeric_limits<Real>::infinity();
  alignas(64) Real out[kMaxHeadDim];
  alignas(64) Real d_out[kMaxHeadDim];
  const int64_t first = kv_head * shared.rows + shared.first_row(p, s);
  const int dim = static_cast<int>(p.head_dim_v);
  const int64_t padded = (dim + kLanes<Real> - 1) / kLanes<Real> * kLanes<Real>;
  for (int64_t f = begin; f < end; ++f) {
    const int64_t row = s.row_q + f / p.group();
    const int64_t head = kv_head * p.group() + f % p.group();
    const auto at = [&](Name name) { return p.tensors[name].row(s.batch_idx, row, head); };
    const auto lse_of = [&](Name name) { return static_cast<Real>(load_lse(p.tensors[name], s.batch_idx, row, head)); };
    const Real lse = lse_of(Name::lse);
    const Real d_lse = p.features.has(core::Feature::d_lse) ? lse_of(Name::d_lse) : 0;
    // With a sink every LSE is finite.
    const bool sees_key =
        lse != -kInfinity && (!p.features.has(core::Feature::sink) || shared.map.sees_some_key(p, s, kv_head, f));
    Real dot = 0;
    if (sees_key) {
      for (const auto& [name, to] : {std::pair{Name::out, out}, {Name::d_out, d_out}}) {
        with_elements<Real>(p.tensors[name].dtype, [&, name = name, to = to]<typename T>(const T*) HWY_ATTR {
          load_row(reinterpret_cast<const T*>(at(name)), dim, to, padded);
        });
      }
      dot = dot_rows(out, d_out, padded);
    }
    shared.lse[first + f] = !sees_key ? kInfinity : lse == kInfinity ? std::numeric_limits<Real>::quiet_NaN() : lse;
    shared.delta[first + f] = lse == -kInfinity ? 0 : dot - d_lse;
    shared.slope[first + f] = 0;
  }
}

template <typename Real>
void end_rows(const core::AttentionArguments& p, const core::Sequence& s, int64_t kv_head, int64_t begin, int64_t end,
              const BackwardShared<Real>& shared) {
  const core::Operand& to = p.tensors[Name::dq];
  const int64_t first = kv_head * shared.rows + shared.first_row(p, s);
  for (int64_t f = begin; f < end; ++f) {
    store_gradient(shared.dq + (first + f) * shared.tiling.qk_stride, p.scale, p.head_dim_qk, to.dtype,
                   p.accumulates(core::Gradient::dq),
                   to.row(s.batch_idx, s.row_q + f / p.group(), kv_head * p.group() + f % p.group()));
  }
}

// Queries [query, query + kQueryTileRows) of one head.
inline void fill_head_query_tile(QueryTile& query_tile, const core::AttentionArguments& p, const core::Sequence& s,
                                 int64_t head, int64_t query, int num_rows, int lanes) {
  query_tile.arguments = &p;
  query_tile.sequence = &s;
  query_tile.kv_head = head / p.group();
  query_tile.num_rows = num_rows;
  query_tile.classes = nullptr;  // the map's query tiles have other rows
  for (int r = 0; r < lanes; ++r) {
    const int64_t i = query + (r < num_rows ? r : num_rows - 1);
    query_tile.query[r] = static_cast<int32_t>(i);
    query_tile.head[r] = static_cast<int32_t>(head);
    query_tile.begin[r] = static_cast<int32_t>(s.band.begin(i));
    query_tile.end[r] = static_cast<int32_t>(s.band.end(i));
  }
  bound_query_tile(query_tile, lanes);
}

// sums[slot or 0][query or 0] += dS of one head of a sequence.
template <typename Real>
void add_bias_tile(const core::AttentionArguments& p, const core::Sequence& s, int64_t head, int64_t query,
                   int64_t slot, Real* sums, const BackwardShared<Real>& shared, const BackwardScratch<Real>& scratch) {
  const core::ScoreGradient& to = p.d_bias;
  const int64_t key_begin = slot < s.slot_kv ? 0 : slot - s.slot_kv;
  const int64_t tile_end = slot + kTileKeys - s.slot_kv;
  const int64_t key_end = s.len_kv < tile_end ? s.len_kv : tile_end;
  const int64_t rest = s.len_q - query;
  if (key_begin >= key_end || rest <= 0) return;
  const int num_keys = static_cast<int>(key_end - key_begin);
  QueryTileRows<Real> of;
  const int num_rows = static_cast<int>(rest < kQueryTileRows ? rest : kQueryTileRows);
  of.lanes = (num_rows + kLanes<Real> - 1) / kLanes<Real> * kLanes<Real>;
  fill_head_query_tile(of.query_tile, p, s, head, query, num_rows, of.lanes);
  if (of.query_tile.hides(key_begin, key_end)) return;
  const TileClass tile_class = classify_tile(of.query_tile, key_begin, num_keys);
  if (tile_class == TileClass::hidden) return;
  Real lse[kQueryTileRows], delta[kQueryTileRows];
  const int64_t first = of.query_tile.kv_head * shared.rows + shared.first_row(p, s) + head % p.group();
  for (int r = 0; r < num_rows; ++r) {
    lse[r] = shared.lse[first + (query + r) * p.group()];
    delta[r] = shared.delta[first + (query + r) * p.group()];
  }
  load_queries(of, {lse, delta}, scratch);
  load_block(p, s, shared.map, Name::k, of.query_tile.kv_head, key_begin, num_keys, p.head_dim_qk, scratch.k,
             scratch.qk_stride);
  load_block(p, s, shared.map, Name::v, of.query_tile.kv_head, key_begin, num_keys, p.head_dim_v, scratch.v,
             scratch.v_stride);
  multiply_tile(of, scratch.k, scratch.v, num_keys, scratch);
  differentiate_scores(of, scratch.tile, key_begin, num_keys, tile_class);
  for (int key = 0; key < num_keys; ++key) {
    const int64_t column = to.kv_stride == 0 ? 0 : s.slot_kv + key_begin + key - slot;
    for (int r = 0; r < num_rows; ++r) {
      sums[column * kQueryTileRows + (to.q_stride == 0 ? 0 : r)] += scratch.tile.d_scores[key * of.lanes + r];
    }
  }
}

// An axis of d_bias that is summed is walked whole, in order; the others have the given entry.
template <typename Real>
void compute_bias(const core::AttentionArguments& p, int64_t b, int64_t head, int64_t query, int64_t slot,
                  const BackwardShared<Real>& shared, const BackwardScratch<Real>& scratch) {
  const core::ScoreGradient& to = p.d_bias;
  alignas(64) Real sums[kTileKeys * kQueryTileRows] = {};
  const int64_t b_end = to.batch_stride == 0 ? p.batch : b + 1;
  const int64_t head_end = to.head_stride == 0 ? p.heads_q : head + 1;
  const int64_t query_end = to.q_stride == 0 ? p.seqlen_q : query + 1;
  const int64_t slot_end = to.kv_stride == 0 ? p.seqlen_kv : slot + 1;
  for (int64_t batch_idx = b; batch_idx < b_end; ++batch_idx) {
    const core::Sequence s = core::sequence(p, batch_idx);
    for (int64_t h = head; h < head_end; ++h) {
      for (int64_t i = query; i < query_end; i += kQueryTileRows) {
        if (is_over(p, shared)) return;
        for (int64_t j = slot; j < slot_end; j += kTileKeys) add_bias_tile(p, s, h, i, j, sums, shared, scratch);
      }
    }
  }
  const int64_t rows = to.q_stride == 0 ? 1 : to.queries - query < kQueryTileRows ? to.queries - query : kQueryTileRows;
  const int64_t columns = to.kv_stride == 0 ? 1 : to.keys - slot < kTileKeys ? to.keys - slot : kTileKeys;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t at = to.index(b, head, query + row, slot + column);
      alignas(64) Real value[kLanes<Real>] = {sums[column * kQueryTileRows + row]};
      store_gradient(value, 1, 1, to.dtype, p.accumulates(core::Gradient::d_bias),
                     to.data + core::bytes_of(to.dtype, at));
    }
  }
}

template <typename Real>
void run_bias(const core::AttentionArguments& p, int64_t b, int64_t head, int64_t query, int64_t slot,
              const BackwardShared<Real>& shared, std::byte* scratch) {
  compute_bias(p, b, head, query, slot, shared, BackwardScratch<Real>(p, scratch));
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
  _mm256_zeroupper();  // as run_work_tile() of the forward
#endif
}

template <typename Real>
inline constexpr VectorBackward<Real> kVectorBackward = {
    .kernel = {&vector_tiling<Real>, &vector_scratch_bytes<Real>, &classify_tiles, &begin_rows<Real>, &run_block<Real>,
               &end_rows<Real>, &run_bias<Real>},
    .differentiate_tile = &differentiate_tile<Real>,
    .store_gradient = &store_gradient<Real>,
};

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
