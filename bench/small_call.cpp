// What a call costs beside its arithmetic: the smallest attention, repeated.
//
//   small_call [SEQLEN [HEADS [HEAD_DIM [THREADS]]]]     defaults 16 1 64 1
#include <cstdio>
#include <cstdlib>
#include <tessella/attention.hpp>
#include <tessella/plan.hpp>
#include <vector>

#include "time_calls.hpp"

namespace ts = tessella;

namespace {

template <typename Fn>
void time_calls(const char* what, Fn&& fn) {
  ::time_calls(
      what, 21, 2000, [] {}, fn);
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int idx, int64_t otherwise) { return argc > idx ? std::atoll(argv[idx]) : otherwise; };
  const int64_t seqlen = argument(1, 16), heads = argument(2, 1), head_dim = argument(3, 64);
  const auto num_elements = static_cast<size_t>(seqlen * heads * head_dim);
  std::vector<uint16_t> q(num_elements, 0x3f80), k(q), v(q), out(num_elements);
  std::vector<uint64_t> state, scratch;
  const auto view = [&](auto& data) { return ts::view(data.data(), ts::bf16, {1, seqlen, heads, head_dim}); };
  const ts::ForwardArgs args{.q = view(q), .k = view(k), .v = view(v), .out = view(out)};
  const ts::AttentionOptions options{.num_threads = static_cast<int>(argument(4, 1))};
  try {
    const ts::Plan plan = ts::plan_forward(args, options);
    std::printf("seqlen %lld, heads %lld, head_dim %lld, bf16, %s\n", static_cast<long long>(seqlen),
                static_cast<long long>(heads), static_cast<long long>(head_dim), plan.kernel().c_str());
    time_calls("forward", [&] { ts::forward(args, options); });

    // The C API below it: the structs are built once, and a plan runs in memory that is already there.
    const ts::detail::ForwardCall call(args, options);
    tessella_plan* raw = nullptr;
    size_t state_bytes = 0, scratch_bytes = 0;
    ts::detail::check(tessella_plan_make(&call.tagged, &raw));
    ts::detail::check(tessella_plan_workspace(raw, &state_bytes, &scratch_bytes));
    const auto aligned = [](size_t bytes) { return std::aligned_alloc(64, (bytes / 64 + 1) * 64); };
    const tessella_workspace workspace{aligned(state_bytes), state_bytes, aligned(scratch_bytes), scratch_bytes};
    ts::detail::check(tessella_plan_initialize(raw, &workspace, nullptr));
    time_calls("tessella_forward", [&] { ts::detail::check(tessella_forward(&call.args, &call.options, nullptr)); });
    time_calls("tessella_plan_run",
               [&] { ts::detail::check(tessella_plan_run(raw, &call.tagged, &workspace, nullptr)); });
    time_calls("tessella_plan_make + free", [&] {
      tessella_plan* made = nullptr;
      ts::detail::check(tessella_plan_make(&call.tagged, &made));
      tessella_plan_free(made);
    });
    tessella_plan_free(raw);
    std::free(workspace.state);
    std::free(workspace.scratch);
  } catch (const ts::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
