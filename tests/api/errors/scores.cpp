// Errors of what changes scores: scale, softcap, dropout, bias, slopes, sinks and score_mod.
#include <cmath>
#include <span>

#include "api/errors/expected_error.hpp"

namespace tessella::tests {
namespace {

const ExpectedError kErrors[] = {
    {"scale", [](SmallCall& c) { c.options.scale = INFINITY; }, kInvalid, "scale is inf, expected a finite number"},
    {"softcap", [](SmallCall& c) { c.options.softcap = -1; }, kInvalid, "softcap is -1"},
    {"softcap_nan", [](SmallCall& c) { c.options.softcap = NAN; }, kInvalid, "softcap is nan"},
    {"dropout_one", [](SmallCall& c) { c.options.dropout = 1; }, kInvalid,
     "dropout is 1, expected a probability in [0, 1)"},
    {"score_mod", [](SmallCall& c) { c.options.score_mod = {"return score + 1;"}; }, kUnsupported,
     "option score_mod is for GPUs"},
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
    {"bias_dtype",
     [](SmallCall& c) {
       c.args.bias = ts::view(g_floats, ts::f16, {3, 5});
     },
     kInvalid, "bias.dtype is f16"},
    {"alibi_shape", [](SmallCall& c) { c.args.alibi_slopes = ts::view(g_floats, ts::f32, {3}); }, kInvalid,
     "alibi_slopes has shape (3), expected (4) or (2, 4)"},
    {"sink_shape", [](SmallCall& c) { c.args.sink = ts::view(g_floats, ts::f32, {2}); }, kInvalid,
     "sink has shape (2)"},
    {"sink_repeated", [](SmallCall& c) { c.args.sink = ts::view(g_floats, ts::f32, {2}, {0}); }, kInvalid,
     "sink has shape (2)"},
};

}  // namespace

std::span<const ExpectedError> score_errors() { return kErrors; }

}  // namespace tessella::tests
