// Causal attention on at::Tensor beside softmax(scale * q . k^T) . v written out in ATen: result and time of both, on
// the CPU and, where there is one, on a GPU.
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <tessella/torch.hpp>

namespace {

constexpr int64_t kBatch = 2, kSeqlen = 1024, kHeads = 8, kHeadDim = 64;

// A matrix of seqlen x seqlen scores; q, k, v: (batch, seqlen, heads, head_dim).
at::Tensor manual_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  at::Tensor scores = at::matmul(q.transpose(1, 2), k.permute({0, 2, 3, 1})) / std::sqrt(double(kHeadDim));
  const at::Tensor hidden = at::ones({kSeqlen, kSeqlen}, q.options().dtype(at::kBool)).triu(1);
  scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  return at::matmul(scores.softmax(-1), v.transpose(1, 2)).transpose(1, 2);
}

// Milliseconds of a call, after one to warm up; reading an element waits for a GPU.
template <typename Function>
double time_ms(Function&& function, int calls = 10) {
  function().flatten()[0].item();
  const auto begin = std::chrono::steady_clock::now();
  for (int call = 1; call < calls; ++call) function();
  function().flatten()[0].item();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count() / calls;
}

bool compare(const at::Device& device) {
  const auto random = [&] { return at::randn({kBatch, kSeqlen, kHeads, kHeadDim}, at::TensorOptions(device)); };
  const at::Tensor q = random(), k = random(), v = random();
  const auto ours = [&] { return tessella::torch::attention(q, k, v, {.mask = tessella::Mask::causal()}); };
  const auto manual = [&] { return manual_attention(q, k, v); };

  const double error = (ours() - manual()).abs().max().item<double>();
  std::printf("%-6s largest difference %.1e, tessella %.2f ms, manual %.2f ms\n", device.str().c_str(), error,
              time_ms(ours), time_ms(manual));
  return error < 1e-4;
}

}  // namespace

int main() try {
  bool agree = compare(at::kCPU);
  if (at::hasCUDA()) agree &= compare(at::Device(at::kCUDA, 0));
  return agree ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
