// Every precondition gives its code and a sentence with function, argument, got and expected, and a call that fails
// writes nothing.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cases/gpu_kernels.hpp"
#include "cases/gpu_twin.hpp"
#include "cases/small_call.hpp"
#include "tessella/attention.hpp"

namespace ts = tessella;

namespace {

using namespace tessella::tests;

struct ExpectedError {
  const char* name;
  std::function<void(SmallCall&)> spoil;
  ts::ErrorCode code;
  const char* message;  // part of the message
};

constexpr auto kInvalid = ts::ErrorCode::invalid_argument;
constexpr auto kUnsupported = ts::ErrorCode::unsupported;

// Values that a spoiled call points to.
int32_t g_numbers[] = {0, 2, 4, 6, -1, 9};
float g_floats[64] = {};
uint8_t g_bools[64] = {};

ts::TensorView ints(int first, int64_t count) { return ts::view(g_numbers + first, ts::i32, {count}); }

// Two sequences of 4 and 2 queries and of 6 and 4 keys, packed.
void pack(SmallCall& c) {
  static const int32_t cu_q[] = {0, 4, 6}, cu_kv[] = {0, 6, 10};
  c.args.q = ts::view(c.q.data(), ts::f32, {6, kHeadsQ, kDim});
  c.args.k = ts::view(c.k.data(), ts::f32, {10, kHeadsKv, kDim});
  c.args.v = ts::view(c.v.data(), ts::f32, {10, kHeadsKv, kDim});
  c.args.out = ts::view(c.out.data(), ts::f32, {6, kHeadsQ, kDim});
  c.args.lse = {};
  c.args.cu_seqlens_q = ts::view(cu_q, ts::i32, {3});
  c.args.cu_seqlens_kv = ts::view(cu_kv, ts::i32, {3});
  c.options.max_seqlen_q = 4;
  c.options.max_seqlen_kv = 6;
}

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
     kInvalid, "q.dtype is i32, expected f64, f32, bf16 or f16"},
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
    {"sink_repeated", [](SmallCall& c) { c.args.sink = ts::view(g_floats, ts::f32, {2}, {0}); }, kInvalid,
     "sink has shape (2)"},
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
    {"scale", [](SmallCall& c) { c.options.scale = INFINITY; }, kInvalid, "scale is inf, expected a finite number"},
    {"softcap", [](SmallCall& c) { c.options.softcap = -1; }, kInvalid, "softcap is -1"},
    {"softcap_nan", [](SmallCall& c) { c.options.softcap = NAN; }, kInvalid, "softcap is nan"},
    {"dropout_one", [](SmallCall& c) { c.options.dropout = 1; }, kInvalid,
     "dropout is 1, expected a probability in [0, 1)"},
    {"window", [](SmallCall& c) { c.options.mask = ts::Mask::window(-2, 0); }, kInvalid, "window_left is -2"},
    {"chunk", [](SmallCall& c) { c.options.mask = ts::Mask::chunk(-3); }, kInvalid, "chunk is -3"},
    {"keep_first", [](SmallCall& c) { c.options.mask = ts::Mask::keep_first(-1); }, kInvalid, "keep_first is -1"},
    {"num_threads", [](SmallCall& c) { c.options.num_threads = -1; }, kInvalid, "num_threads is -1"},
    {"num_splits", [](SmallCall& c) { c.options.num_splits = 4; }, kUnsupported, "num_splits is 4"},
    {"num_sms", [](SmallCall& c) { c.options.num_sms = 4; }, kUnsupported, "option num_sms is for GPUs"},
    {"score_mod", [](SmallCall& c) { c.options.score_mod = {"return score + 1;"}; }, kUnsupported,
     "option score_mod is for GPUs"},
    {"mask_mod", [](SmallCall& c) { c.options.mask_mod = "return q >= k;"; }, kUnsupported,
     "option mask_mod is for GPUs"},
    {"max_seqlen", [](SmallCall& c) { c.options.max_seqlen_kv = 4; }, kInvalid,
     "max_seqlen_kv is 4, expected 0 or at least 5"},
    {"unknown_kernel", [](SmallCall& c) { c.options.kernel = "cpu.nonsense"; }, kInvalid, "kernel is \"cpu.nonsense\""},
    {"seqlens_count", [](SmallCall& c) { c.args.seqlens_kv = ints(0, 3); }, kInvalid,
     "seqlens_kv has shape (3), expected (2) = (batch)"},
    {"seqlens_dtype", [](SmallCall& c) { c.args.seqlens_kv = ts::view(g_floats, ts::f32, {2}); }, kInvalid,
     "seqlens_kv.dtype is f32, expected i32"},
    {"seqlens_negative", [](SmallCall& c) { c.args.seqlens_kv = ints(4, 2); }, kInvalid, "seqlens_kv[0] is -1"},
    {"seqlens_beyond", [](SmallCall& c) { c.args.seqlens_q = ints(2, 2); }, kInvalid,
     "seqlens_q[0] is 4, expected 0 to 3"},
    {"leftpad_beyond", [](SmallCall& c) { c.args.leftpad_kv = ints(2, 2); }, kInvalid, "leftpad_kv[1] is 6"},
    {"page_table_shape", [](SmallCall& c) { c.args.page_table = ints(0, 3); }, kInvalid,
     "page_table has shape (3), expected (2, 3) = (batch, pages)"},
    {"pages_flattened",
     [](SmallCall& c) {
       c.args.page_table = ts::view(g_numbers, ts::i32, {2, 1});
       c.args.k = ts::view(c.k.data(), ts::f32, {10, 2, 8});
     },
     kInvalid, "k has 3 axes, expected (num_pages, page_size, heads_kv, head_dim) beside page_table"},
    {"page_beyond",
     [](SmallCall& c) {
       c.args.page_table = ts::view(g_numbers, ts::i32, {2, 1});
     },
     kInvalid, "page_table[1][0] is 2, expected 0 to 1, the pages of k"},
    {"pages_packed",
     [](SmallCall& c) {
       c.args.page_table = ts::view(g_numbers, ts::i32, {2, 1});
       c.args.cu_seqlens_kv = ints(0, 3);
     },
     kInvalid, "cu_seqlens_kv is given, expected it absent beside page_table"},
    {"slots_count", [](SmallCall& c) { c.args.cache_batch_idx = ints(0, 3); }, kInvalid,
     "cache_batch_idx has shape (3), expected (2) = (batch)"},
    {"slots_dtype", [](SmallCall& c) { c.args.cache_batch_idx = ts::view(g_floats, ts::f32, {2}); }, kInvalid,
     "cache_batch_idx.dtype is f32, expected i32"},
    {"slot_beyond", [](SmallCall& c) { c.args.cache_batch_idx = ints(0, 2); }, kInvalid,
     "cache_batch_idx[1] is 2, expected 0 to 1, the batch axis of k"},
    {"slot_negative", [](SmallCall& c) { c.args.cache_batch_idx = ints(4, 2); }, kInvalid,
     "cache_batch_idx[0] is -1, expected 0 to 1"},
    {"slots_of_v",
     [](SmallCall& c) {
       c.args.cache_batch_idx = ints(0, 2);
       c.args.v = ts::view(c.v.data(), ts::f32, {1, 5, 2, 8});
     },
     kInvalid, "v.shape[0] is 1, expected 2 = k.shape[0]"},
    {"no_slots",
     [](SmallCall& c) {
       c.args.cache_batch_idx = ints(0, 2);
       c.args.k = c.args.v = ts::view(c.k.data(), ts::f32, {0, 5, 2, 8});
     },
     kInvalid, "k has a batch axis of 0, expected 1 to 2147483647 beside cache_batch_idx"},
    {"slots_paged",
     [](SmallCall& c) {
       c.args.cache_batch_idx = ints(0, 2);
       c.args.page_table = ts::view(g_numbers, ts::i32, {2, 1});
     },
     kInvalid, "cache_batch_idx is given, expected it absent beside page_table"},
    {"slots_packed",
     [](SmallCall& c) {
       c.args.cache_batch_idx = ints(0, 2);
       c.args.cu_seqlens_kv = ints(0, 3);
     },
     kInvalid, "cache_batch_idx is given, expected it absent beside cu_seqlens_kv"},
    {"schedule_on_the_cpu", [](SmallCall& c) { c.args.schedule = ints(0, 4); }, kUnsupported,
     "forward: no forward kernel on the CPU supports schedule"},
    {"schedule_dtype", [](SmallCall& c) { c.args.schedule = ts::view(g_floats, ts::f32, {4}); }, kInvalid,
     "forward: schedule.dtype is f32, expected i32"},
    {"schedule_axes",
     [](SmallCall& c) {
       c.args.schedule = ts::view(g_numbers, ts::i32, {2, 2});
     },
     kInvalid, "forward: schedule has shape (2, 2), expected (n)"},
    {"schedule_strided", [](SmallCall& c) { c.args.schedule = ts::view(g_numbers, ts::i32, {2}, {2}); }, kInvalid,
     "forward: schedule.strides[0] is 2, expected 1: it must be dense"},
    {"schedule_without_memory",
     [](SmallCall& c) { c.args.schedule = ts::view(static_cast<void*>(nullptr), ts::i32, {4}); }, kInvalid,
     "forward: schedule.data is NULL, expected memory"},
    {"schedule_read_only",
     [](SmallCall& c) { c.args.schedule = ts::view(static_cast<const void*>(g_numbers), ts::i32, {4}); }, kInvalid,
     "forward: schedule is read-only, expected memory that may be written"},
    {"schedule_in_an_input",
     [](SmallCall& c) {
       c.args.seqlens_kv = ts::view(g_numbers + 1, ts::i32, {2});
       c.args.schedule = ts::view(g_numbers, ts::i32, {2});
     },
     kInvalid, "forward: schedule overlaps seqlens_kv, expected memory of its own"},
    {"schedule_in_out", [](SmallCall& c) { c.args.schedule = ts::view(c.out.data(), ts::i32, {2}); }, kInvalid,
     "forward: schedule overlaps out, expected memory of its own"},
    {"schedule_batch_invariant",
     [](SmallCall& c) {
       c.args.schedule = ints(0, 4);
       c.options.batch_invariant = true;
     },
     kInvalid, "forward: schedule is given, expected it absent beside batch_invariant"},
    {"schedule_and_splits",
     [](SmallCall& c) {
       c.args.schedule = ints(0, 4);
       c.options.num_splits = 2;
     },
     kInvalid, "forward: num_splits is 2, expected 0 beside schedule, which says where keys are split"},
    {"draft_dtype",
     [](SmallCall& c) {
       c.args.draft_mask = ts::view(g_floats, ts::f32, {3, 3});
     },
     kInvalid, "draft_mask.dtype is f32, expected bool (true = visible)"},
    {"draft_shape",
     [](SmallCall& c) {
       c.args.draft_mask = ts::view(g_bools, ts::boolean, {2, 3, 2});
     },
     kInvalid, "draft_mask has shape (2, 3, 2), expected (2 or 1, 3, 3) = (batch, seqlen_q, seqlen_q)"},
    {"draft_of_keys",
     [](SmallCall& c) {
       c.args.draft_mask = ts::view(g_bools, ts::boolean, {3, 5});
     },
     kInvalid, "draft_mask has shape (3, 5), expected (2 or 1, 3, 3)"},
    {"draft_of_heads",
     [](SmallCall& c) {
       c.args.draft_mask = ts::view(g_bools, ts::boolean, {1, 1, 3, 3});
     },
     kInvalid, "draft_mask has shape (1, 1, 3, 3), expected (2 or 1, 3, 3)"},
    {"draft_of_all_rows",
     [](SmallCall& c) {
       pack(c);
       c.args.draft_mask = ts::view(g_bools, ts::boolean, {6, 6});
     },
     kInvalid,
     "draft_mask has shape (6, 6), expected (2 or 1, 4, 4) = (batch, seqlen_q, seqlen_q), beside cu_seqlens that of "
     "the "
     "longest sequence up to max_seqlen_q"},
    {"cu_beyond",
     [](SmallCall& c) {
       c.args.q = ts::view(c.q.data(), ts::f32, {4, kHeadsQ, kDim});
       c.args.out = ts::view(c.out.data(), ts::f32, {4, kHeadsQ, kDim});
       c.args.lse = {};
       static const int32_t cu[] = {0, 2, std::numeric_limits<int32_t>::max()};
       c.args.cu_seqlens_q = ts::view(cu, ts::i32, {3});
     },
     kInvalid, "cu_seqlens_q[2] is 2147483647, expected at most 4, the rows of the packed tensor"},
    {"batch_of_nothing",
     [](SmallCall& c) {
       const int64_t many = int64_t{1} << 40;
       for (ts::TensorView* t : {&c.args.q, &c.args.k, &c.args.v, &c.args.out}) {
         *t = ts::TensorView(changed(*t, [&](tessella_tensor& tensor) {
           tensor.shape[0] = many;
           tensor.shape[1] = 0;
         }));
       }
       c.args.lse = {};
     },
     kUnsupported, "batch is 1099511627776, expected at most 2147483647"},
    {"cu_with_batch_axis", [](SmallCall& c) { c.args.cu_seqlens_q = ints(0, 3); }, kInvalid,
     "q has shape (2, 3, 4, 8)"},
    {"prefix_negative", [](SmallCall& c) { c.options.mask = ts::Mask::prefix(ints(4, 2)); }, kInvalid,
     "prefix_lengths[0] is -1"},
    {"bias_shape",
     [](SmallCall& c) {
       c.args.bias = ts::view(g_floats, ts::f32, {3, 4});
     },
     kInvalid, "bias has shape (3, 4), expected one that broadcasts to (2, 4, 3, 5)"},
    {"packed_bias_of_all_rows",
     [](SmallCall& c) {
       pack(c);
       c.args.bias = ts::view(g_floats, ts::f32, {6, 10});
     },
     kInvalid,
     "bias has shape (6, 10), expected one that broadcasts to (2, 4, 4, 6) = (batch, heads_q, queries, keys), beside "
     "cu_seqlens those of the longest sequence up to max_seqlen"},
    {"packed_bias_of_all_keys",
     [](SmallCall& c) {
       pack(c);
       c.args.bias = ts::view(g_floats, ts::f32, {10});
     },
     kInvalid, "bias has shape (10), expected one that broadcasts to (2, 4, 4, 6)"},
    {"packed_bias_too_small",
     [](SmallCall& c) {
       pack(c);
       c.args.bias = ts::view(g_floats, ts::f32, {3, 6});
     },
     kInvalid, "bias has shape (3, 6), expected one that broadcasts to (2, 4, 4, 6)"},
    {"packed_dense_of_all_rows",
     [](SmallCall& c) {
       pack(c);
       c.options.mask = ts::Mask::dense(ts::view(g_bools, ts::boolean, {6, 10}));
     },
     kInvalid, "dense_mask has shape (6, 10), expected one that broadcasts to (2, 4, 4, 6)"},
    {"packed_block_map_of_all_rows",
     [](SmallCall& c) {
       pack(c);
       c.options.mask = ts::Mask::block_map(ts::view(g_bools, ts::boolean, {3, 5}), 2, 2);
     },
     kInvalid, "block_map has shape (3, 5), expected one that broadcasts to (2, 4, 2, 3)"},
    {"bias_dtype",
     [](SmallCall& c) {
       c.args.bias = ts::view(g_floats, ts::f16, {3, 5});
     },
     kInvalid, "bias.dtype is f16"},
    {"alibi_shape", [](SmallCall& c) { c.args.alibi_slopes = ts::view(g_floats, ts::f32, {3}); }, kInvalid,
     "alibi_slopes has shape (3), expected (4) or (2, 4)"},
    {"sink_shape", [](SmallCall& c) { c.args.sink = ts::view(g_floats, ts::f32, {2}); }, kInvalid,
     "sink has shape (2)"},
    {"dense_dtype",
     [](SmallCall& c) {
       c.options.mask = ts::Mask::dense(ts::view(g_floats, ts::f32, {3, 5}));
     },
     kInvalid, "dense_mask.dtype is f32, expected bool"},
    {"block_map_size",
     [](SmallCall& c) {
       c.options.mask = ts::Mask::block_map(ts::view(g_bools, ts::boolean, {1, 1}), 0, 2);
     },
     kInvalid, "block_map_q is 0"},
    {"block_map_shape",
     [](SmallCall& c) {
       c.options.mask = ts::Mask::block_map(ts::view(g_bools, ts::boolean, {3, 3}), 2, 2);
     },
     kInvalid, "block_map has shape (3, 3), expected one that broadcasts to (2, 4, 2, 3)"},
    {"document_kv_absent",
     [](SmallCall& c) {
       c.options.mask = ts::Mask::document(ts::view(g_numbers, ts::i32, {2, 3}));
     },
     kInvalid, "document_ids_kv is absent"},
};

