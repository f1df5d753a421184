// Rows of merge in fp32 vectors: weights of all states first, then columns, each state's row read once.
//
// Nothing crosses rows, so a row's bits do not depend on threads or on the rows beside it.
#if defined(TESSELLA_CPU_VECTOR_MERGE_INL_HPP) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSELLA_CPU_VECTOR_MERGE_INL_HPP
#undef TESSELLA_CPU_VECTOR_MERGE_INL_HPP
#else
#define TESSELLA_CPU_VECTOR_MERGE_INL_HPP
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "cpu/vector/convert-inl.hpp"
#include "cpu/vector/exp2-inl.hpp"
#include "cpu/vector/merge_vector.hpp"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Gathers the states of a row that have keys: where their rows lie, and exp(lse - LSE). Returns the LSE. Sets count.
inline float gather_states(const core::MergeArguments& a, int64_t b, int64_t s, int64_t h, const MergeScratch& scratch,
                           int& count) {
  const F32 d;
  constexpr float kNoKeys = -std::numeric_limits<float>::infinity();
  float max = kNoKeys;
  count = 0;
  for (const core::MergeArguments::State& state : a.given) {
    float lse;
    std::memcpy(&lse, state.lse.row(b, s, h), sizeof lse);
    if (lse == kNoKeys) continue;
    max = std::max(max, lse);
    scratch.rows[count] = state.out.row(b, s, h);
    scratch.weights[count++] = lse;
  }
  if (count == 0) return kNoKeys;
  if (max == kNoKeys) max = 0;  // NaN alone
  for (int i = count; i % kLanes != 0; ++i) scratch.weights[i] = kNoKeys;
  const VecF log2_e = hn::Set(d, 1.44269504088896340736F);
  VecF sums = hn::Zero(d);
  for (int i = 0; i < count; i += kLanes) {
    const VecF weight = exp2(hn::Mul(hn::Sub(hn::Load(d, scratch.weights + i), hn::Set(d, max)), log2_e));
    sums = hn::Add(sums, weight);
    hn::Store(weight, d, scratch.weights + i);
  }
  const float sum = hn::GetLane(hn::SumOfLanes(d, sums));
  for (int i = 0; i < count; i += kLanes) {
    hn::Store(hn::Div(hn::Load(d, scratch.weights + i), hn::Set(d, sum)), d, scratch.weights + i);
  }
  return static_cast<float>(max + std::log(static_cast<double>(sum)));
}

// Columns [column, column + kVectors * kLanes) of a row. A state alone is copied: its weight is 1.
template <int kVectors, typename In, typename Out>
HWY_INLINE void merge_columns(const MergeScratch& scratch, int count, int64_t column, Out* out) {
  const F32 d;
  VecF sum[kVectors];
  for (int i = 0; i < count; ++i) {
    const VecF weight = hn::Set(d, scratch.weights[i]);
    const In* row = reinterpret_cast<const In*>(scratch.rows[i]) + column;
    for (int v = 0; v < kVectors; ++v) {
      const VecF value = load_floats(d, row + v * kLanes);
      sum[v] = i == 0 ? hn::Mul(weight, value) : hn::MulAdd(weight, value, sum[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) store_floats(sum[v], out + column + v * kLanes);
}

template <typename In, typename Out>
void merge_row(const MergeScratch& scratch, int count, int64_t columns, Out* out) {
  const F32 d;
  if (count == 0) {
    std::fill(out, out + columns, Out{});
    return;
  }
  int64_t column = 0;
  for (; column + 4 * kLanes <= columns; column += 4 * kLanes) merge_columns<4, In>(scratch, count, column, out);
  for (; column + kLanes <= columns; column += kLanes) merge_columns<1, In>(scratch, count, column, out);
  if (column == columns) return;
  const auto rest = static_cast<int>(columns - column);
  VecF sum = hn::Zero(d);
  for (int i = 0; i < count; ++i) {
    const VecF weight = hn::Set(d, scratch.weights[i]);
    const VecF value = load_first(reinterpret_cast<const In*>(scratch.rows[i]) + column, rest);
    sum = i == 0 ? hn::Mul(weight, value) : hn::MulAdd(weight, value, sum);
  }
  Out last[kLanes];
  store_floats(sum, last);
  std::copy(last, last + rest, out + column);
}

template <typename In, typename Out>
void merge_rows_as(const core::MergeArguments& a, int64_t begin, int64_t end, const MergeScratch& scratch) {
  for (int64_t idx = begin; idx < end; ++idx) {
    const int64_t h = idx % a.heads;
    const int64_t s = idx / a.heads % a.seqlen;
    const int64_t b = idx / a.heads / a.seqlen;
    int count;
    const float lse = gather_states(a, b, s, h, scratch, count);
    merge_row<In>(scratch, count, a.head_dim, reinterpret_cast<Out*>(a.result.out.row(b, s, h)));
    if (a.result.lse.data != nullptr) std::memcpy(a.result.lse.row(b, s, h), &lse, sizeof lse);
  }
}

// Rows [begin, end), counted over batch, seqlen and heads.
void merge_rows(const core::MergeArguments& a, int64_t begin, int64_t end, const MergeScratch& scratch) {
  using core::DType;
  switch (a.dtype()) {
    case DType::bf16:
      return a.out.dtype == DType::bf16 ? merge_rows_as<BFloat16, BFloat16>(a, begin, end, scratch)
                                        : merge_rows_as<BFloat16, float>(a, begin, end, scratch);
    case DType::f16:
      return a.out.dtype == DType::f16 ? merge_rows_as<Float16, Float16>(a, begin, end, scratch)
                                       : merge_rows_as<Float16, float>(a, begin, end, scratch);
    default: break;
  }
  switch (a.out.dtype) {
    case DType::bf16: return merge_rows_as<float, BFloat16>(a, begin, end, scratch);
    case DType::f16: return merge_rows_as<float, Float16>(a, begin, end, scratch);
    default: return merge_rows_as<float, float>(a, begin, end, scratch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();

#endif  // TESSELLA_CPU_VECTOR_MERGE_INL_HPP
