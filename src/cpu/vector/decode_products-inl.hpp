// What a piece computes from elements of K and V, for each type of them: the rest of decode is compiled once for all.
#pragma once

#include <algorithm>
#include <type_traits>

#include "cpu/vector/decode_rows-inl.hpp"
#include "cpu/vector/decode_tiles-inl.hpp"
#include "cpu/vector/decode_vector.hpp"
#include "cpu/vector/pairs-inl.hpp"
#include "hwy/highway.h"
#include "operations/attention/sequence.hpp"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <typename Real>
struct Products {
  bool is_scaled;
  bool (*multiply_by_unit)(Real* scales);
  // A row of q in the order in which keys are read.
  void (*load_query)(core::DType dtype, const std::byte* from, int dim, Real* to);
  // Scores of a run's keys, for num_rows rows of q from first_row on.
  void (*multiply_keys)(const Piece<Real>& of, const Run& run, const void* const* keys, int ahead, int64_t first_row,
                        int num_rows);
  // Probabilities times the run's values, added to o.
  void (*multiply_values)(const Piece<Real>& of, const Run& run, int64_t kv_head, int ahead, int num_rows, Real* o);
  // Of a row of o.
  void (*order_columns)(const Real* from, int dim, Real* to);
};

// Puts a run's scales in kUnit. Not where one is so large that what it multiplies might become infinite, as
// probabilities of 2^8 might: false.
template <typename T, typename Real>
bool multiply_by_unit(Real* scales) {
  if constexpr (kUnit<T> == 1) return true;
  const Tag<Real> d;
  Vec<Real> largest = hn::Zero(d);  // beside NaN
  for (int key = 0; key < kRunKeys; key += kLanes<Real>) {
    largest = hn::Max(hn::Abs(hn::Load(d, scales + key)), largest);
  }
  if (!hn::AllTrue(d, hn::Lt(largest, hn::Set(d, Real{0x1p100f})))) return false;
  const Vec<Real> unit = hn::Set(d, Real{kUnit<T>});
  for (int key = 0; key < kRunKeys; key += kLanes<Real>) {
    hn::Store(hn::Mul(hn::Load(d, scales + key), unit), d, scales + key);
  }
  return true;
}

// 0 * NaN is NaN: values that no query may see must not meet even a zero probability.
template <typename T, typename Real>
void hide_values(const Piece<Real>& of, const Run& run, int64_t kv_head, int begin, int end) {
  const int dim = static_cast<int>(of.p.head_dim_v);
  for (int key = begin; key < end; ++key) {
    const T* row = static_cast<const T*>(of.scratch.values[key]);
    bool finite = true;
    if constexpr (!kIsInteger<T>) {
      for (int i = 0; i < dim; ++i) finite = finite && to_real<Real>(row[i]) * 0 == 0;
    }
    if (finite || core::seen_by_any_query(of.p, of.s, kv_head, run.begin + key)) continue;
    of.scratch.values[key] = of.scratch.zeros;
  }
}

template <typename T, typename Real>
void load_query_of(core::DType dtype, const std::byte* from, int dim, Real* to) {
  with_elements<Real>(dtype,
                      [&]<typename Q>(const Q*) HWY_ATTR { load_query<T>(reinterpret_cast<const Q*>(from), dim, to); });
}

template <typename T, typename Real>
void multiply_keys_of_run(const Piece<Real>& of, const Run& run, const void* const* keys, int ahead, int64_t first_row,
                          int num_rows) {
  const int64_t row_bytes = core::bytes_of(of.p.k().dtype, of.p.head_dim_qk);
  const int64_t q_stride = of.scratch.layout.q_stride;
  with_whole<T>(run.has_whole_keys, [&](auto* element) HWY_ATTR {
    using E = std::remove_cvref_t<decltype(*element)>;
    multiply_keys<E>(keys, run.scores_begin(), run.scores_end(), ahead, row_bytes, of.scratch.q + first_row * q_stride,
                     q_stride, num_rows, static_cast<int>(of.p.head_dim_qk), of.scratch.scores);
  });
}

template <typename T, typename Real>
void multiply_values_of_run(const Piece<Real>& of, const Run& run, int64_t kv_head, int ahead, int num_rows, Real* o) {
  const DecodeScratch<Real>& scratch = of.scratch;
  for (int begin = run.first; begin < run.end;) {
    const int end = std::min(run.end, (begin / kValueKeys + 1) * kValueKeys);
    with_whole<T>(run.has_whole_values, [&](auto* element) HWY_ATTR {
      using E = std::remove_cvref_t<decltype(*element)>;
      multiply_values_of(
          ValueKeys<E, Real>{scratch.values + begin, end - begin, ahead, {static_cast<int>(of.p.head_dim_v)}},
          scratch.scores + begin, num_rows, o, scratch.layout.o_stride,
          [&] { hide_values<T>(of, run, kv_head, begin, end); });
    });
    begin = end;
  }
}

template <typename T, typename Real>
inline constexpr Products<Real> kProducts = {
    .is_scaled = kIsScaled<T>,
    .multiply_by_unit = &multiply_by_unit<T, Real>,
    .load_query = &load_query_of<T, Real>,
    .multiply_keys = &multiply_keys_of_run<T, Real>,
    .multiply_values = &multiply_values_of_run<T, Real>,
    .order_columns = &order_columns<T, Real>,
};

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
