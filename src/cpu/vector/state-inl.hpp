// Softmax state of a query tile: how it begins, and how its rows end and are stored.
#pragma once

#include <cstring>
#include <limits>

#include "cpu/vector/convert-inl.hpp"
#include "cpu/vector/exp2-inl.hpp"
#include "cpu/vector/forward_vector.hpp"
#include "cpu/vector/score-inl.hpp"
#include "hwy/highway.h"
#include "operations/attention/arguments.hpp"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Bands of rows [row_begin, row_begin + num_rows), and a state that has seen nothing.
template <typename Real>
void begin_state(const core::AttentionArguments& p, const core::Sequence& s, int64_t kv_head, int64_t row_begin,
                 int num_rows, QueryTileState<Real>& state) {
  const int lanes = (num_rows + kLanes<Real> - 1) / kLanes<Real> * kLanes<Real>;
  state.lanes = lanes;
  const bool are_products = scores_are_products(p);
  state.are_products = are_products;
  state.scale_log2 = exponent_scale<Real>(p);
  constexpr Real kExact = 2 / std::numeric_limits<Real>::epsilon();  // 2^24 or 2^53: whole numbers below it are exact
  // Products have been rounded at their size already.
  state.offset_limit = HWY_NATIVE_FMA || are_products ? kExact : Real{0};
  // A sink is to be at the same distance from the scores in either unit.
  const double scale = are_products ? p.scale : 1.0;
  state.natural = are_products && !p.sink ? kLn2 : scale / static_cast<double>(state.scale_log2);
  fill_query_tile(state.query_tile, p, s, kv_head, row_begin, num_rows, lanes);
  for (int r = 0; r < lanes; ++r) {
    state.origin[r] = 0;
    state.offset[r] = kMinusInfinity<Real>;
    state.sum[r] = 0;
  }
}

template <typename T, typename Real>
void store_query_tile(const QueryTileState<Real>& state, const RowEnds<Real>& ends, const Real* o, int64_t o_stride) {
  const core::AttentionArguments& p = *state.query_tile.arguments;
  const core::Sequence& s = *state.query_tile.sequence;
  const int dim = static_cast<int>(p.head_dim_v);
  for (int r = 0; r < state.query_tile.num_rows; ++r, o += o_stride) {
    const int64_t row = s.row_q + state.query_tile.query[r];
    const int64_t head = state.query_tile.head[r];
    T* to = reinterpret_cast<T*>(p.out().row(s.batch_idx, row, head));
    if (state.sum[r] == 0) {  // o may be 0 * NaN
      std::memset(to, 0, sizeof(T) * static_cast<size_t>(dim));
    } else {
      store_row(o, ends.factor[r], dim, to);
    }
    if (p.lse().data != nullptr) store_lse(p.lse(), s.batch_idx, row, head, ends.lse[r]);
  }
}

template <typename Real>
void end_query_tile(const QueryTileState<Real>& state, const Real* o, int64_t o_stride) {
  RowEnds<Real> ends;
  end_rows(state, ends);
  with_elements<Real>(state.query_tile.arguments->out().dtype,
                      [&]<typename T>(const T*) HWY_ATTR { store_query_tile<T>(state, ends, o, o_stride); });
}

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