class ErrorsTest : public testing::TestWithParam<ExpectedError> {};

TEST_P(ErrorsTest, HasItsCodeAndSentenceAndTouchesNothing) {
  SmallCall call;
  GetParam().spoil(call);
  try {
    ts::forward(call.args, call.options);
    FAIL() << "accepted";
  } catch (const ts::Error& error) {
    EXPECT_EQ(error.code(), GetParam().code) << error.what();
    EXPECT_NE(std::string(error.what()).find(GetParam().message), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).rfind("forward: ", 0), 0u) << error.what();
  }
  for (const float value : call.out) ASSERT_EQ(value, -7.0f);
  for (const float value : call.lse) ASSERT_EQ(value, -7.0f);
}

// The same call with tensors that are said to be on a GPU: it is an error before any of them is touched.
TEST_P(ErrorsTest, IsTheSameForAGpu) {
  if (const std::string problem = gpu_arguments(); !problem.empty()) GTEST_SKIP() << problem;
  const std::string_view name = GetParam().name;
  for (const char* other : {"num_sms", "num_splits", "schedule_on_the_cpu", "score_mod", "mask_mod"}) {
    if (name == other) GTEST_SKIP() << "differs on a GPU";
  }
  for (const char* value : {"seqlens_negative", "seqlens_beyond", "leftpad_beyond", "page_beyond", "slot_beyond",
                            "slot_negative", "prefix_negative", "cu_beyond"}) {
    if (name == value) GTEST_SKIP() << "values on a GPU are not read";
  }
  SmallCall call;
  GetParam().spoil(call);
  if (call.options.kernel.empty()) call.options.kernel = "cuda.nonsense";  // so that nothing can run
  const ts::detail::ForwardCall c(call.args, call.options);
  std::deque<tessella_tensor> tensors;
  const tessella_forward_args args = tessella::tests::said_to_be_on_gpu(c.args, tensors);
  EXPECT_EQ(tessella_forward(&args, &c.options, nullptr), static_cast<tessella_status>(GetParam().code));
  const std::string message = tessella_last_error();
  if (message.find("no CUDA backend") != std::string::npos) GTEST_SKIP() << message;
  EXPECT_NE(message.find(GetParam().message), std::string::npos) << message;
}

