// Errors of q, k, v, out and lse.
#include <cstdint>
#include <span>

#include "api/errors/expected_error.hpp"

namespace tessella::tests {
namespace {

const ExpectedError kErrors[] = {
    {"q_absent", [](SmallCall& c) { c.args.q = {}; }, kInvalid, "forward: q is NULL, expected a tensor"},
    {"out_absent", [](SmallCall& c) { c.args.out = {}; }, kInvalid, "out is NULL"},
    {"k_head_dim",
     [](SmallCall& c) {
       c.args.k = ts::view(c.k.data(), ts::f32, {kBatch, kSeqlenKv, kHeadsKv, 4});
     },
     kInvalid, "forward: k.shape[3] is 4, expected 8 = q.shape[-1] (layout batch, seqlen, heads, head_dim)"},
    {"k_batch",
     [](SmallCall& c) {
       c.args.k = ts::view(c.k.data(), ts::f32, {1, kSeqlenKv, kHeadsKv, kDim});
     },
     kInvalid, "k.shape[0] is 1, expected 2"},
    {"v_rows",
     [](SmallCall& c) {
       c.args.v = ts::view(c.v.data(), ts::f32, {kBatch, 4, kHeadsKv, kDim});
     },
     kInvalid, "v.shape[1] is 4, expected 5"},
    {"v_heads",
     [](SmallCall& c) {
       c.args.v = ts::view(c.v.data(), ts::f32, {kBatch, kSeqlenKv, 1, kDim});
     },
     kInvalid, "v.shape[2] is 1, expected 2"},
    {"heads_do_not_divide",
     [](SmallCall& c) {
       c.args.k = ts::view(c.k.data(), ts::f32, {kBatch, 2, 3, kDim});
       c.args.v = ts::view(c.v.data(), ts::f32, {kBatch, 2, 3, kDim});
     },
     kInvalid, "q has 4 heads and k has 3, expected heads of q to be a multiple"},
    {"swapped_axes_are_named",
     [](SmallCall& c) {
       c.args.q = ts::view(c.q.data(), ts::f32, {kBatch, kHeadsQ, kSeqlenQ, kDim});
       c.args.k = ts::view(c.k.data(), ts::f32, {kBatch, kHeadsKv, kSeqlenKv, kDim});
     },
     kInvalid, ""},
    {"out_head_dim",
     [](SmallCall& c) {
       c.args.out = ts::view(c.out.data(), ts::f32, {kBatch, kSeqlenQ, kHeadsQ, 4});
     },
     kInvalid, "out.shape[3] is 4, expected 8"},
    {"out_dtype",
     [](SmallCall& c) {
       c.args.out = ts::view(c.out.data(), ts::bf16, {kBatch, kSeqlenQ, kHeadsQ, kDim});
     },
     kInvalid, "out.dtype is bf16, expected f32"},
    {"k_dtype",
     [](SmallCall& c) {
       c.args.k = ts::view(c.k.data(), ts::i64, {kBatch, kSeqlenKv, 1, kDim});
     },
     kInvalid, "k.dtype is i64, expected f32 = q.dtype, or f8e4m3fn, i8 or i4"},
    {"q_dtype",
     [](SmallCall& c) {
       c.args.q = ts::view(c.q.data(), ts::i32, {kBatch, kSeqlenQ, kHeadsQ, kDim});
     },
     kInvalid, "q.dtype is i32, expected f64, f32, bf16, f16, f8e4m3fn or f8e5m2"},
    {"no_heads_q",
     [](SmallCall& c) {
       c.args.q = ts::view(c.q.data(), ts::f32, {kBatch, kSeqlenQ, 0, kDim});
     },
     kInvalid, "forward: q has 0 heads, expected at least 1 (layout batch, seqlen, heads, head_dim)"},
    {"no_heads_kv",
     [](SmallCall& c) {
       c.args.k = ts::view(c.k.data(), ts::f32, {kBatch, kSeqlenKv, 0, kDim});
       c.args.v = ts::view(c.v.data(), ts::f32, {kBatch, kSeqlenKv, 0, kDim});
     },
     kInvalid, "forward: k has 0 heads, expected at least 1 (layout batch, seqlen, heads, head_dim)"},
    {"option_out_dtype", [](SmallCall& c) { c.options.out_dtype = ts::bf16; }, kInvalid,
     "out_dtype is bf16, expected f32 = q.dtype"},
    {"option_out_dtype_unknown", [](SmallCall& c) { c.options.out_dtype = static_cast<ts::DType>(13); }, kInvalid,
     "out_dtype is 13, expected one of tessella_dtype"},
    {"negative_stride",
     [](SmallCall& c) { c.args.q = ts::TensorView(changed(c.args.q, [](tessella_tensor& t) { t.strides[1] = -32; })); },
     kInvalid, "q.strides[1] is -32, expected at least 0"},
    {"head_dim_stride",
     [](SmallCall& c) {
       c.args.q = ts::view(c.q.data(), ts::f32, {kBatch, kSeqlenQ, kHeadsQ, 2}, {96, 32, 8, 2});
     },
     kInvalid, "q.strides[3] is 2, expected 1: head_dim must be contiguous"},
    {"ndim",
     [](SmallCall& c) {
       c.args.q = ts::view(c.q.data(), ts::f32, {1, 1, 3, 4, 8});
     },
     kInvalid, "q has shape"},
    {"null_data",
     [](SmallCall& c) {
       c.args.v = ts::view(static_cast<void*>(nullptr), ts::f32, {2, 5, 2, 8});
     },
     kInvalid, "v.data is NULL"},
    {"misaligned",
     [](SmallCall& c) {
       c.args.k = ts::view(reinterpret_cast<char*>(c.k.data()) + 1, ts::f32, {kBatch, kSeqlenKv - 1, kHeadsKv, kDim});
     },
     kInvalid, "k.data is not aligned, expected a multiple of 4 bytes"},
    {"reserved",
     [](SmallCall& c) { c.args.q = ts::TensorView(changed(c.args.q, [](tessella_tensor& t) { t.reserved[1] = 1; })); },
     kInvalid, "q.reserved is 1, expected zeros"},
    {"huge",
     [](SmallCall& c) {
       c.args.q = ts::TensorView(changed(c.args.q, [](tessella_tensor& t) { t.shape[0] = int64_t{1} << 61; }));
     },
     kInvalid, "expected one whose bytes fit in 62 bits"},
    {"out_read_only",
     [](SmallCall& c) {
       c.args.out = ts::view(static_cast<const void*>(c.out.data()), ts::f32, {kBatch, kSeqlenQ, kHeadsQ, kDim});
     },
     kInvalid, "out is read-only"},
    {"out_is_q",
     [](SmallCall& c) {
       c.args.out = ts::view(c.q.data(), ts::f32, {kBatch, kSeqlenQ, kHeadsQ, kDim});
     },
     kInvalid, "out overlaps q, expected memory of its own"},
    {"out_in_v",
     [](SmallCall& c) {
       c.args.v = ts::view(c.out.data() + 16, ts::f32, {kBatch, kSeqlenKv, kHeadsKv, kDim});
     },
     kInvalid, "out overlaps v"},
    {"out_folded",
     [](SmallCall& c) {
       c.args.out = ts::view(c.out.data(), ts::f32, {kBatch, kSeqlenQ, kHeadsQ, kDim}, {96, 32, 0, 1});
     },
     kInvalid, "out has an axis of stride 0, expected at least 8 so that no two elements share memory"},
    {"out_over_bias",
     [](SmallCall& c) {
       c.args.bias = ts::view(c.out.data(), ts::f32, {kSeqlenQ, kSeqlenKv});
     },
     kInvalid, "out overlaps bias"},
    {"lse_in_out",
     [](SmallCall& c) {
       c.args.lse = ts::view(c.out.data(), ts::f32, {kBatch, kHeadsQ, kSeqlenQ});
     },
     kInvalid, "lse overlaps out"},
    {"lse_shape",
     [](SmallCall& c) {
       c.args.lse = ts::view(c.lse.data(), ts::f32, {kBatch, kSeqlenQ, kHeadsQ});
     },
     kInvalid, "lse has shape (2, 3, 4), expected (2, 4, 3) = (batch, heads_q, seqlen_q)"},
    {"lse_dtype",
     [](SmallCall& c) {
       c.args.lse = ts::view(c.lse.data(), ts::bf16, {kBatch, kHeadsQ, kSeqlenQ});
     },
     kInvalid, "lse.dtype is bf16, expected f32"},
};

}  // namespace

std::span<const ExpectedError> tensor_errors() { return kErrors; }

}  // namespace tessella::tests
