// Errors of lengths, batch, pages and slots.
#include <cstdint>
#include <limits>
#include <span>

#include "api/errors/expected_error.hpp"

namespace tessella::tests {
namespace {

const ExpectedError kErrors[] = {
    {"max_seqlen", [](SmallCall& c) { c.options.max_seqlen_kv = 4; }, kInvalid,
     "max_seqlen_kv is 4, expected 0 or at least 5"},
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
    {"page_seen",
     [](SmallCall& c) {
       c.args.page_table = ts::view(g_numbers + 4, ts::i32, {2, 1});
       c.options.mask = ts::Mask::causal();
     },
     kInvalid,
     "page_table[0][0] is -1, expected 0 to 1, the pages of k, or -1 for a page that the band hides from all queries "
     "(windows, chunks, keep_first, prefixes, lengths; not masks of elements)"},
    {"page_negative",
     [](SmallCall& c) {
       static const int32_t pages[] = {-2, 0};
       c.args.page_table = ts::view(pages, ts::i32, {2, 1});
     },
     kInvalid, "page_table[0][0] is -2, expected 0 to 1, the pages of k"},
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
};

}  // namespace

std::span<const ExpectedError> length_errors() { return kErrors; }

}  // namespace tessella::tests
