// Causal attention of 4 positions, through the C++ headers.
#include <cstdio>
#include <tessella/attention.hpp>
#include <tessella/plan.hpp>
#include <vector>

namespace ts = tessella;

int main() {
  constexpr int64_t kSeqlen = 4, kHeadDim = 2;
  const std::vector<float> q{1, 0, 0, 1, 1, 1, 2, 0}, k{1, 0, 0, 1, 1, 1, 2, 0}, v{1, 10, 2, 20, 3, 30, 4, 40};
  std::vector<float> out(kSeqlen * kHeadDim);
  const ts::ForwardArgs args{.q = ts::view(q.data(), ts::f32, {kSeqlen, kHeadDim}),
                             .k = ts::view(k.data(), ts::f32, {kSeqlen, kHeadDim}),
                             .v = ts::view(v.data(), ts::f32, {kSeqlen, kHeadDim}),
                             .out = ts::view(out.data(), ts::f32, {kSeqlen, kHeadDim})};
  const ts::AttentionOptions options{.mask = ts::Mask::causal()};
  try {
    ts::forward(args, options);
    std::printf("%s", ts::plan_forward(args, options).explain().c_str());
  } catch (const ts::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  for (int64_t i = 0; i < kSeqlen; ++i) std::printf("%8.4f %8.4f\n", out[i * kHeadDim], out[i * kHeadDim + 1]);
}
