// Errors of how a call runs: kernel, threads, splits, SMs and schedule.
#include <span>

#include "api/errors/expected_error.hpp"

namespace tessella::tests {
namespace {

const ExpectedError kErrors[] = {
    {"num_threads", [](SmallCall& c) { c.options.num_threads = -1; }, kInvalid, "num_threads is -1"},
    {"num_splits", [](SmallCall& c) { c.options.num_splits = 4; }, kUnsupported, "num_splits is 4"},
    {"num_sms", [](SmallCall& c) { c.options.num_sms = 4; }, kUnsupported, "option num_sms is for GPUs"},
    {"unknown_kernel", [](SmallCall& c) { c.options.kernel = "cpu.nonsense"; }, kInvalid, "kernel is \"cpu.nonsense\""},
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
    {"mask_map_of_no_mask",
     [](SmallCall& c) {
       c.args.mask_map = ints(0, 4);
       c.options.mask = ts::Mask::causal();
     },
     kInvalid,
     "forward: mask_map is given, expected it beside a mask that has one: document dense block_map key_ranges "
     "query_ranges mask_mod"},
    {"mask_map_on_the_cpu",
     [](SmallCall& c) {
       c.args.mask_map = ints(0, 4);
       c.options.mask = ts::Mask::dense(ts::view(g_bools, ts::boolean, {3, 5}));
     },
     kUnsupported, "forward: no forward kernel on the CPU supports mask_map"},
    {"mask_map_and_schedule",
     [](SmallCall& c) {
       c.args.mask_map = c.args.schedule = ints(0, 4);
       c.options.mask = ts::Mask::dense(ts::view(g_bools, ts::boolean, {3, 5}));
     },
     kInvalid, "forward: schedule is given, expected it absent beside mask_map"},
    {"schedule_and_splits",
     [](SmallCall& c) {
       c.args.schedule = ints(0, 4);
       c.options.num_splits = 2;
     },
     kInvalid, "forward: num_splits is 2, expected 0 beside schedule, which says where keys are split"},
};

}  // namespace

std::span<const ExpectedError> execution_errors() { return kErrors; }

}  // namespace tessella::tests
