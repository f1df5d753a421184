// Errors of masks.
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "api/errors/expected_error.hpp"

namespace tessella::tests {
namespace {

// Of 3 queries and 5 keys.
void key_ranges(SmallCall& c, std::vector<int32_t> values, std::initializer_list<int64_t> shape) {
  static std::vector<int32_t> kept;
  kept = std::move(values);
  c.options.mask = ts::Mask::key_ranges(ts::view(kept.data(), ts::i32, shape));
}
void query_ranges(SmallCall& c, std::vector<int32_t> values, std::initializer_list<int64_t> shape) {
  static std::vector<int32_t> kept;
  kept = std::move(values);
  c.options.mask = ts::Mask::query_ranges(ts::view(kept.data(), ts::i32, shape));
}

const ExpectedError kErrors[] = {
    {"window", [](SmallCall& c) { c.options.mask = ts::Mask::window(-2, 0); }, kInvalid, "window_left is -2"},
    {"chunk", [](SmallCall& c) { c.options.mask = ts::Mask::chunk(-3); }, kInvalid, "chunk is -3"},
    {"keep_first", [](SmallCall& c) { c.options.mask = ts::Mask::keep_first(-1); }, kInvalid, "keep_first is -1"},
    {"mask_mod", [](SmallCall& c) { c.options.mask_mod = "return q >= k;"; }, kUnsupported,
     "option mask_mod is for GPUs"},
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
    {"prefix_negative", [](SmallCall& c) { c.options.mask = ts::Mask::prefix(ints(4, 2)); }, kInvalid,
     "prefix_lengths[0] is -1"},
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
    {"key_ranges_dtype",
     [](SmallCall& c) {
       c.options.mask = ts::Mask::key_ranges(ts::view(g_floats, ts::f32, {3, 1, 2}));
     },
     kInvalid, "key_ranges.dtype is f32, expected i32"},
    {"key_ranges_rows",
     [](SmallCall& c) {
       key_ranges(c, std::vector<int32_t>(8), {1, 1, 4, 1, 2});
     },
     kInvalid,
     "key_ranges has shape (1, 1, 4, 1, 2), expected (2 or 1, 4 or 1, 3, n, 2) = (batch, heads_q, seqlen_q, ranges, "
     "start and end), n from 1 to 8"},
    {"key_ranges_of_three",
     [](SmallCall& c) {
       key_ranges(c, std::vector<int32_t>(9), {3, 1, 3});
     },
     kInvalid, "key_ranges has shape (3, 1, 3)"},
    {"key_ranges_too_many",
     [](SmallCall& c) {
       key_ranges(c, std::vector<int32_t>(54), {3, 9, 2});
     },
     kInvalid, "key_ranges has shape (3, 9, 2)"},
    {"key_ranges_none",
     [](SmallCall& c) {
       key_ranges(c, std::vector<int32_t>(1), {3, 0, 2});
     },
     kInvalid, "key_ranges has shape (3, 0, 2)"},
    {"key_ranges_heads_of_kv",
     [](SmallCall& c) {
       key_ranges(c, std::vector<int32_t>(12), {2, 3, 1, 2});
     },
     kInvalid, "key_ranges has shape (2, 3, 1, 2)"},
    {"key_ranges_backwards",
     [](SmallCall& c) {
       key_ranges(c, {0, 5, 3, 1, 0, 0}, {3, 1, 2});
     },
     kInvalid, "key_ranges[0, 0, 1, 0] is [3, 1), expected a start of at least 0 and no less an end"},
    {"key_ranges_negative",
     [](SmallCall& c) {
       key_ranges(c, {-1, 5, 0, 0, 0, 0}, {3, 1, 2});
     },
     kInvalid, "key_ranges[0, 0, 0, 0] is [-1, 5), expected a start of at least 0"},
    {"key_ranges_unsorted",
     [](SmallCall& c) {
       key_ranges(c, {0, 1, 1, 2, 9, 9, 0, 5, 3, 4, 1, 2}, {3, 2, 2});
     },
     kInvalid,
     "key_ranges[0, 0, 2, 1] is [1, 2), expected a start of at least 4, the end of the one before, and no less an end"},
    {"key_ranges_overlap",
     [](SmallCall& c) {
       key_ranges(c, {0, 3, 2, 5, 0, 0, 0, 0, 0, 0, 0, 0}, {3, 2, 2});
     },
     kInvalid, "key_ranges[0, 0, 0, 1] is [2, 5), expected a start of at least 3"},
    {"query_ranges_rows",
     [](SmallCall& c) {
       query_ranges(c, std::vector<int32_t>(6), {3, 1, 2});
     },
     kInvalid,
     "query_ranges has shape (3, 1, 2), expected (2 or 1, 4 or 1, 5, n, 2) = (batch, heads_q, seqlen_kv, ranges, start "
     "and end)"},
    {"query_ranges_backwards",
     [](SmallCall& c) {
       query_ranges(c, {0, 3, 0, 3, 0, 3, 0, 3, 2, 1}, {5, 1, 2});
     },
     kInvalid, "query_ranges[0, 0, 4, 0] is [2, 1)"},
};

}  // namespace

std::span<const ExpectedError> mask_errors() { return kErrors; }

}  // namespace tessella::tests
