// Dropout's mean weight is 1, whatever the probability: means over ones by every kernel, and rows of one key, whose
// weight is the largest.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "cases/call.hpp"
#include "cases/kernels.hpp"
#include "cases/tensor_places.hpp"
#include "portable/dropout.hpp"

namespace tessella::tests {
namespace {

class MeanWeight : public EachKernel {
 protected:
  std::string dtype() const { return GetParam().computes("f32") ? "f32" : "bf16"; }
};

void fill_with_ones(const tessella_tensor& t) {
  const auto fill = [&](auto* values, auto one) { std::fill_n(values, extent(t), one); };
  if (t.dtype == TESSELLA_F32) return fill(static_cast<float*>(t.data), 1.0f);
  fill(static_cast<uint16_t*>(t.data), uint16_t{0x3F80});  // bf16
}

TEST_P(MeanWeight, IsOne) {
  for (const double probability : {1e-6, 1e-5, 0.1, 0.5, 0.99999, 0.9999999}) {
    const Case c = {.kernel = GetParam().name,
                    .dtype = dtype(),
                    .out_dtype = "f32",
                    .heads_q = 4,
                    .seqlen_q = 1024,
                    .seqlen_kv = 2048,
                    .dropout = probability,
                    .spread = 0,
                    .threads = 2,
                    .batch_invariant = GetParam().is_for_few(),
                    .few = GetParam().is_for_few(),
                    .seed = 1};
    Call call(c);
    fill_with_ones(*call.args().v);
    ASSERT_EQ(call.run_plain(), TESSELLA_OK) << tessella_last_error();
    const tessella_tensor& out = *call.args().out;
    const auto* values = static_cast<const float*>(out.data);
    double sum = 0;
    bool differ = false;
    for (int64_t row = 0; row < c.seqlen_q; ++row) {
      for (int64_t head = 0; head < c.heads_q; ++head) {
        const float value = values[element(out, 0, row, head)];
        sum += value;
        differ |= value != values[0];
      }
    }
    EXPECT_TRUE(differ) << probability << " drops nothing or everything";
    const portable::Dropout dropout{.threshold = portable::Dropout::threshold_of(static_cast<float>(probability))};
    const auto rows = static_cast<double>(c.seqlen_q * c.heads_q);
    const double deviation = std::sqrt((dropout.keep_scale() - 1) / (rows * static_cast<double>(c.seqlen_kv)));
    EXPECT_NEAR(sum / rows, 1, 4 * deviation + 3e-5) << probability;  // fp32 sums of 2,048 keys
  }
}

// A kept probability of 1 becomes 65536, which f16 does not hold.
TEST_P(MeanWeight, OfTheLargestWeight) {
  for (const char* type : {"f32", "bf16", "f16", "f64"}) {
    if (!GetParam().computes(type)) continue;
    const Case c = {.kernel = GetParam().name,
                    .dtype = type,
                    .out_dtype = type == std::string("f64") ? "" : "f32",
                    .batch = 20,
                    .heads_q = 4,
                    .seqlen_q = 2000,
                    .seqlen_kv = 1,
                    .dropout = 0.9999999,
                    .threads = 2,
                    .batch_invariant = GetParam().is_for_few(),
                    .few = GetParam().is_for_few(),
                    .seed = 1};
    const Outcome outcome = run_case(c);
    EXPECT_EQ(outcome.verdict, Verdict::passed) << "--case \"" << to_string(c) << "\"\n  " << outcome.message;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, MeanWeight, testing::ValuesIn(kernels_of("forward")), kernel_test_name);

}  // namespace
}  // namespace tessella::tests
