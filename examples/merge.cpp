// Attention over two sets of keys, each on its own, merged: what attention over all keys gives.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include <tessella/attention.hpp>
#include <tessella/merge.hpp>

namespace ts = tessella;

constexpr int64_t kQueries = 16, kKeys = 300, kHeads = 4, kDim = 64;

// out and lse, and the memory behind them.
struct Result {
  std::vector<float> out = std::vector<float>(kQueries * kHeads * kDim);
  std::vector<float> lse = std::vector<float>(kHeads * kQueries);
  ts::State state() {
    return {ts::view(out.data(), ts::f32, {1, kQueries, kHeads, kDim}),
            ts::view(lse.data(), ts::f32, {1, kHeads, kQueries})};
  }
};

int main() try {
  std::vector<float> data(kKeys * kHeads * kDim);
  for (size_t i = 0; i < data.size(); ++i) data[i] = std::sin(0.37f * static_cast<float>(i));
  // Keys and values [begin, end).
  const auto attend = [&](int64_t begin, int64_t end, Result& result) {
    const auto q = ts::view(data.data(), ts::f32, {1, kQueries, kHeads, kDim});
    const auto kv = ts::view(data.data() + begin * kHeads * kDim, ts::f32, {1, end - begin, kHeads, kDim});
    ts::forward({.q = q, .k = kv, .v = kv, .out = result.state().out, .lse = result.state().lse});
  };
  Result all, first, second, merged;
  attend(0, kKeys, all);
  attend(0, 100, first);
  attend(100, kKeys, second);

  ts::merge({first.state(), second.state()}, merged.state().out, merged.state().lse);
  float error = 0;
  for (size_t i = 0; i < all.out.size(); ++i) error = std::max(error, std::fabs(merged.out[i] - all.out[i]));
  std::printf("largest difference to attention over all keys: %.1e\n", static_cast<double>(error));
  return error < 1e-5f ? 0 : 1;
} catch (const ts::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
