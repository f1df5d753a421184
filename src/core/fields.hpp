// The one list of a shape's members: what the plan cache, the check that a call fits a plan, and explain() walk.
#pragma once

#include <bit>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string>
#include <type_traits>

#include "core/shape.hpp"

namespace tessella::core {

// How a field of a call's shape must compare to that of the plan.
enum class Fit {
  equal,
  at_most,      // lengths: plans of the cache are made for rounded ones
  at_most_few,  // likewise; small ones are rounded little, for kernels of few queries
  at_least,     // alignments
  if_given,     // equal, where the call says anything
  hint,         // decides tiles, not what can be computed: plans of the cache are made for rounded ones
};

// "heads_q", "q.dtype", "mod_args[2].dtype". Put together only to be shown.
struct FieldName {
  const char* owner;
  const char* member = nullptr;
  int idx = -1;
};
inline std::ostream& operator<<(std::ostream& stream, const FieldName& name) {
  stream << name.owner;
  if (name.idx >= 0) stream << '[' << name.idx << ']';
  return name.member == nullptr ? stream : stream << '.' << name.member;
}

// Calls f(FieldName, get, Fit) for every member; std::invoke(get, shape) is the member of a shape.
template <typename F>
void fields(std::type_identity<AttentionShape>, F&& f) {
  using S = AttentionShape;
  f(FieldName{"operation"}, &S::operation, Fit::equal);
  f(FieldName{"device"}, &S::device, Fit::equal);
  f(FieldName{"features"}, &S::features, Fit::equal);  // before the operands that they bring
  f(FieldName{"batch"}, &S::batch, Fit::equal);
  f(FieldName{"seqlen_q"}, &S::seqlen_q, Fit::at_most_few);
  f(FieldName{"seqlen_kv"}, &S::seqlen_kv, Fit::at_most);
  f(FieldName{"heads_q"}, &S::heads_q, Fit::equal);
  f(FieldName{"heads_kv"}, &S::heads_kv, Fit::equal);
  f(FieldName{"head_dim_qk"}, &S::head_dim_qk, Fit::equal);
  f(FieldName{"head_dim_v"}, &S::head_dim_v, Fit::equal);
  f(FieldName{"total_q"}, &S::total_q, Fit::at_most);
  f(FieldName{"total_kv"}, &S::total_kv, Fit::at_most);
  f(FieldName{"page_size"}, &S::page_size, Fit::equal);
  f(FieldName{"scale_block"}, &S::scale_block, Fit::equal);
  f(FieldName{"v_in_k"}, &S::v_in_k, Fit::at_least);
  for (const Name operand : kNames) {
    const auto of = [operand](auto& shape) -> auto& { return shape.operands[operand]; };
    f(
        FieldName{name(operand), "dtype"}, [of](auto& shape) -> auto& { return of(shape).dtype; }, Fit::equal);
    f(
        FieldName{name(operand), "alignment"}, [of](auto& shape) -> auto& { return of(shape).alignment; },
        Fit::at_least);
  }
  f(FieldName{"bias", "dtype"}, &S::bias_dtype, Fit::equal);
  f(FieldName{"d_bias", "dtype"}, &S::d_bias_dtype, Fit::equal);
  for (int idx = 0; idx < kMaxUserArrays; ++idx) {
    f(
        FieldName{"mod_args", "dtype", idx},
        [idx](auto& shape) -> auto& { return shape.array_dtypes[static_cast<size_t>(idx)]; }, Fit::equal);
  }
  f(FieldName{"score_mod"}, &S::score_mod, Fit::equal);
  f(FieldName{"mask_mod"}, &S::mask_mod, Fit::equal);
  f(FieldName{"score_mod_gradient"}, &S::score_mod_gradient, Fit::equal);
  f(FieldName{"is_contiguous"}, &S::is_contiguous, Fit::at_least);
  f(FieldName{"window_keys"}, &S::window_keys, Fit::hint);
  f(FieldName{"rows_grow"}, &S::rows_grow, Fit::hint);
  f(FieldName{"num_threads"}, &S::num_threads, Fit::if_given);
  f(FieldName{"num_sms"}, &S::num_sms, Fit::equal);
  f(FieldName{"num_splits"}, &S::num_splits, Fit::equal);
  f(FieldName{"batch_invariant"}, &S::batch_invariant, Fit::equal);
  f(FieldName{"in_any_order"}, &S::in_any_order, Fit::equal);
  f(FieldName{"query_class"}, &S::query_class, Fit::equal);
}

template <typename F>
void fields(std::type_identity<MergeShape>, F&& f) {
  using S = MergeShape;
  f(FieldName{"operation"}, &S::operation, Fit::equal);
  f(FieldName{"device"}, &S::device, Fit::equal);
  f(FieldName{"features"}, &S::features, Fit::equal);  // before the operands that they bring
  f(FieldName{"num_states"}, &S::num_states, Fit::equal);
  f(FieldName{"batch"}, &S::batch, Fit::equal);
  f(FieldName{"seqlen"}, &S::seqlen, Fit::at_most);
  f(FieldName{"heads"}, &S::heads, Fit::equal);
  f(FieldName{"head_dim"}, &S::head_dim, Fit::equal);
  f(
      FieldName{"outs", "dtype"}, [](auto& shape) -> auto& { return shape.states.dtype; }, Fit::equal);
  f(
      FieldName{"outs", "alignment"}, [](auto& shape) -> auto& { return shape.states.alignment; }, Fit::at_least);
  f(
      FieldName{"out", "dtype"}, [](auto& shape) -> auto& { return shape.out.dtype; }, Fit::equal);
  f(
      FieldName{"out", "alignment"}, [](auto& shape) -> auto& { return shape.out.alignment; }, Fit::at_least);
  f(FieldName{"num_threads"}, &S::num_threads, Fit::if_given);
  f(FieldName{"num_sms"}, &S::num_sms, Fit::equal);
}

template <typename F>
void fields(std::type_identity<AppendShape>, F&& f) {
  using S = AppendShape;
  f(FieldName{"operation"}, &S::operation, Fit::equal);
  f(FieldName{"device"}, &S::device, Fit::equal);
  f(FieldName{"batch"}, &S::batch, Fit::at_most);
  f(FieldName{"seqlen_new"}, &S::seqlen_new, Fit::at_most);
  f(FieldName{"total_new"}, &S::total_new, Fit::at_most);
  f(
      FieldName{"rows", "dtype"}, [](auto& shape) -> auto& { return shape.rows.dtype; }, Fit::equal);
  f(
      FieldName{"rows", "alignment"}, [](auto& shape) -> auto& { return shape.rows.alignment; }, Fit::at_least);
  f(
      FieldName{"cache", "dtype"}, [](auto& shape) -> auto& { return shape.cache.dtype; }, Fit::equal);
  f(
      FieldName{"cache", "alignment"}, [](auto& shape) -> auto& { return shape.cache.alignment; }, Fit::at_least);
  f(FieldName{"scale_block"}, &S::scale_block, Fit::equal);
  const auto rows = [&f](const char* name, RowsShape S::*member) {
    f(
        FieldName{name, "heads"}, [member](auto& shape) -> auto& { return (shape.*member).heads; }, Fit::equal);
    f(
        FieldName{name, "head_dim"}, [member](auto& shape) -> auto& { return (shape.*member).head_dim; }, Fit::equal);
  };
  rows("k_new", &S::k_new);
  rows("v_new", &S::v_new);
  rows("q", &S::q);
  f(FieldName{"rotary_cos", "dtype"}, &S::rotary, Fit::equal);
  f(FieldName{"rotary_dim"}, &S::rotary_dim, Fit::equal);
  f(FieldName{"rotary_interleaved"}, &S::rotary_interleaved, Fit::equal);
  f(FieldName{"num_threads"}, &S::num_threads, Fit::if_given);
  f(FieldName{"num_sms"}, &S::num_sms, Fit::equal);
}

template <typename F>
void fields(std::type_identity<CopyPagesShape>, F&& f) {
  using S = CopyPagesShape;
  f(FieldName{"operation"}, &S::operation, Fit::equal);
  f(FieldName{"device"}, &S::device, Fit::equal);
  f(FieldName{"num_pools"}, &S::num_pools, Fit::equal);
  f(FieldName{"num_pages"}, &S::num_pages, Fit::equal);
  f(FieldName{"num_pairs"}, &S::num_pairs, Fit::at_most);
  f(
      FieldName{"pools", "dtype"}, [](auto& shape) -> auto& { return shape.pools.dtype; }, Fit::equal);
  f(
      FieldName{"pools", "alignment"}, [](auto& shape) -> auto& { return shape.pools.alignment; }, Fit::at_least);
  f(FieldName{"num_threads"}, &S::num_threads, Fit::if_given);
  f(FieldName{"num_sms"}, &S::num_sms, Fit::equal);
}

template <typename F>
void fields(std::type_identity<QuantizeShape>, F&& f) {
  using S = QuantizeShape;
  f(FieldName{"operation"}, &S::operation, Fit::equal);
  f(FieldName{"device"}, &S::device, Fit::equal);
  f(FieldName{"batch"}, &S::batch, Fit::equal);
  f(FieldName{"seqlen"}, &S::seqlen, Fit::at_most);
  f(FieldName{"total"}, &S::total, Fit::at_most);
  f(FieldName{"heads"}, &S::heads, Fit::equal);
  f(FieldName{"head_dim"}, &S::head_dim, Fit::equal);
  f(
      FieldName{"x", "dtype"}, [](auto& shape) -> auto& { return shape.x.dtype; }, Fit::equal);
  f(
      FieldName{"x", "alignment"}, [](auto& shape) -> auto& { return shape.x.alignment; }, Fit::at_least);
  f(
      FieldName{"out", "dtype"}, [](auto& shape) -> auto& { return shape.out.dtype; }, Fit::equal);
  f(
      FieldName{"out", "alignment"}, [](auto& shape) -> auto& { return shape.out.alignment; }, Fit::at_least);
  f(FieldName{"is_packed"}, &S::is_packed, Fit::equal);
  f(FieldName{"is_transposed"}, &S::is_transposed, Fit::equal);
  f(FieldName{"scale_block"}, &S::scale_block, Fit::equal);
  f(FieldName{"computes_scales"}, &S::computes_scales, Fit::equal);
  f(FieldName{"batches_share"}, &S::batches_share, Fit::equal);
  f(FieldName{"heads_share"}, &S::heads_share, Fit::equal);
  f(FieldName{"hadamard"}, &S::hadamard, Fit::equal);
  f(FieldName{"mean_heads"}, &S::mean_heads, Fit::equal);
  f(FieldName{"has_shift"}, &S::has_shift, Fit::equal);
  f(FieldName{"rotary_cos", "dtype"}, &S::rotary, Fit::equal);
  f(FieldName{"rotary_dim"}, &S::rotary_dim, Fit::equal);
  f(FieldName{"rotary_interleaved"}, &S::rotary_interleaved, Fit::equal);
  f(FieldName{"num_threads"}, &S::num_threads, Fit::if_given);
  f(FieldName{"num_sms"}, &S::num_sms, Fit::equal);
}

// A length to a quarter of a power of two: a sequence that grows meets few plans, and no workspace is over a quarter
// too large. None stays none: of rows that do not exist kernels ask nothing.
constexpr int64_t rounded_length(int64_t length) {
  if (length == 0) return 0;
  const auto at_least = static_cast<uint64_t>(std::max<int64_t>(length, 64));
  const uint64_t step = std::bit_floor(at_least) / 4;
  return static_cast<int64_t>((at_least + step - 1) / step * step);
}

// Rounds the length of few queries so that, times any number of heads, it exceeds 64 only if the length does.
constexpr int64_t rounded_few(int64_t length) {
  const int64_t step = length <= 21 ? 1 : length <= 32 ? 2 : 4;
  return (std::max<int64_t>(length, 1) + step - 1) / step * step;
}

// The shape that a plan of the cache is made for.
template <typename S>
S rounded(S shape) {
  fields(std::type_identity<S>(), [&](const FieldName&, auto get, Fit fit) {
    auto& value = std::invoke(get, shape);
    if constexpr (std::is_same_v<decltype(value), int64_t&>) {
      if (fit == Fit::at_most_few && value < 64) {
        value = rounded_few(value);
      } else if (fit == Fit::at_most || fit == Fit::at_most_few || fit == Fit::hint) {
        value = rounded_length(value);
      }
    }
  });
  return shape;
}

}  // namespace tessella::core
