// batch_invariant: a row's bits depend on the row and its keys, not on the rows beside it, the batch or the lengths.
#include <gtest/gtest.h>

#include "cases/kernels.hpp"
#include "cases/part.hpp"

namespace tessella::tests {
namespace {

class BatchInvariant : public EachKernel {
 protected:
  static std::string run(Call& call, const Case&) {
    return call.run_plain() == TESSELLA_OK ? "" : tessella_last_error();
  }
};

TEST_P(BatchInvariant, RowsKeepTheirBits) {
  // On GPUs a head dim decides the tiles.
  const std::vector<int64_t> head_dims =
      GetParam().is_on_gpu() ? std::vector<int64_t>{64, 128, 256} : std::vector<int64_t>{48};
  for (const int64_t head_dim : head_dims) {
    for (const char* dtype : {"bf16", "f32", "f64"}) {
      if (!GetParam().computes(dtype) || (head_dim > 64 && dtype == std::string("f32"))) continue;
      for (const Whole& whole : wholes({.kernel = GetParam().name,
                                .dtype = dtype,
                                .heads_q = 4,
                                .heads_kv = 2,
                                .seqlen_q = 230,
                                .seqlen_kv = 340,
                                .head_dim_qk = head_dim,
                                .head_dim_v = head_dim,
                                .threads = 2,
                                .few = GetParam().is_for_few(),
                                .seed = 4})) {
        EXPECT_EQ(check_parts(whole, run), "") << "--case \"" << to_string(whole.c) << "\"";
      }
    }
  }
}

// Whatever a row holds, those beside it are right and have their bits.
TEST_P(BatchInvariant, BesideVeryLargeScores) {
  for (const char* dtype : {"bf16", "f32", "f64"}) {
    if (!GetParam().computes(dtype)) continue;
    for (const int power : {21, 25, 30, 40}) {
      const Case c = {.kernel = GetParam().name,
                      .dtype = dtype,
                      .out_dtype = "f32",
                      .seqlen_q = 40,
                      .seqlen_kv = 200,
                      .head_dim_qk = 64,
                      .head_dim_v = 64,
                      .spread = 4,
                      .mean = power == 30 ? -9.0 : 0.0,  // most rows' scores are negative
                      .batch_invariant = true,
                      .few = GetParam().is_for_few(),
                      .seed = 9};
      Call whole(c);
      scale_query(whole, 3, power);
      ASSERT_EQ(run(whole, c), "");
      for (const Part& part : {Part{4, 36, 1, 0}, Part{0, 3, 2, 1}}) {
        const Case of = case_of(part, c);
        Call call(of);
        copy_inputs(whole, part, call);
        ASSERT_EQ(run(call, of), "");
        EXPECT_EQ(call.check(), "");
        EXPECT_EQ(difference(whole, part, call), "") << dtype << ", 2^" << power;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, BatchInvariant, testing::ValuesIn(kernels_of("forward")), kernel_test_name);

}  // namespace
}  // namespace tessella::tests
