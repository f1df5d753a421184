// Errors of masks.
#include <span>

#include "api/errors/expected_error.hpp"

namespace tessella::tests {
namespace {

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
};

}  // namespace

std::span<const ExpectedError> mask_errors() { return kErrors; }

}  // namespace tessella::tests
