#include "core/arguments.hpp"

#include <algorithm>

#include "core/tensors.hpp"

namespace tessella::core {
namespace {

// Bytes, a power of two up to 16, that divide the address and every stride.
int32_t alignment(const Operand& t) {
  uint64_t bits = 16 | reinterpret_cast<uintptr_t>(t.data);
  for (const int64_t stride : {t.batch_stride, t.row_stride, t.head_stride}) {
    bits |= static_cast<uint64_t>(bytes_of(t.dtype, stride));
  }
  return static_cast<int32_t>(bits & (~bits + 1));
}

// True if values are the first columns of keys. Where the cache has no rows, strides decide. So they do where memory is
// absent because a plan is made, for one KV head as in MLA.
bool v_in_k(const AttentionArguments& a) {
  const Operand &k = a.k(), &v = a.v();
  const auto [slots, rows] = a.axes_kv();
  const bool has_no_rows = a.batch == 0 || slots == 0 || rows == 0;
  const bool is_of_strides = has_no_rows || (k.data == nullptr && a.heads_kv == 1 && k.row_stride >= a.head_dim_qk);
  return (is_of_strides || k.data != nullptr) && (has_no_rows || k.data == v.data) && k.dtype == v.dtype &&
         k.batch_stride == v.batch_stride && k.row_stride == v.row_stride && k.head_stride == v.head_stride &&
         a.head_dim_v < a.head_dim_qk && !a.features.has(Feature::transposed_v);
}

int64_t window_keys(const AttentionArguments& a) {
  int64_t most = kAnyKeys;
  if (a.window_left >= 0 && a.window_right >= 0) {
    most = std::min(most, a.window_left + 1 + a.window_right + a.keep_first);
  }
  return a.chunk > 0 ? std::min(most, a.chunk + a.keep_first) : most;
}

bool rows_grow(const AttentionArguments& a) {
  if (a.features.has_any(kElementMasks | Feature::mask_mod)) return true;
  const bool ends = a.window_right >= 0 || a.features.has_any(Feature::prefix | Feature::causal_top_left);
  return ends && a.window_left < 0 && a.chunk == 0;
}

}  // namespace

void derive_shape(AttentionArguments& a) {
  for (const Name name : kNames) {
    const Operand& t = a.tensors[name];
    // Kernels check the alignment of other operands at run time.
    const bool is_d_out = name == Name::d_out && t.dtype != DType::none;
    const bool decides_loads = name == Name::q || name == Name::k || name == Name::v || is_d_out;
    a.operands[name] = {t.dtype, a.device.type != DeviceType::cpu && decides_loads ? alignment(t) : 1};
  }
  a.v_in_k = v_in_k(a);
  derive_mask_shape(a);
  a.bias_dtype = a.bias.dtype;
  a.d_bias_dtype = a.d_bias.dtype;
  for (size_t i = 0; i < kMaxUserArrays; ++i) a.array_dtypes[i] = a.arrays[i].dtype;
}

void derive_mask_shape(AttentionArguments& a) {
  // Windows and chunks of query i stand at key i + seqlen_kv - seqlen_q, and causal_top_left ends at key i. A query
  // whose window or chunk begins behind that end sees no key, while queries before and after it see some.
  a.is_contiguous = !a.features.has(Feature::causal_top_left) || (a.window_left < 0 && a.chunk == 0);
  a.window_keys = window_keys(a);
  a.rows_grow = rows_grow(a);
}

void derive_shape(MergeArguments& a) {
  const bool is_cpu = a.device.type == DeviceType::cpu;
  a.num_states = static_cast<int32_t>(a.given.size());
  a.states = {a.given.front().out.dtype, is_cpu ? 1 : 16};
  for (const MergeArguments::State& state : a.given) {
    if (!is_cpu) a.states.alignment = std::min(a.states.alignment, alignment(state.out));
  }
  a.out = {a.result.out.dtype, is_cpu ? 1 : alignment(a.result.out)};
  if (a.result.lse.dtype != DType::none) a.features |= Feature::lse;
}

void derive_shape(AppendArguments& a) {
  const bool is_cpu = a.device.type == DeviceType::cpu;
  a.rows.alignment = a.cache.alignment = is_cpu ? 1 : 16;
  const auto add = [is_cpu](OperandShape& shape, const Operand& t) {
    shape.dtype = t.dtype;
    if (!is_cpu) shape.alignment = std::min(shape.alignment, alignment(t));
  };
  appended_rows(a, [&](const AppendedNames& names, const RowsShape&, const AppendArguments::Rows& rows) {
    add(a.rows, rows.from);
    add(names.is_cache ? a.cache : a.rows, rows.into);
  });
  a.rotary = a.cos.dtype;
}

void derive_shape(CopyPagesArguments& a) {
  const bool is_cpu = a.device.type == DeviceType::cpu;
  a.num_pools = static_cast<int64_t>(a.given.size());
  a.pools = {a.given.front().pages.dtype, is_cpu ? 1 : 16};
  if (is_cpu) return;
  for (const CopyPagesArguments::Pool& pool : a.given) {
    const auto row_bytes = static_cast<uint64_t>(16 | bytes_of(a.pools.dtype, pool.head_dim));
    const auto of_rows = static_cast<int32_t>(row_bytes & (~row_bytes + 1));
    a.pools.alignment = std::min({a.pools.alignment, alignment(pool.pages), of_rows});
  }
}

void derive_shape(QuantizeArguments& a) {
  const bool is_cpu = a.device.type == DeviceType::cpu;
  a.x = {a.from.dtype, is_cpu ? 1 : alignment(a.from)};
  a.out = {a.into.dtype, is_cpu ? 1 : alignment(a.into)};
  a.rotary = a.cos.dtype;
}

namespace {
AttentionShape shape_of(const AttentionShape& a) { return a; }
MergeShape shape_of(const MergeShape& a) { return a; }
AppendShape shape_of(const AppendShape& a) { return a; }
CopyPagesShape shape_of(const CopyPagesShape& a) { return a; }
QuantizeShape shape_of(const QuantizeShape& a) { return a; }
}  // namespace

Shape shape(const Arguments& arguments) {
  return std::visit([](const auto* a) { return Shape(shape_of(*a)); }, arguments);
}

}  // namespace tessella::core
