// The steps:
//   copies   q, k and v of each sequence times q_scale, k_scale and v_scale, in fp32: linear memory. Keys of pages and
//            slots are brought together, so that the other kernel sees tensors (batch, seqlen_kv, heads_kv, head_dim)
//   forward  the other kernel, with out in fp32
//   out      result / out_scale, rounded once, and amax from the result
// What needs no copy has none: q, k and v of 16 or 32 bits are read where they are, and so is out of f32 written.

#include "cpu/forward_widened.hpp"

#include <algorithm>
#include <array>

#include "core/choose.hpp"
#include "cpu/kernels.hpp"
#include "cpu/memory.hpp"
#include "cpu/parallel.hpp"
#include "cpu/widened_rows.hpp"
#include "operations/attention/amax.hpp"
#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"
#include "portable/quantize.hpp"
#include "portable/sequence_rows.hpp"

namespace tessella::cpu {
namespace {

using core::AttentionArguments;
using core::AttentionShape;
using core::DType;
using core::Feature;
using core::Name;
using core::Operand;
using core::Sequence;

bool widens(const AttentionShape& p) { return core::is_quantized(p.operands[Name::k].dtype); }

bool copies_out(const AttentionShape& p) {
  const bool has_amax = p.operands[Name::amax].dtype != DType::none;
  return p.out_dtype() != DType::f32 && (widens(p) || has_amax || core::is_float8(p.out_dtype()));
}

// What the other kernel computes.
void make_inner(AttentionShape& p) {
  const bool has_copies = widens(p), has_out = copies_out(p);
  if (has_copies) {
    for (const Name name : {Name::q, Name::k, Name::v}) p.operands[name].dtype = DType::f32;
    p.features = p.features.without(Feature::paged_kv | Feature::cache_batch_idx);
    p.page_size = 0;
    p.v_in_k = false;
  }
  if (has_out) p.operands[Name::out].dtype = DType::f32;
  for (const Name name : {Name::q_scale, Name::k_scale, Name::v_scale, Name::out_scale, Name::amax}) {
    p.operands[name] = {};
  }
  p.features = p.features.without(Feature::scales | Feature::kv_scales | Feature::transposed_v);
  p.scale_block = 0;
}

core::Plan make_inner_plan(const core::Shape& shape) {
  AttentionShape inner = core::attention(shape);
  make_inner(inner);
  const std::array tables = {cpu_kernels()};
  return core::choose(inner, tables, {}, "forward");
}

const core::Plan& inner_plan(const core::Plan& plan) { return *static_cast<const core::Plan*>(plan.recipe.get()); }

int64_t rows_q(const AttentionShape& p) { return p.features.has(Feature::packed_q) ? p.total_q : p.batch * p.seqlen_q; }
int64_t rows_kv(const AttentionShape& p) {
  return p.features.has(Feature::packed_kv) ? p.total_kv : p.batch * p.seqlen_kv;
}

struct Copies {
  float *q = nullptr, *k = nullptr, *v = nullptr, *out = nullptr;
  std::byte* scratch = nullptr;  // of the other kernel
  int64_t bytes = 0;

