// Shape: everything that the plan of an operation may depend on, and nothing that changes from run to run.
//
// A call has a shape of its own, with its own sizes; a plan has the shape of the largest call that it serves
// (core/fields.hpp says which members may differ). Shapes hold no pointer to a tensor.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <variant>

#include "core/device.hpp"
#include "core/dtype.hpp"
#include "core/features.hpp"
#include "core/operand.hpp"
#include "core/operation.hpp"

namespace tessella::core {

struct OperandShape {
  DType dtype = DType::none;  // none: absent
  int32_t alignment = 1;      // GPU, of what decides how it is loaded: bytes, a power of two up to 16, that divide its
                              // address and its strides
  bool operator==(const OperandShape&) const = default;
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
  bool in_any_order = false;                                 // backward: sums need not be the same bits in every run
  QueryClass query_class = QueryClass::automatic;
  bool operator==(const AttentionShape&) const = default;

  DType dtype() const { return operands[Name::q].dtype; }
  DType out_dtype() const { return operands[Name::out].dtype; }
  int32_t alignment() const {  // of q, k and v together
    return std::min({operands[Name::q].alignment, operands[Name::k].alignment, operands[Name::v].alignment});
  }
  int64_t group() const { return heads_q / heads_kv; }                    // query heads of a KV head
  int64_t most_keys() const { return std::min(seqlen_kv, window_keys); }  // that a query sees
};

// The shape of merge: `num_states` states (out, lse) of disjoint sets of keys become one.
struct MergeShape {
  Operation operation = Operation::merge;
  Device device;
  int32_t num_states = 0;
  OperandShape states;  // outs of the states
  OperandShape out;
  int64_t batch = 0;  // packed tensors: 1
  int64_t seqlen = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  Features features;  // lse: it is written
  int32_t num_threads = 0;
  int32_t num_sms = 0;
  bool operator==(const MergeShape&) const = default;

  DType dtype() const { return states.dtype; }
};

// Heads and head dim of rows; none where they are absent.
struct RowsShape {
  int64_t heads = 0;
  int64_t head_dim = 0;
  bool operator==(const RowsShape&) const = default;
};

// The shape of append: rows k_new and v_new go into the caches k and v, and q is rotated like k_new. Tables say where
// rows go; plans do not depend on them.
struct AppendShape {
  Operation operation = Operation::append;
  Device device;
  OperandShape rows;        // of k_new, v_new, q and q_out
  OperandShape cache;       // of k and v: the dtype of rows, or a quantised one
  int64_t scale_block = 0;  // of a quantised cache: 0: its scales are given, 1: those of each new row are computed
  int64_t batch = 0;
  int64_t seqlen_new = 0;  // rows of a sequence of k_new, v_new and q; packed: 0
  int64_t total_new = 0;   // rows of the packed tensors; otherwise seqlen_new
  RowsShape k_new, v_new, q;
  DType rotary = DType::none;  // of cos and sin
  int64_t rotary_dim = 0;      // columns that are rotated; 0: none
  bool rotary_interleaved = false;
  int32_t num_threads = 0;
  int32_t num_sms = 0;
  bool operator==(const AppendShape&) const = default;

  DType dtype() const { return rows.dtype; }
};

// The shape of copy_pages: pages of every pool are copied to other pages of the same pool.
struct CopyPagesShape {
  Operation operation = Operation::copy_pages;
  Device device;
  OperandShape pools;  // all of them; alignment: that of a row's bytes too
  int64_t num_pools = 0;
  int64_t num_pages = 0;
  int64_t num_pairs = 0;
  int32_t num_threads = 0;
  int32_t num_sms = 0;
  bool operator==(const CopyPagesShape&) const = default;

  DType dtype() const { return pools.dtype; }
};

// The shape of quantize and dequantize: rows become elements of 8 bits beside scales, and rows again.
struct QuantizeShape {
  Operation operation = Operation::quantize;
  Device device;
  OperandShape x;    // what is read
  OperandShape out;  // what is written
  int64_t batch = 0;
  int64_t seqlen = 0;  // rows of a sequence; packed: 0
  int64_t total = 0;   // rows of packed tensors; otherwise seqlen
  int64_t heads = 0;
  int64_t head_dim = 0;
  bool is_packed = false;
  bool is_transposed = false;    // the tensor of 8 bits is (batch, heads, head_dim, rows padded to whole tiles)
  int64_t scale_block = 0;       // rows of one entry of the scales; 0: all of a sequence
  bool computes_scales = false;  // else they are given
  bool batches_share = false;    // one entry of the scales for all sequences
  bool heads_share = false;      // one for all heads
  bool hadamard = false;
  int64_t mean_heads = 0;  // of the means that are written, subtracted and added, or that the shift of the LSE takes
  bool has_shift = false;  // lse_shift is written
  DType rotary = DType::none;  // of cos and sin
  int64_t rotary_dim = 0;      // columns that are rotated; 0: none
  bool rotary_interleaved = false;
  int32_t num_threads = 0;
  int32_t num_sms = 0;
  bool operator==(const QuantizeShape&) const = default;

  DType dtype() const { return x.dtype; }
  int64_t tokens() const { return is_packed ? total : batch * seqlen; }
};

using Shape = std::variant<AttentionShape, MergeShape, AppendShape, CopyPagesShape, QuantizeShape>;

inline const AttentionShape& attention(const Shape& shape) { return std::get<AttentionShape>(shape); }
inline const MergeShape& merge(const Shape& shape) { return std::get<MergeShape>(shape); }
inline const AppendShape& append(const Shape& shape) { return std::get<AppendShape>(shape); }
inline const CopyPagesShape& copy_pages(const Shape& shape) { return std::get<CopyPagesShape>(shape); }
inline const QuantizeShape& quantize(const Shape& shape) { return std::get<QuantizeShape>(shape); }

inline Device device(const Shape& shape) {
  return std::visit([](const auto& s) { return s.device; }, shape);
}
inline Operation operation(const Shape& shape) {
  return std::visit([](const auto& s) { return s.operation; }, shape);
}
inline DType dtype(const Shape& shape) {  // of q, of the states, of new rows, of the pools, of x
  return std::visit([](const auto& s) { return s.dtype(); }, shape);
}
inline Features features(const Shape& shape) {  // none of operations whose kernels all do everything
  return std::visit(
      [](const auto& s) {
        if constexpr (requires { s.features; }) return s.features;
        return Features();
      },
      shape);
}

}  // namespace tessella::core
