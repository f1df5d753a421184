// One call: causal attention, 8 query heads over 2 KV heads, in bf16.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <tessella/attention.hpp>

namespace ts = tessella;

// bf16 is the upper half of a float.
static uint16_t to_bf16(float value) {
  uint32_t bits;
  static_assert(sizeof bits == sizeof value);
  __builtin_memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static std::vector<uint16_t> waves(size_t size, float step) {
  std::vector<uint16_t> values(size);
  for (size_t i = 0; i < size; ++i) values[i] = to_bf16(std::sin(step * static_cast<float>(i)));
  return values;
}

int main() try {
  constexpr int64_t batch = 2, seqlen = 512, heads_q = 8, heads_kv = 2, head_dim = 64;
  const auto q_data = waves(batch * seqlen * heads_q * head_dim, 0.37f);
  const auto k_data = waves(batch * seqlen * heads_kv * head_dim, 0.11f);
  const auto v_data = waves(batch * seqlen * heads_kv * head_dim, 0.73f);
  std::vector<uint16_t> out_data(q_data.size());

  const auto q = ts::view(q_data.data(), ts::bf16, {batch, seqlen, heads_q, head_dim});
  const auto k = ts::view(k_data.data(), ts::bf16, {batch, seqlen, heads_kv, head_dim});
  const auto v = ts::view(v_data.data(), ts::bf16, {batch, seqlen, heads_kv, head_dim});
  const auto out = ts::view(out_data.data(), ts::bf16, {batch, seqlen, heads_q, head_dim});

  const ts::ForwardArgs args{.q = q, .k = k, .v = v, .out = out};
  const ts::AttentionOptions options{.mask = ts::Mask::causal()};
  ts::forward(args, options);

  const auto report = ts::check_forward(args, options, 256);
  std::printf("%lld rows against the float64 reference: max error %.1e, allowed %.1e\n",
              static_cast<long long>(report.rows), report.max_error, report.tolerance);
  return report.passed ? 0 : 1;
} catch (const ts::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
