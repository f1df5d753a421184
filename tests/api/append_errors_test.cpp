// Every error of append and copy_pages: its code and sentence; an append that fails writes nothing.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string_view>

#include "cases/append_call.hpp"
#include "cases/copy_pages_call.hpp"
#include "cases/small_append.hpp"
#include "tessella/tessella.h"

namespace {

using namespace tessella::tests;

constexpr auto kInvalid = TESSELLA_INVALID_ARGUMENT;

struct ExpectedError {
  const char* name;
  AppendCase c;
  std::function<void(AppendCall&)> spoil;
  tessella_status status;
  const char* message;  // part of the message
};

const AppendCase kPlain = contiguous();
const AppendCase kPaged = with([](AppendCase& c) { c.page_size = 4; });
const AppendCase kPacked = with([](AppendCase& c) { c.packed = true; });
const AppendCase kRagged = with([](AppendCase& c) { c.ragged = true; });
const AppendCase kSlots = with([](AppendCase& c) { c.slots = true; });
const AppendCase kInt4 = with([](AppendCase& c) {
  c.cache_dtype = TESSELLA_I4;
  c.scale = "h";
});
const AppendCase kF64 = with([](AppendCase& c) { c.dtype = TESSELLA_F64; });
const AppendCase kPadded = with([](AppendCase& c) { c.leftpad = true; });

const ExpectedError kErrors[] = {
    {"nothing_new", kPlain, [](AppendCall& c) { c.args().k_new = c.args().v_new = nullptr; }, kInvalid,
     "append: k_new and v_new are NULL, expected one of them or both"},
    {"cache_absent", kPlain, [](AppendCall& c) { c.args().k = nullptr; }, kInvalid,
     "append: k is NULL, expected it beside k_new"},
    {"rows_absent", kPlain, [](AppendCall& c) { c.args().v_new = nullptr; }, kInvalid,
     "append: v_new is NULL, expected it beside v"},
    {"sin_absent", kPlain, [](AppendCall& c) { c.args().rotary_sin = nullptr; }, kInvalid,
     "append: rotary_sin is NULL, expected it beside rotary_cos"},
    {"q_out_absent", kPlain, [](AppendCall& c) { c.args().q_out = nullptr; }, kInvalid,
     "append: q_out is NULL, expected it beside q"},
    {"q_without_angles", kPlain, [](AppendCall& c) { c.args().rotary_cos = c.args().rotary_sin = nullptr; }, kInvalid,
     "append: q is given, expected it beside rotary_cos and rotary_sin"},
    {"seqlens_absent", kPlain, [](AppendCall& c) { c.args().seqlens_kv = nullptr; }, kInvalid,
     "append: seqlens_kv is NULL, expected a tensor"},
    {"integers", kPlain, [](AppendCall& c) { edit(c.args().k_new).dtype = TESSELLA_I32; }, kInvalid,
     "append: k_new.dtype is i32, expected f64, f32, bf16 or f16"},
    {"dtypes_differ", kPlain, [](AppendCall& c) { edit(c.args().v_new).dtype = TESSELLA_BF16; }, kInvalid,
     "append: v_new.dtype is bf16, expected f32 = k_new.dtype"},
    {"cache_dtype", kPlain, [](AppendCall& c) { edit(c.args().k).dtype = TESSELLA_F16; }, kInvalid,
     "append: k.dtype is f16, expected f32 = k_new.dtype, or f8e4m3fn, i8 or i4"},
    {"cache_dtypes_differ", kGiven, [](AppendCall& c) { edit(c.args().v).dtype = TESSELLA_F8E4M3FN; }, kInvalid,
     "append: v.dtype is f8e4m3fn, expected i8 = k.dtype"},
    {"no_such_cache", kGiven, [](AppendCall& c) { edit(c.args().k).dtype = TESSELLA_F8E5M2; }, kInvalid,
     "append: k.dtype is f8e5m2, expected f32 = k_new.dtype, or f8e4m3fn, i8 or i4"},
    {"f64_is_not_quantized", kF64, [](AppendCall& c) { edit(c.args().k).dtype = TESSELLA_I8; }, kInvalid,
     "append: k.dtype is i8, expected f64 = k_new.dtype"},
    {"odd_int4", kInt4,
     [](AppendCall& c) {
       edit(c.args().v).shape[3] = 5;
       edit(c.args().v_new).shape[3] = 5;
     },
     kInvalid, "append: v.shape[-1] is 5, expected an even number for i4"},
    {"scale_of_floats", kPlain, [](AppendCall& c) { c.args().k_scale = c.args().rotary_cos; }, kInvalid,
     "append: k_scale is given and k.dtype is f32, expected a dtype of 8 or 4 bits"},
    {"scale_without_cache", kGiven, [](AppendCall& c) { c.args().v = c.args().v_new = nullptr; }, kInvalid,
     "append: v_scale is given, expected it beside v"},
    {"scale_block_of_floats", kPlain, [](AppendCall& c) { c.options().scale_block = 1; }, kInvalid,
     "append: scale_block is 1, expected 0 for a cache of f32, which has no scales"},
    {"scale_block", kGiven, [](AppendCall& c) { c.options().scale_block = -1; }, kInvalid,
     "append: scale_block is -1, expected at least 0 (all rows)"},
    {"scale_of_several_rows", kComputed, [](AppendCall& c) { c.options().scale_block = 16; }, TESSELLA_UNSUPPORTED,
     "append: scale_block is 16, expected 0 (the scales are given) or 1"},
    {"scale_absent", kComputed, [](AppendCall& c) { c.args().v_scale = nullptr; }, kInvalid,
     "append: v_scale is NULL, expected memory for the scales of the new rows: scale_block is 1"},
    {"given_scale_absent", kGiven, [](AppendCall& c) { c.args().k_scale = nullptr; }, kInvalid,
     "append: k_scale is NULL, expected the scales of a cache of i8 (where it has none, one scale of 1)"},
    {"scale_dtype", kGiven, [](AppendCall& c) { edit(c.args().k_scale).dtype = TESSELLA_F16; }, kInvalid,
     "append: k_scale.dtype is f16, expected f32"},
    {"scale_shape", kGiven, [](AppendCall& c) { edit(c.args().k_scale).shape[2] = 3; }, kInvalid,
     "append: k_scale has shape (2, 1, 3), expected one that broadcasts to (2, 1, 2) = (batch, blocks, heads)"},
    {"one_scale_for_all", kComputed, [](AppendCall& c) { edit(c.args().k_scale).shape[2] = 1; }, kInvalid,
     "append: k_scale has one entry for several rows or heads, expected one for each, (2, 9, 2)"},
    {"read_only_scale", kComputed, [](AppendCall& c) { edit(c.args().k_scale).flags = TESSELLA_READ_ONLY; }, kInvalid,
     "append: k_scale is read-only, expected memory that may be written"},
    {"scales_overlap", kComputed, [](AppendCall& c) { edit(c.args().v_scale).data = c.args().k_scale->data; }, kInvalid,
     "append: v_scale overlaps k_scale, expected memory of its own"},
    {"rows", kPlain, [](AppendCall& c) { edit(c.args().v_new).shape[1] = 2; }, kInvalid,
     "append: v_new.shape[1] is 2, expected 3 = the rows of k_new (layout batch, seqlen, heads, head_dim)"},
    {"heads", kPlain, [](AppendCall& c) { edit(c.args().k).shape[2] = 1; }, kInvalid,
     "append: k.shape[2] is 1, expected 2 = the heads of k_new"},
    {"head_dim", kPlain, [](AppendCall& c) { edit(c.args().v).shape[3] = 5; }, kInvalid,
     "append: v.shape[3] is 5, expected 6 = v_new.shape[-1]"},
    {"batch", kPlain, [](AppendCall& c) { edit(c.args().k).shape[0] = 1; }, kInvalid,
     "append: k.shape[0] is 1, expected 2 = the batch of k_new"},
    {"slots", kSlots, [](AppendCall& c) { edit(c.args().v).shape[0] = 3; }, kInvalid,
     "append: v.shape[0] is 3, expected 4 = k.shape[0]"},
    {"rows_of_caches", kPlain, [](AppendCall& c) { edit(c.args().v).shape[1] = 8; }, kInvalid,
     "append: v.shape[1] is 8, expected 9 = the rows of k"},
    {"pool_axes", kPaged, [](AppendCall& c) { edit(c.args().k).ndim = 3; }, kInvalid,
     "append: k has 3 axes, expected (num_pages, page_size, heads_kv, head_dim) beside page_table"},
    {"table_shape", kPaged, [](AppendCall& c) { edit(c.args().page_table).shape[0] = 1; }, kInvalid,
     "append: page_table has shape (1, 3), expected (2, 3) = (batch, pages)"},
    {"slots_beside_pages", kPaged, [](AppendCall& c) { c.args().cache_batch_idx = c.args().seqlens_kv; }, kInvalid,
     "append: cache_batch_idx is given, expected it absent beside page_table"},
    {"seqlens_shape", kPlain, [](AppendCall& c) { edit(c.args().seqlens_kv).shape[0] = 1; }, kInvalid,
     "append: seqlens_kv has shape (1), expected (2) = (batch)"},
    {"seqlens_dtype", kPlain, [](AppendCall& c) { edit(c.args().seqlens_kv).dtype = TESSELLA_I64; }, kInvalid,
     "append: seqlens_kv.dtype is i64, expected i32"},
    {"rotary_axes", kPlain, [](AppendCall& c) { edit(c.args().rotary_cos).ndim = 1; }, kInvalid,
     "append: rotary_cos has 1 axes, expected (positions, rotary_dim / 2)"},
    {"rotary_dtype", kPlain, [](AppendCall& c) { edit(c.args().rotary_cos).dtype = TESSELLA_BF16; }, kInvalid,
     "append: rotary_cos.dtype is bf16, expected f32"},
    {"rotary_shapes", kPlain, [](AppendCall& c) { edit(c.args().rotary_sin).shape[1] = 2; }, kInvalid,
     "append: rotary_sin has shape ("},
    {"rotary_dim", kPlain,
     [](AppendCall& c) {
       edit(c.args().rotary_cos).shape[1] = 5;
       edit(c.args().rotary_sin).shape[1] = 5;
     },
     kInvalid, "append: rotary_cos.shape[1] is 5, expected at most 4, half the head_dim of k_new"},
    {"positions", kPlain,
     [](AppendCall& c) {
       edit(c.args().rotary_cos).shape[0] = 2;
       edit(c.args().rotary_sin).shape[0] = 2;
     },
     kInvalid, "expected 0 to 1, the rows of rotary_cos"},
    {"past_the_cache", kPlain, [](AppendCall& c) { value(c.args().seqlens_kv, 1) = 10; }, kInvalid,
     "append: seqlens_kv[1] is 10, expected at most 9, the rows that a sequence may have"},
    {"before_the_cache", kPlain, [](AppendCall& c) { value(c.args().seqlens_kv, 0) = 2; }, kInvalid,
     "append: seqlens_kv[0] is 2, expected at least 3, the left padding and the 3 new rows, which count"},
    {"into_the_padding", kPadded,
     [](AppendCall& c) { value(c.args().leftpad_kv, 1) = value(c.args().seqlens_kv, 1) - 2; }, kInvalid,
     "the left padding and the 3 new rows"},
    {"padding", kPadded, [](AppendCall& c) { value(c.args().leftpad_kv, 1) = -1; }, kInvalid,
     "append: leftpad_kv[1] is -1, expected at least 0"},
    {"ragged", kRagged, [](AppendCall& c) { value(c.args().seqlens_new, 0) = 4; }, kInvalid,
     "append: seqlens_new[0] is 4, expected 0 to 3, the rows of the sequence"},
    {"packed_first", kPacked, [](AppendCall& c) { value(c.args().cu_seqlens_new, 0) = 1; }, kInvalid,
     "append: cu_seqlens_new[0] is 1, expected 0"},
    {"packed_falls", kPacked, [](AppendCall& c) { value(c.args().cu_seqlens_new, 1) = -1; }, kInvalid,
     "append: cu_seqlens_new[1] is -1, expected at least 0"},
    {"packed_beyond", kPacked, [](AppendCall& c) { value(c.args().cu_seqlens_new, 2) = 100; }, kInvalid,
     "append: cu_seqlens_new[2] is 100, expected at most"},
    {"page", kPaged,
     [](AppendCall& c) {
       for (int i = 0; i < 6; ++i) value(c.args().page_table, i) = 9;
     },
     kInvalid, "is 9, expected 0 to 8, the pages of k"},
    {"slot", kSlots, [](AppendCall& c) { value(c.args().cache_batch_idx, 1) = 4; }, kInvalid,
     "append: cache_batch_idx[1] is 4, expected 0 to 3, the batch of k"},
    {"one_slot_for_two", kSlots,
     [](AppendCall& c) {
       value(c.args().cache_batch_idx, 0) = value(c.args().cache_batch_idx, 1) = 2;
       value(c.args().seqlens_kv, 0) = 5;
       value(c.args().seqlens_kv, 1) = 6;
     },
     kInvalid, "append: sequences 0 and 1 have a new row in row 3 of batch 2 of k, expected rows of their own"},
    {"one_page_for_two", kPaged,
     [](AppendCall& c) {
       for (int i = 0; i < 6; ++i) value(c.args().page_table, i) = i % 3;
       value(c.args().seqlens_kv, 0) = value(c.args().seqlens_kv, 1) = 4;
     },
     kInvalid, "append: sequences 0 and 1 have a new row in row 1 of page 0 of k"},
    {"read_only", kPlain, [](AppendCall& c) { edit(c.args().v).flags = TESSELLA_READ_ONLY; }, kInvalid,
     "append: v is read-only, expected memory that may be written"},
    {"folded", kPlain, [](AppendCall& c) { edit(c.args().k).strides[1] = 0; }, kInvalid,
     "append: k has an axis of stride 0"},
    {"caches_overlap", kPlain, [](AppendCall& c) { edit(c.args().v).data = c.args().k->data; }, kInvalid,
     "append: v overlaps k, expected memory of its own"},
    {"reads_what_it_writes", kPlain, [](AppendCall& c) { edit(c.args().k).data = c.args().v_new->data; }, kInvalid,
     " overlaps "},
    {"q_out_beside_q", kPlain,
     [](AppendCall& c) { edit(c.args().q_out).data = static_cast<float*>(c.args().q->data) + 1; }, kInvalid,
     "append: q_out overlaps q, expected memory of its own, or the same view"},
    {"interleaved", kPlain, [](AppendCall& c) { c.options().rotary_interleaved = 2; }, kInvalid,
     "append: rotary_interleaved is 2, expected 0 or 1"},
    {"num_threads", kPlain, [](AppendCall& c) { c.options().num_threads = -1; }, kInvalid, "append: num_threads is -1"},
    {"num_sms", kPlain, [](AppendCall& c) { c.options().num_sms = 4; }, TESSELLA_UNSUPPORTED,
     "append: option num_sms is for GPUs, and caches are on the CPU"},
    {"max_seqlen_new", kPlain, [](AppendCall& c) { c.options().max_seqlen_new = 2; }, kInvalid,
     "append: max_seqlen_new is 2, expected 0 or at least 3, the rows of k_new"},
    {"another_operation", kPlain, [](AppendCall& c) { c.options().kernel = "reference.merge"; }, TESSELLA_UNSUPPORTED,
     "append: kernel is reference.merge, which cannot run this call: computes merge, not append"},
};

TEST(AppendErrors, SayWhatWasGivenAndExpected) {
  for (const ExpectedError& expected : kErrors) {
    AppendCall call(expected.c), untouched(expected.c);
    expected.spoil(call);
    EXPECT_EQ(tessella_append(&call.args(), &call.options(), nullptr), expected.status) << expected.name;
    EXPECT_NE(std::string_view(tessella_last_error()).find(expected.message), std::string_view::npos)
        << expected.name << ": " << tessella_last_error();
    EXPECT_EQ(call.results(), untouched.results()) << expected.name << " wrote";
  }
}

struct CopyError {
  const char* name;
  std::function<void(CopyPagesCall&)> spoil;
  tessella_status status;
  const char* message;
};

const CopyError kCopyErrors[] = {
    {"no_pools", [](CopyPagesCall& c) { c.args().num_pools = 0; }, kInvalid,
     "copy_pages: num_pools is 0, expected at least 1"},
    {"pools_absent", [](CopyPagesCall& c) { c.args().pools = nullptr; }, kInvalid,
     "copy_pages: pools is NULL, expected num_pools tensors"},
    {"pairs_absent", [](CopyPagesCall& c) { c.args().pairs = nullptr; }, kInvalid,
     "copy_pages: pairs is NULL, expected a tensor"},
    {"axes", [](CopyPagesCall& c) { c.pools()[1].ndim = 3; }, kInvalid,
     "copy_pages: pools[1] has 3 axes, expected (num_pages, page_size, heads, head_dim)"},
    {"pages_differ", [](CopyPagesCall& c) { c.pools()[1].shape[0] = 11; }, kInvalid,
     "copy_pages: pools[1].shape[0] is 11, expected 12 = the pages of pools[0]"},
    {"dtypes_differ", [](CopyPagesCall& c) { c.pools()[1].dtype = TESSELLA_F16; }, kInvalid,
     "copy_pages: pools[1].dtype is f16, expected bf16 = pools[0].dtype"},
    {"pairs_shape", [](CopyPagesCall& c) { c.pairs_tensor().shape[1] = 1; }, kInvalid,
     "copy_pages: pairs has shape (3, 1), expected (n, 2) = (pairs, source and target)"},
    {"pairs_dtype", [](CopyPagesCall& c) { c.pairs_tensor().dtype = TESSELLA_I64; }, kInvalid,
     "copy_pages: pairs.dtype is i64, expected i32"},
    {"target", [](CopyPagesCall& c) { c.pairs()[0] = 0, c.pairs()[1] = 12; }, kInvalid,
     "copy_pages: pairs[0][1] is 12, expected 0 to 11, the pages of pools"},
    {"source", [](CopyPagesCall& c) { c.pairs()[2] = 12; }, kInvalid,
     "copy_pages: pairs[1][0] is 12, expected 0 to 11, the pages of pools, or a negative number for no copy"},
    {"two_sources",
     [](CopyPagesCall& c) {
       const int32_t pairs[] = {0, 5, 1, 5, 2, 6};
       std::memcpy(c.pairs(), pairs, sizeof pairs);
     },
     kInvalid,
     "copy_pages: page 5 is the target of pairs[0] and the target of pairs[1], expected a target of one pair alone"},
    {"chain",
     [](CopyPagesCall& c) {
       const int32_t pairs[] = {5, 7, 1, 5, 2, 6};
       std::memcpy(c.pairs(), pairs, sizeof pairs);
     },
     kInvalid, "copy_pages: page 5 is the target of pairs[1] and the source of pairs[0]"},
    {"read_only", [](CopyPagesCall& c) { c.pools()[0].flags = TESSELLA_READ_ONLY; }, kInvalid,
     "copy_pages: pools[0] is read-only"},
    {"pools_overlap", [](CopyPagesCall& c) { c.pools()[1].data = c.pools()[0].data; }, kInvalid,
     "copy_pages: pools[1] overlaps pools[0], expected memory of its own"},
    {"folded", [](CopyPagesCall& c) { c.pools()[1].strides[0] = 0; }, kInvalid,
     "copy_pages: pools[1] has an axis of stride 0"},
    {"num_sms", [](CopyPagesCall& c) { c.options().num_sms = 1; }, TESSELLA_UNSUPPORTED,
     "copy_pages: option num_sms is for GPUs, and pools are on the CPU"},
};

TEST(CopyPagesErrors, SayWhatWasGivenAndExpected) {
  for (const CopyError& expected : kCopyErrors) {
    CopyPagesCall call({});
    expected.spoil(call);
    EXPECT_EQ(tessella_copy_pages(&call.args(), &call.options(), nullptr), expected.status) << expected.name;
    EXPECT_NE(std::string_view(tessella_last_error()).find(expected.message), std::string_view::npos)
        << expected.name << ": " << tessella_last_error();
  }
}

}  // namespace
