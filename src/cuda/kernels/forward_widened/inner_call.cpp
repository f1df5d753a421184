#include "cuda/kernels/forward_widened/inner_call.hpp"

#include <algorithm>
#include <iterator>
#include <span>

namespace tessella::cuda {
namespace {

using core::AttentionArguments;
using core::AttentionShape;
using core::DType;
using core::Feature;
using core::Name;
using core::Operand;

// Of q, and of the copies: fp8 becomes bf16, which holds every number of e4m3 and e5m2 and the range of their scales.
DType copied_dtype(const AttentionShape& p) { return core::is_float8(p.dtype()) ? DType::bf16 : p.dtype(); }

constexpr Name kFactors[] = {Name::out_scale, Name::amax, Name::q_scale, Name::k_scale, Name::v_scale};
// Those that the other kernel does not get.
std::span<const Name> own_factors(const Around& around) {
  return std::span(kFactors).first(around.widens_kv ? std::size(kFactors) : 2);
}

// Of dense rows at a multiple of 16 bytes.
int32_t alignment(DType dtype, int64_t head_dim) {
  const auto bytes = static_cast<uint64_t>(16 | core::bytes_of(dtype, head_dim));
  return static_cast<int32_t>(bytes & (~bytes + 1));
}

Operand dense(void* scratch, int64_t at, DType dtype, bool is_packed, int64_t rows, int64_t heads, int64_t dim) {
  return {static_cast<std::byte*>(scratch) + at, dtype, is_packed ? 0 : rows * heads * dim, heads * dim, dim};
}

}  // namespace

Around around(const AttentionShape& p, bool reads_float8) {
  const bool has_amax = p.operands[Name::amax].dtype != DType::none;
  const DType out = p.out_dtype(), written = copied_dtype(p);  // beside f32
  return {.widens_q = !reads_float8 && core::is_quantized(p.dtype()),
          .widens_kv = !reads_float8 && core::is_quantized(p.operands[Name::k].dtype),
          .narrows = out != DType::f32 && (has_amax || out != written)};
}

AttentionShape inner_shape(AttentionShape p, const Around& around) {
  const DType dtype = copied_dtype(p);
  if (around.narrows) p.operands[Name::out].dtype = DType::f32;
  if (around.widens_q) p.operands[Name::q] = {dtype, alignment(dtype, p.head_dim_qk)};
  for (const Name name : own_factors(around)) p.operands[name] = {};
  if (around.widens_kv) {
    p.operands[Name::k] = {dtype, alignment(dtype, p.head_dim_qk)};
    p.operands[Name::v] = {dtype, alignment(dtype, p.head_dim_v)};
    p.features =
        p.features.without(Feature::paged_kv | Feature::cache_batch_idx | Feature::kv_scales | Feature::transposed_v);
    p.page_size = 0;
    p.v_in_k = false;
    if (!p.features.has(Feature::packed_kv)) p.total_kv = p.seqlen_kv;
  }
  // One bit of q_scale, out_scale and amax.
  if (p.operands[Name::q_scale].dtype == DType::none) p.features = p.features.without(Feature::scales);
  if (around.widens_kv || !core::is_quantized(p.operands[Name::k].dtype)) p.scale_block = 0;
  return p;
}

Copies copies(const AttentionShape& p, const Around& around) {
  const int64_t rows_q = p.features.has(Feature::packed_q) ? p.total_q : p.batch * p.seqlen_q;
  const int64_t rows_kv = p.features.has(Feature::packed_kv) ? p.total_kv : p.batch * p.seqlen_kv;
  int64_t end = 0;
  const auto take = [&](bool has, DType dtype, int64_t elements) {
    constexpr int64_t kAlignment = 256;
    const int64_t at = end;
    if (has) end += (core::bytes_of(dtype, elements) + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  };
  const DType dtype = copied_dtype(p);
  Copies at{.around = around};
  at.q = take(around.widens_q, dtype, rows_q * p.heads_q * p.head_dim_qk);
  at.k = take(around.widens_kv, dtype, rows_kv * p.heads_kv * p.head_dim_qk);
  at.v = take(around.widens_kv, dtype, rows_kv * p.heads_kv * p.head_dim_v);
  at.out = take(around.narrows, DType::f32, rows_q * p.heads_q * p.head_dim_v);
  at.scratch = end;
  return at;
}

AttentionArguments inner_call(const AttentionArguments& p, const Copies& at, void* scratch) {
  const Around& around = at.around;
  AttentionArguments call = p;
  static_cast<AttentionShape&>(call) = inner_shape(static_cast<const AttentionShape&>(p), around);
  for (const Name name : own_factors(around)) call.tensors[name] = {};
  const DType dtype = copied_dtype(p);
  const bool packed_q = p.features.has(Feature::packed_q), packed_kv = p.features.has(Feature::packed_kv);
  if (around.widens_q) call.q() = dense(scratch, at.q, dtype, packed_q, p.total_q, p.heads_q, p.head_dim_qk);
  if (around.widens_kv) {
    call.page_table = call.cache_batch_idx = {};
    call.num_pages = call.slots = 0;
    call.k() = dense(scratch, at.k, dtype, packed_kv, call.total_kv, p.heads_kv, p.head_dim_qk);
    call.v() = dense(scratch, at.v, dtype, packed_kv, call.total_kv, p.heads_kv, p.head_dim_v);
  }
  if (around.narrows) call.out() = dense(scratch, at.out, DType::f32, packed_q, p.total_q, p.heads_q, p.head_dim_v);
  return call;
}

}  // namespace tessella::cuda