// (6, 10) would be the packed rows, and a GPU's lengths are not read: it has to be told the longest.
TEST(Packed, ScoreTensorsOnAGpuWantABoundOfLengths) {
  if (const std::string problem = gpu_arguments(); !problem.empty()) GTEST_SKIP() << problem;
  const auto error_of_call = [](const std::function<void(SmallCall&)>& change) {
    SmallCall call;
    pack(call);
    change(call);
    call.options.kernel = "cuda.nonsense";  // so that nothing can run
    const ts::detail::ForwardCall c(call.args, call.options);
    std::deque<tessella_tensor> tensors;
    const tessella_forward_args args = said_to_be_on_gpu(c.args, tensors);
    EXPECT_EQ(tessella_forward(&args, &c.options, nullptr), TESSELLA_INVALID_ARGUMENT);
    return std::string(tessella_last_error());
  };
  const std::string accepted = "kernel is \"cuda.nonsense\"";
  const std::string no_bound =
      "forward: max_seqlen_q is 0, expected the longest sequence beside cu_seqlens_q on a GPU: bias counts queries "
      "from "
      "the first of each sequence";
  EXPECT_EQ(error_of_call([](SmallCall& c) {
              c.options.max_seqlen_q = c.options.max_seqlen_kv = 0;
              c.args.bias = ts::view(g_floats, ts::f32, {6, 10});
            }),
            no_bound);
  EXPECT_NE(error_of_call([](SmallCall& c) {
              c.options.max_seqlen_kv = 0;
              c.args.bias = ts::view(g_floats, ts::f32, {4, 10});
            })
                .find("forward: max_seqlen_kv is 0, expected the longest sequence beside cu_seqlens_kv on a GPU: bias "
                      "counts keys"),
            std::string::npos);
  EXPECT_NE(error_of_call([](SmallCall& c) {
              c.options.max_seqlen_q = 0;  // no axis of queries
              c.args.bias = ts::view(g_floats, ts::f32, {1, 6});
            }).find(accepted),
            std::string::npos);
  EXPECT_NE(error_of_call([](SmallCall& c) {
              c.args.bias = ts::view(g_floats, ts::f32, {4, 6});
            }).find(accepted),
            std::string::npos);
}