  // Of the shape of a plan; without base it only counts.
  Copies(const AttentionShape& p, int64_t scratch_bytes, std::byte* base) {
    Memory memory(base, bytes);
    memory.take(widens(p) ? rows_q(p) * p.heads_q * p.head_dim_qk : 0, q);
    memory.take(widens(p) ? rows_kv(p) * p.heads_kv * p.head_dim_qk : 0, k);
    memory.take(widens(p) ? rows_kv(p) * p.heads_kv * p.head_dim_v : 0, v);
    memory.take(copies_out(p) ? rows_q(p) * p.heads_q * p.head_dim_v : 0, out);
    memory.take(scratch_bytes, scratch);
  }
};

Operand dense(float* data, bool is_packed, int64_t rows, int64_t heads, int64_t dim) {
  return {reinterpret_cast<std::byte*>(data), DType::f32, is_packed ? 0 : rows * heads * dim, heads * dim, dim};
}

// Rows of a piece of work of some 64 KB.
int64_t step_of(int64_t heads, int64_t dim) {
  return std::max<int64_t>((int64_t{64} << 10) / (heads * dim * static_cast<int64_t>(sizeof(float))), 1);
}

// Calls visit(sequence, begin, end) for pieces of all rows of sequences; length: of one.
template <typename Visit>
void for_rows(const AttentionArguments& p, int num_threads, int64_t longest, int64_t step, int64_t Sequence::*length,
              Visit&& visit) {
  const int64_t blocks = ceil_div(longest, step);
  parallel_for(p.batch * blocks, num_threads, p.cancel, [&](int64_t task, int) {
    const Sequence s = core::sequence(p, task / blocks);
    const int64_t begin = task % blocks * step, end = std::min(begin + step, s.*length);
    if (begin < end) visit(s, begin, end);
  });
}

float number(const std::byte* scale) { return scale == nullptr ? 1.0f : *reinterpret_cast<const float*>(scale); }

void widen_q(const AttentionArguments& p, const Operand& into, int num_threads) {
  const Operand& scales = p.tensors[Name::q_scale];
  for_rows(p, num_threads, p.seqlen_q, step_of(p.heads_q, p.head_dim_qk), &Sequence::len_q,
           [&](const Sequence& s, int64_t begin, int64_t end) {
             for (int64_t row = s.row_q + begin; row < s.row_q + end; ++row) {
               for (int64_t head = 0; head < p.heads_q; ++head) {
                 const std::byte* scale =
                     scales.data == nullptr ? nullptr : p.scale_of_q(scales, s.batch_idx, row, head);
                 widen_row(p.q().row(s.batch_idx, row, head), p.dtype(), p.head_dim_qk, number(scale),
                           reinterpret_cast<float*>(into.row(s.batch_idx, row, head)));
               }
             }
           });
}

// A row of a transposed v: elements that lie a row of the tensor apart.
void widen_transposed_row(const AttentionArguments& p, int64_t batch_idx, int64_t row, int64_t head, float scale,
                          float* into) {
  const int64_t place = portable::key_place(row);
  std::array<std::byte, 256> piece;
  for (int64_t column = 0; column < p.head_dim_v; column += std::ssize(piece)) {
    const int64_t count = std::min(std::ssize(piece), p.head_dim_v - column);
    for (int64_t c = 0; c < count; ++c) piece[static_cast<size_t>(c)] = p.v().row(batch_idx, column + c, head)[place];
    widen_row(piece.data(), p.v().dtype, count, scale, into + column);
  }
}

// k or v.
void widen_kv(const AttentionArguments& p, const Operand& from, const Operand& scales, int64_t dim, const Operand& into,
              int num_threads) {
  const bool is_transposed = &from == &p.v() && p.features.has(Feature::transposed_v);
  for_rows(p, num_threads, p.seqlen_kv, step_of(p.heads_kv, dim), &Sequence::len_kv,
           [&](const Sequence& s, int64_t begin, int64_t end) {
             for (int64_t row = s.row_kv + begin; row < s.row_kv + end; ++row) {
               for (int64_t head = 0; head < p.heads_kv; ++head) {
                 const std::byte* scale = scales.data == nullptr ? nullptr : p.scale_of(scales, s.batch_idx, row, head);
                 auto* to = reinterpret_cast<float*>(into.row(s.batch_idx, row, head));
                 if (is_transposed) {
                   widen_transposed_row(p, s.batch_idx, row, head, number(scale), to);
                 } else {
                   widen_row(p.row_of(from, s.batch_idx, row, head), from.dtype, dim, number(scale), to);
                 }
               }
             }
           });
}

// Out and amax of a row from its result.
void finish_row(const AttentionArguments& p, const Operand& result, const Sequence& s, int64_t row, int64_t head) {
  const auto* from = reinterpret_cast<const float*>(result.row(s.batch_idx, row, head));
  if (p.tensors[Name::amax].data != nullptr) {
    const uint32_t most = portable::largest_magnitude(from, p.head_dim_v);
    core::raise_amax(p, s.batch_idx, row, head, portable::bits_float(most));
  }
  if (result.data == p.out().data) return;
  const Operand& scales = p.tensors[Name::out_scale];
  const float divisor =
      scales.data == nullptr ? 1.0f : portable::divisor_of(number(p.scale_of_q(scales, s.batch_idx, row, head)));
  narrow_row(from, p.head_dim_v, divisor, p.out_dtype(), p.out().row(s.batch_idx, row, head));
}

void finish(const AttentionArguments& p, const Operand& result, int num_threads) {
  core::clear_amax(p);
  const int64_t step = step_of(p.heads_q, p.head_dim_v);
  // Rows of no query hold zeros, and no scale.
  const auto copy_zeros = [&](int64_t batch_idx, int64_t begin, int64_t end) {
    if (result.data == p.out().data) return;
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t head = 0; head < p.heads_q; ++head) {
        narrow_row(reinterpret_cast<const float*>(result.row(batch_idx, row, head)), p.head_dim_v, 1.0f, p.out_dtype(),
                   p.out().row(batch_idx, row, head));
      }
    }
  };
  for_rows(p, num_threads, p.seqlen_q, step, &Sequence::slots_q, [&](const Sequence& s, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < std::min(end, s.len_q); ++i) {
      for (int64_t head = 0; head < p.heads_q; ++head) finish_row(p, result, s, s.row_q + i, head);
    }
    copy_zeros(s.batch_idx, s.row_q + std::max(begin, s.len_q), s.row_q + end);
  });
  if (!p.cu_seqlens_q) return;
  const int64_t rest = p.cu_seqlens_q.at(0, p.batch);
  parallel_for(ceil_div(p.total_q - rest, step), num_threads, p.cancel, [&](int64_t task, int) {
    copy_zeros(0, rest + task * step, std::min(rest + (task + 1) * step, p.total_q));
  });
}

}  // namespace

