// A plan: choose the kernel once, read why, then run it many times in memory of your own.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include <tessella/plan.hpp>

namespace ts = tessella;

int main() try {
  constexpr int64_t seqlen = 256, heads = 8, head_dim = 64;
  std::vector<float> data(seqlen * heads * head_dim);
  for (size_t i = 0; i < data.size(); ++i) data[i] = std::sin(0.37f * static_cast<float>(i));
  std::vector<float> result(data.size());
  const auto x = ts::view(data.data(), ts::f32, {1, seqlen, heads, head_dim});
  const auto out = ts::view(result.data(), ts::f32, {1, seqlen, heads, head_dim});
  const ts::ForwardArgs args{.q = x, .k = x, .v = x, .out = out};

  const ts::Plan plan = ts::plan_forward(args, {.mask = ts::Mask::causal()});
  std::printf("%s\n", plan.explain().c_str());  // the kernel, and why each better one is not eligible

  // state is set up once; scratch may hold anything. Both are aligned to 64 bytes.
  ts::Workspace workspace = plan.workspace_size();
  const auto allocate = [](size_t bytes) {
    return std::unique_ptr<void, decltype(&std::free)>(std::aligned_alloc(64, (bytes + 64) / 64 * 64), std::free);
  };
  const auto state = allocate(workspace.state_bytes), scratch = allocate(workspace.scratch_bytes);
  workspace.state = state.get();
  workspace.scratch = scratch.get();
  plan.initialize(workspace);

  for (int step = 0; step < 100; ++step) plan.run(args, workspace);  // no allocation
  std::printf("out[1] = %.6f\n", static_cast<double>(result[1]));    // the first row sees one key: v itself
  return result[1] == data[1] ? 0 : 1;
} catch (const ts::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
