// The shape of attention: forward and backward.
#pragma once

#include <cstdint>

#include "core/fields.hpp"
#include "core/operand.hpp"
#include "core/shape.hpp"

namespace tessella::core {

// The operands of attention and its gradients.
enum class Name : int32_t { q, k, v, out, lse, q_scale, k_scale, v_scale, out_scale, amax, d_out, d_lse, dq, dk, dv };
inline constexpr std::array kNames = {Name::q,       Name::k,       Name::v,       Name::out,       Name::lse,
                                      Name::q_scale, Name::k_scale, Name::v_scale, Name::out_scale, Name::amax,
                                      Name::d_out,   Name::d_lse,   Name::dq,      Name::dk,        Name::dv};
constexpr const char* name(Name name) {
  switch (name) {
    case Name::q: return "q";
    case Name::k: return "k";
    case Name::v: return "v";
    case Name::out: return "out";
    case Name::lse: return "lse";
    case Name::q_scale: return "q_scale";
    case Name::k_scale: return "k_scale";
    case Name::v_scale: return "v_scale";
    case Name::out_scale: return "out_scale";
    case Name::amax: return "amax";
    case Name::d_out: return "d_out";
    case Name::d_lse: return "d_lse";
    case Name::dq: return "dq";
    case Name::dk: return "dk";
    case Name::dv: return "dv";
  }
  return "";
}

// One value for each operand.
template <typename Value>
struct ByName {
  std::array<Value, kNames.size()> values{};
  constexpr Value& operator[](Name name) { return values[static_cast<size_t>(name)]; }
  constexpr const Value& operator[](Name name) const { return values[static_cast<size_t>(name)]; }
  bool operator==(const ByName&) const = default;
};

// With batch_invariant: which kernels may run. The values are those of option query_class.
enum class QueryClass : int32_t { automatic = 0, few, many };
constexpr const char* name(QueryClass query_class) {
  switch (query_class) {
    case QueryClass::few: return "few";
    case QueryClass::many: return "many";
    case QueryClass::automatic: break;
  }
  return "automatic";
}

inline constexpr int64_t kAnyKeys = int64_t{1} << 42;  // beyond any window

// The shape of forward and backward. The dtypes of dq, dk and dv and features say which gradients backward computes.
struct AttentionShape {
  using Self = AttentionShape;
  static const OperationType& type();  // of attention

  Operation operation = Operation::forward;
  Device device;
  ByName<OperandShape> operands;
  int64_t batch = 0;
  int64_t heads_q = 0;
  int64_t heads_kv = 0;
  int64_t head_dim_qk = 0;
  int64_t head_dim_v = 0;
  int64_t seqlen_q = 0;            // rows of a sequence of q; packed: the longest sequence, on a GPU a bound of it
  int64_t seqlen_kv = 0;           // slots of a sequence of k; packed: the longest sequence, on a GPU a bound of it
  int64_t total_q = 0;             // rows of the packed q tensor; otherwise seqlen_q
  int64_t total_kv = 0;            // rows of the packed k tensor; otherwise seqlen_kv
  int64_t page_size = 0;           // rows of a page of k and v; 0: they are not paged
  int64_t scale_block = 0;         // rows of one entry of the scales; 0: all
  int64_t window_keys = kAnyKeys;  // a query sees at most so many keys by a window with both ends and chunks
  bool v_in_k = false;             // row by row, v is the first columns of k: a cache of MLA's (arXiv 2405.04434)
  bool is_contiguous = true;  // between two keys that bands show to some query lies none that they show to no query
  bool rows_grow = false;     // later queries may see more keys than earlier ones, by bands or element masks
  Features features;
  DType bias_dtype = DType::none;
  DType d_bias_dtype = DType::none;
  std::array<DType, kMaxUserArrays> array_dtypes{};          // of mod_args
  std::string_view score_mod, mask_mod, score_mod_gradient;  // C++ source, "" = absent; not owned
  int32_t num_threads = 0;                                   // CPU: 0 = all that the process may use
  int32_t num_sms = 0;                                       // GPU: multiprocessors to use; 0 = all
  int32_t num_splits = 0;                                    // of keys, over blocks; 0 = automatic
  bool batch_invariant = false;                              // a row must depend on nothing beside it
  bool need_not_be_deterministic = false;                    // backward: sums need not be the same bits in every run
  QueryClass query_class = QueryClass::automatic;
  bool operator==(const AttentionShape&) const = default;