core::Offer offer_widened(const core::Shape& shape, int) {
  const auto inner = std::make_shared<const core::Plan>(make_inner_plan(shape));
  const int64_t scratch_bytes = Copies(core::attention(shape), inner->workspace.scratch_bytes, nullptr).bytes;
  return {.workspace = {.state_bytes = inner->workspace.state_bytes, .scratch_bytes = scratch_bytes}, .recipe = inner};
}

std::string describe_widened(const core::Plan& plan) {
  const core::Plan& inner = inner_plan(plan);
  const AttentionShape& p = core::attention(plan.shape);
  return std::string(widens(p) ? "q, k and v in f32" : "q, k and v as they are") +
         (copies_out(p) ? ", out from f32" : "") + ", by " + std::string(inner.kernel->name) +
         (inner.kernel->describe == nullptr ? "" : ": " + inner.kernel->describe(inner));
}

void run_widened(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void* stream) {
  const AttentionArguments& p = core::attention(arguments);
  const core::Plan& inner = inner_plan(plan);
  const Copies copies(core::attention(plan.shape), inner.workspace.scratch_bytes,
                      static_cast<std::byte*>(workspace.scratch));
  AttentionArguments call = p;
  make_inner(call);
  for (const Name name : {Name::q_scale, Name::k_scale, Name::v_scale, Name::out_scale, Name::amax}) {
    call.tensors[name] = {};
  }
  if (widens(p)) {
    const bool packed_q = p.features.has(Feature::packed_q), packed_kv = p.features.has(Feature::packed_kv);
    call.page_table = call.cache_batch_idx = {};
    call.num_pages = call.slots = 0;
    call.total_kv = packed_kv ? p.total_kv : p.seqlen_kv;
    call.q() = dense(copies.q, packed_q, p.total_q, p.heads_q, p.head_dim_qk);
    call.k() = dense(copies.k, packed_kv, call.total_kv, p.heads_kv, p.head_dim_qk);
    call.v() = dense(copies.v, packed_kv, call.total_kv, p.heads_kv, p.head_dim_v);
    widen_q(p, call.q(), plan.num_threads);
    widen_kv(p, p.k(), p.tensors[Name::k_scale], p.head_dim_qk, call.k(), plan.num_threads);
    widen_kv(p, p.v(), p.tensors[Name::v_scale], p.head_dim_v, call.v(), plan.num_threads);
  }
  if (copies_out(p)) {
    call.out() = dense(copies.out, p.features.has(Feature::packed_q), p.total_q, p.heads_q, p.head_dim_v);
  }
  inner.kernel->run(&call, inner, {workspace.state, copies.scratch}, stream);
  if (copies_out(p) || p.tensors[Name::amax].data != nullptr) finish(p, call.out(), plan.num_threads);
}

}  // namespace tessella::cpu