// From the longest sequence up to the bound that the caller gives, in each sequence's own queries and keys.
TEST(Packed, ScoreTensorsCountFromTheFirstOfEachSequence) {
  const auto run = [](const std::function<void(SmallCall&)>& change) {
    SmallCall call;
    pack(call);
    for (size_t at = 0; at < call.v.size(); ++at) call.v[at] = static_cast<float>(at % 37);
    change(call);
    ts::forward(call.args, call.options);
    EXPECT_EQ(ts::check_forward(call.args, call.options, 0).passed, 1);
    return call.out;
  };
  std::vector<float> bias(5 * 7), cut;
  for (size_t at = 0; at < bias.size(); ++at) bias[at] = static_cast<float>(at % 5);
  for (size_t i = 0; i < 4; ++i) cut.insert(cut.end(), &bias[i * 7], &bias[i * 7 + 6]);
  const std::vector<float> expected = run([&](SmallCall& c) {
    c.options.max_seqlen_q = c.options.max_seqlen_kv = 0;
    c.args.bias = ts::view(cut.data(), ts::f32, {4, 6});
  });
  EXPECT_EQ(run([&](SmallCall& c) {
              c.options.max_seqlen_q = 5;
              c.options.max_seqlen_kv = 7;
              c.args.bias = ts::view(bias.data(), ts::f32, {5, 7});
            }),
            expected);
  // The second sequence, alone: its rows 4 and 5 of q, 6 to 9 of k and v, with the bias from its first entry.
  SmallCall alone;
  for (size_t at = 0; at < alone.v.size(); ++at) alone.v[at] = static_cast<float>(at % 37);
  alone.args.q = ts::view(alone.q.data() + 4 * kHeadsQ * kDim, ts::f32, {2, kHeadsQ, kDim});
  alone.args.k = ts::view(alone.k.data() + 6 * kHeadsKv * kDim, ts::f32, {4, kHeadsKv, kDim});
  alone.args.v = ts::view(alone.v.data() + 6 * kHeadsKv * kDim, ts::f32, {4, kHeadsKv, kDim});
  alone.args.out = ts::view(alone.out.data(), ts::f32, {2, kHeadsQ, kDim});
  alone.args.lse = {};
  alone.args.bias = ts::view(bias.data(), ts::f32, {2, 4}, {7, 1});
  ts::forward(alone.args, alone.options);
  for (int64_t at = 0; at < 2 * kHeadsQ * kDim; ++at) {
    EXPECT_NEAR(expected[static_cast<size_t>(4 * kHeadsQ * kDim + at)], alone.out[static_cast<size_t>(at)], 1e-5);
  }
  // Of the CPU, whose lengths are read, also without a bound.
  SmallCall rows;
  pack(rows);
  rows.options.max_seqlen_q = rows.options.max_seqlen_kv = 0;
  rows.args.bias = ts::view(g_floats, ts::f32, {6, 10});
  try {
    ts::forward(rows.args, rows.options);
    FAIL();
  } catch (const ts::Error& error) {
    EXPECT_STREQ(error.what(),
                 "forward: bias has shape (6, 10), expected one that broadcasts to (2, 4, 4, 6) = (batch, heads_q, "
                 "queries, keys), beside cu_seqlens those of the longest sequence up to max_seqlen");
  }
}

INSTANTIATE_TEST_SUITE_P(All, ErrorsTest, testing::ValuesIn(kErrors),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