  DType dtype() const { return operands[Name::q].dtype; }
  DType out_dtype() const { return operands[Name::out].dtype; }
  int32_t alignment() const {  // of q, k and v together
    return std::min({operands[Name::q].alignment, operands[Name::k].alignment, operands[Name::v].alignment});
  }
  int64_t group() const { return heads_q / heads_kv; }                    // query heads of a KV head
  int64_t most_keys() const { return std::min(seqlen_kv, window_keys); }  // that a query sees

  // f(FieldName, get, Fit) of every member; std::invoke(get, shape) is the member of a shape.
  template <typename F>
  static void fields(F&& f) {
    f(FieldName{"operation"}, &AttentionShape::operation, Fit::equal);
    f(FieldName{"device"}, &AttentionShape::device, Fit::equal);
    f(FieldName{"features"}, &AttentionShape::features, Fit::equal);  // before the operands that they bring
    f(FieldName{"batch"}, &AttentionShape::batch, Fit::equal);
    f(FieldName{"seqlen_q"}, &AttentionShape::seqlen_q, Fit::at_most_few);
    f(FieldName{"seqlen_kv"}, &AttentionShape::seqlen_kv, Fit::at_most);
    f(FieldName{"heads_q"}, &AttentionShape::heads_q, Fit::equal);
    f(FieldName{"heads_kv"}, &AttentionShape::heads_kv, Fit::equal);
    f(FieldName{"head_dim_qk"}, &AttentionShape::head_dim_qk, Fit::equal);
    f(FieldName{"head_dim_v"}, &AttentionShape::head_dim_v, Fit::equal);
    f(FieldName{"total_q"}, &AttentionShape::total_q, Fit::at_most);
    f(FieldName{"total_kv"}, &AttentionShape::total_kv, Fit::at_most);
    f(FieldName{"page_size"}, &AttentionShape::page_size, Fit::equal);
    f(FieldName{"scale_block"}, &AttentionShape::scale_block, Fit::equal);
    f(FieldName{"v_in_k"}, &AttentionShape::v_in_k, Fit::at_least);
    for (const Name operand : kNames) {
      const auto of = [operand](auto& shape) -> auto& { return shape.operands[operand]; };
      f(
          FieldName{name(operand), "dtype"}, [of](auto& shape) -> auto& { return of(shape).dtype; }, Fit::equal);
      f(
          FieldName{name(operand), "alignment"}, [of](auto& shape) -> auto& { return of(shape).alignment; },
          Fit::at_least);
    }
    f(FieldName{"bias", "dtype"}, &AttentionShape::bias_dtype, Fit::equal);
    f(FieldName{"d_bias", "dtype"}, &AttentionShape::d_bias_dtype, Fit::equal);
    for (int idx = 0; idx < kMaxUserArrays; ++idx) {
      f(
          FieldName{"mod_args", "dtype", idx},
          [idx](auto& shape) -> auto& { return shape.array_dtypes[static_cast<size_t>(idx)]; }, Fit::equal);
    }
    f(FieldName{"score_mod"}, &AttentionShape::score_mod, Fit::equal);
    f(FieldName{"mask_mod"}, &AttentionShape::mask_mod, Fit::equal);
    f(FieldName{"score_mod_gradient"}, &AttentionShape::score_mod_gradient, Fit::equal);
    f(FieldName{"is_contiguous"}, &AttentionShape::is_contiguous, Fit::at_least);
    f(FieldName{"window_keys"}, &AttentionShape::window_keys, Fit::hint);
    f(FieldName{"rows_grow"}, &AttentionShape::rows_grow, Fit::hint);
    f(FieldName{"num_threads"}, &AttentionShape::num_threads, Fit::if_given);
    f(FieldName{"num_sms"}, &AttentionShape::num_sms, Fit::equal);
    f(FieldName{"num_splits"}, &AttentionShape::num_splits, Fit::equal);
    f(FieldName{"batch_invariant"}, &AttentionShape::batch_invariant, Fit::equal);
    f(FieldName{"need_not_be_deterministic"}, &AttentionShape::need_not_be_deterministic, Fit::equal);
    f(FieldName{"query_class"}, &AttentionShape::query_class, Fit::equal);
  }
};

inline const AttentionShape& attention(const Shape& shape) { return shape.as<AttentionShape>(); }

}  // namespace tessella::core
