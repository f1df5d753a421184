// Beside leftpad_kv, tensors with an axis of keys have the rows of k, padding too: the call gives what the real keys
// give with the parts of these tensors behind the padding. Positions count from the first real key.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <tessella/attention.hpp>
#include <vector>

#include "cases/gpu_twin.hpp"
#include "cases/kernels.hpp"
#include "cases/random.hpp"
#include "cases/run_on.hpp"
#include "portable/float16.hpp"

namespace tessella::tests {
namespace {

constexpr int64_t kQueries = 37, kRows = 53, kHeadDim = 32;  // one head
constexpr int64_t kBlockQ = 8, kBlockKv = 4;
constexpr int64_t kBlocksQ = (kQueries + kBlockQ - 1) / kBlockQ, kBlocksKv = (kRows + kBlockKv - 1) / kBlockKv;

void forward_where_the_kernel_is(const ForwardArgs& args, const AttentionOptions& options, bool is_on_gpu) {
  if (!is_on_gpu) return forward(args, options);
  const detail::ForwardCall call(args, options);
  GpuTwin twin(blocks_of(call.args), false);
  const tessella_forward_args on_gpu = twin.args(call.args, true);
  detail::check(tessella_forward(&on_gpu, &call.options, twin.stream()));
  EXPECT_EQ(twin.download(), "");
}

template <typename Value>
auto values_of(int64_t count, Value value) {
  std::vector<decltype(value())> values(static_cast<size_t>(count));
  for (auto& x : values) x = value();
  return values;
}

class Leftpad : public EachKernel {
 protected:
  Random random_{1};
  bool is_bf16_ = !GetParam().computes("f32");
  std::vector<float> q_ = normal(kQueries), k_ = normal(kRows), v_ = normal(kRows);
  std::vector<float> bias_ = values_of(kQueries * kRows, [this] { return static_cast<float>(random_.normal()); });
  std::vector<uint8_t> dense_ = random_bits(kQueries * kRows), map_ = random_bits(kBlocksQ * kBlocksKv);
  std::vector<int32_t> ids_q_ = ids(kQueries), ids_kv_ = ids(kRows);

  // Out of the keys from `pad` on; is_padded: as rows of the whole k and v beside leftpad_kv, whose first rows are NaN.
  // In the other call every tensor begins at its entry of key `pad`, and the block map is spread to a dense mask.
  std::vector<float> out(int32_t pad, bool is_padded) {
    const int64_t first = is_padded ? 0 : pad, keys = kRows - first;
    std::vector<float> k(k_.begin() + first * kHeadDim, k_.end()), v(v_.begin() + first * kHeadDim, v_.end());
    if (is_padded) std::fill_n(k.begin(), pad * kHeadDim, std::numeric_limits<float>::quiet_NaN());
    if (is_padded) std::fill_n(v.begin(), pad * kHeadDim, std::numeric_limits<float>::quiet_NaN());
    std::vector<float> bias, out(kQueries * kHeadDim);
    std::vector<uint8_t> dense;
    for (int64_t i = 0; i < kQueries; ++i) {
      for (int64_t j = first; j < kRows; ++j) {
        const auto at = static_cast<size_t>(i * kRows + j);
        const bool is_in_map = map_[static_cast<size_t>(i / kBlockQ * kBlocksKv + j / kBlockKv)] != 0;
        bias.push_back(bias_[at]);
        dense.push_back(dense_[at] != 0 && (is_padded || is_in_map) ? 1 : 0);
      }
    }
    const std::vector<uint16_t> narrow_q = to_bf16(q_), narrow_k = to_bf16(k), narrow_v = to_bf16(v);
    const auto input = [&](const std::vector<float>& wide, const std::vector<uint16_t>& narrow, int64_t rows) {
      return is_bf16_ ? view(static_cast<const void*>(narrow.data()), bf16, {1, rows, 1, kHeadDim})
                      : view(static_cast<const void*>(wide.data()), f32, {1, rows, 1, kHeadDim});
    };
    ForwardArgs args{.q = input(q_, narrow_q, kQueries),
                     .k = input(k, narrow_k, keys),
                     .v = input(v, narrow_v, keys),
                     .out = view(out.data(), f32, {1, kQueries, 1, kHeadDim}),
                     .bias = view(static_cast<const void*>(bias.data()), f32, {1, 1, kQueries, keys})};
    if (is_padded) args.leftpad_kv = view(static_cast<const void*>(&pad), i32, {1});
    AttentionOptions options{.out_dtype = f32,
                             .batch_invariant = GetParam().is_for_few(),
                             .query_class = query_class_of(GetParam()),
                             .num_threads = 1,
                             .kernel = GetParam().name};
    options.mask = Mask::window(30, 4) & Mask::keep_first(2) &
                   Mask::dense(view(static_cast<const void*>(dense.data()), boolean, {1, 1, kQueries, keys})) &
                   Mask::document(view(static_cast<const void*>(ids_q_.data()), i32, {1, kQueries}),
                                  view(static_cast<const void*>(ids_kv_.data() + first), i32, {1, keys}));
    if (is_padded) {
      options.mask = options.mask &
                     Mask::block_map(view(static_cast<const void*>(map_.data()), boolean, {1, 1, kBlocksQ, kBlocksKv}),
                                     kBlockQ, kBlockKv);
    }
    forward_where_the_kernel_is(args, options, GetParam().is_on_gpu());
    return out;
  }

 private:
  std::vector<float> normal(int64_t rows) {
    return values_of(rows * kHeadDim, [this] { return static_cast<float>(random_.normal()); });
  }
  std::vector<uint8_t> random_bits(int64_t count) {
    return values_of(count, [this] { return static_cast<uint8_t>(random_.chance(0.8) ? 1 : 0); });
  }
  std::vector<int32_t> ids(int64_t count) {
    return values_of(count, [this] { return static_cast<int32_t>(random_.below(2)); });
  }
  static std::vector<uint16_t> to_bf16(const std::vector<float>& from) {
    std::vector<uint16_t> to;
    for (const float x : from) to.push_back(portable::to_bfloat16(x).bits);
    return to;
  }
};

TEST_P(Leftpad, TensorsWithAnAxisOfKeysHaveThePaddingToo) {
  for (const int32_t pad : {1, 4, 6, 31}) {
    const std::vector<float> padded = out(pad, true), alone = out(pad, false);
    float largest = 0;
    for (size_t at = 0; at < alone.size(); ++at) {
      ASSERT_NEAR(padded[at], alone[at], is_bf16_ ? 0.02 : 1e-5) << "pad " << pad << ", element " << at;
      largest = std::max(largest, std::fabs(alone[at]));
    }
    EXPECT_GT(largest, 0.5f);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Leftpad, testing::ValuesIn(kernels_of("forward")), kernel_test_name);

}  // namespace
}  // namespace tessella::tests
