// The host's time of a repeated small call on a GPU. Between windows the GPU is waited for, so that its queue never
// fills.
//
//   small_call_gpu [SEQLEN [HEADS [HEAD_DIM]]]     defaults 64 1 64
#include <cstdio>
#include <cstdlib>
#include <tessella/attention.hpp>
#include <tessella/plan.hpp>
#include <vector>

#include "device/gpu.hpp"
#include "time_calls.hpp"

namespace ts = tessella;

namespace {

// Of the host, the driver's launch included.
constexpr double kCallLimitNs = 50'000, kPlannedLimitNs = 20'000;

template <typename Fn>
void time_calls(const char* what, const ts::cli::Gpu& gpu, void* stream, Fn&& fn, double limit_ns = 0) {
  ::time_calls(
      what, 101, 200, [&] { gpu.synchronize(stream); }, fn, limit_ns);
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int idx, int64_t otherwise) { return argc > idx ? std::atoll(argv[idx]) : otherwise; };
  const int64_t seqlen = argument(1, 64), heads = argument(2, 1), head_dim = argument(3, 64);
  const auto bytes = static_cast<size_t>(seqlen * heads * head_dim) * 2;
  try {
    const ts::cli::Gpu& gpu = ts::cli::Gpu::open(0);
    const ts::cli::GpuStream stream(gpu);
    const ts::cli::GpuMemory q(gpu, bytes), k(gpu, bytes), v(gpu, bytes), out(gpu, bytes);
    for (const ts::cli::GpuMemory* memory : {&q, &k, &v}) gpu.fill(memory->data(), 0x3f, bytes, stream.handle());
    const auto view = [&](const ts::cli::GpuMemory& memory) {
      return ts::view(static_cast<void*>(memory.data()), ts::bf16, {1, seqlen, heads, head_dim}, {},
                      {TESSELLA_CUDA, gpu.id()});
    };
    const ts::ForwardArgs args{.q = view(q), .k = view(k), .v = view(v), .out = view(out)};
    const ts::AttentionOptions options{.mask = ts::Mask::causal()};
    const ts::detail::ForwardCall call(args, options);
    tessella_plan* plan = nullptr;
    ts::detail::check(tessella_plan_make(&call.tagged, &plan));
    std::printf("seqlen %lld, heads %lld, head_dim %lld, bf16, %s\n", static_cast<long long>(seqlen),
                static_cast<long long>(heads), static_cast<long long>(head_dim), tessella_plan_kernel(plan));
    time_calls(
        "tessella_forward", gpu, stream.handle(),
        [&] { ts::detail::check(tessella_forward(&call.args, &call.options, stream.handle())); }, kCallLimitNs);
    time_calls(
        "tessella_plan_run", gpu, stream.handle(),
        [&] { ts::detail::check(tessella_plan_run(plan, &call.tagged, nullptr, stream.handle())); }, kPlannedLimitNs);
    const char* reason = nullptr;
    time_calls("normalise and validate", gpu, stream.handle(),
               [&] { ts::detail::check(tessella_kernel_refusal(0, &call.tagged, &reason)); });
    gpu.synchronize(stream.handle());
    tessella_plan_free(plan);
  } catch (const ts::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
