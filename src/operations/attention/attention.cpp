#include "operations/attention/attention.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/message.hpp"
#include "core/operation_of.hpp"

namespace tessella::core {

namespace {

// True if values are the first columns of keys. Where the cache has no rows, strides decide. So they do where memory is
// absent because a plan is made, for one KV head as in MLA.
bool v_in_k_of(const AttentionArguments& a) {
  const Operand &k = a.k(), &v = a.v();
  const auto [slots, rows] = a.axes_kv();
  const bool has_no_rows = a.batch == 0 || slots == 0 || rows == 0;
  const bool is_of_strides = has_no_rows || (k.data == nullptr && a.heads_kv == 1 && k.row_stride >= a.head_dim_qk);
  return (is_of_strides || k.data != nullptr) && (has_no_rows || k.data == v.data) && k.dtype == v.dtype &&
         k.batch_stride == v.batch_stride && k.row_stride == v.row_stride && k.head_stride == v.head_stride &&
         a.head_dim_v < a.head_dim_qk && !a.features.has(Feature::transposed_v);
}

int64_t window_keys_of(const AttentionArguments& a) {
  int64_t most = kAnyKeys;
  if (a.window_left >= 0 && a.window_right >= 0) {
    most = std::min(most, a.window_left + 1 + a.window_right + a.keep_first);
  }
  return a.chunk > 0 ? std::min(most, a.chunk + a.keep_first) : most;
}

bool rows_grow_of(const AttentionArguments& a) {
  if (a.features.has_any(kElementMasks | Feature::mask_mod)) return true;
  const bool ends = a.window_right >= 0 || a.features.has_any(Feature::prefix | Feature::causal_top_left);
  return ends && a.window_left < 0 && a.chunk == 0;
}

// A shape beside the C++ source that its views point into.
struct KeptShape {
  AttentionShape shape;
  std::string sources;
};

}  // namespace

const OperationType& AttentionShape::type() {
  static constexpr OperationOf<Forward> kType;
  return kType;
}

std::shared_ptr<const void> Forward::keep(const AttentionShape& given) {
  const auto kept = std::make_shared<KeptShape>(KeptShape{given, {}});
  const std::array sources = {&kept->shape.score_mod, &kept->shape.mask_mod, &kept->shape.score_mod_gradient};
  for (const std::string_view* source : sources) kept->sources += *source;
  std::string_view rest = kept->sources;
  for (std::string_view* source : sources) {
    *source = rest.substr(0, source->size());
    rest.remove_prefix(source->size());
  }
  return std::shared_ptr<const void>(kept, &kept->shape);
}

std::string Forward::ineligible(const Kernel& kernel, const AttentionShape& shape) {
  std::string reason = ineligible_head_dim(kernel, "head_dim_qk", shape.head_dim_qk);
  if (reason.empty()) reason = ineligible_head_dim(kernel, "head_dim_v", shape.head_dim_v);
  if (!reason.empty()) return reason;
  if (shape.query_class == QueryClass::few && !kernel.serves_few) return "is for many queries, and query_class is few";
  if (shape.num_splits > 1 && !kernel.splits_keys) {
    return message("takes no number of splits, and num_splits is ", shape.num_splits);
  }
  return "";
}

std::string Forward::ineligible_dtypes(const Kernel& kernel, const AttentionShape& shape) {
  for (const Name operand : {Name::k, Name::v}) {
    const DType dtype = shape.operands[operand].dtype;
    if (!takes(kernel.kv_dtypes, dtype, shape.dtype())) {
      return message("does not compute ", name(operand), ".dtype ", name(dtype), " beside q.dtype ",
                     name(shape.dtype()));
    }
  }
  if (const DType k = shape.operands[Name::k].dtype, v = shape.operands[Name::v].dtype; k != v) {
    return message("takes k and v of one dtype, and k.dtype is ", name(k), " and v.dtype ", name(v));
  }
  if (!takes(kernel.out_dtypes, shape.out_dtype(), shape.dtype())) {
    return message("does not write out.dtype ", name(shape.out_dtype()), " beside q.dtype ", name(shape.dtype()));
  }
  return "";
}

std::string Forward::missing_dtypes(uint32_t kv_dtypes, const AttentionShape& shape, const std::string& where) {
  for (const Name operand : {Name::k, Name::v}) {
    const DType own = shape.operands[operand].dtype;
    if (takes(kv_dtypes, own, shape.dtype())) continue;
    return message(name(operand), ".dtype is ", name(own), " beside q.dtype ", name(shape.dtype()), ", and ", where,
                   " computes that, expected ", names_of_dtypes(dtype_bit(shape.dtype()) | kv_dtypes));
  }
  return "";
}

void AttentionArguments::derive_shape() {
  for (const Name name : kNames) {
    const Operand& t = tensors[name];
    // Kernels check the alignment of other operands at run time.
    const bool is_d_out = name == Name::d_out && t.dtype != DType::none;
    const bool decides_loads = name == Name::q || name == Name::k || name == Name::v || is_d_out;
    operands[name] = {t.dtype, device.type != DeviceType::cpu && decides_loads ? core::alignment(t) : 1};
  }
  v_in_k = v_in_k_of(*this);
  derive_mask_shape();
  bias_dtype = bias.dtype;
  d_bias_dtype = d_bias.dtype;
  for (size_t i = 0; i < kMaxUserArrays; ++i) array_dtypes[i] = arrays[i].dtype;
}

void AttentionArguments::derive_mask_shape() {
  // Windows and chunks of query i stand at key i + seqlen_kv - seqlen_q, and causal_top_left ends at key i. A query
  // whose window or chunk begins behind that end sees no key, while queries before and after it see some.
  is_contiguous = !features.has(Feature::causal_top_left) || (window_left < 0 && chunk == 0);
  window_keys = window_keys_of(*this);
  rows_grow = rows_grow_of(*this);
}

AttentionShape Forward::bounds(const AttentionShape& shape, const Options& options) {
  AttentionShape bounds = shape;
  bounds.seqlen_q = std::max(shape.seqlen_q, options.max_seqlen_q);
  bounds.seqlen_kv = std::max(shape.seqlen_kv, options.max_seqlen_kv);
  bounds.total_q = std::max(shape.total_q, bounds.seqlen_q);
  bounds.total_kv = std::max(shape.total_kv, bounds.seqlen_kv);
  return bounds;
}

void Forward::validate_checkable(const AttentionArguments& a) {
  if (a.accumulate == 0) return;
  invalid(message("check: accumulate is ", a.accumulate, ", expected 0: what was there is gone"));
}

}  // namespace tessella::core
