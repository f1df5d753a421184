// batch_invariant: a row's bits depend on the row and its keys, not on the rows beside it, the batch or the lengths.
#include <gtest/gtest.h>

#include "kernels.hpp"
#include "part.hpp"

namespace tessella::tests {
namespace {

class BatchInvariant : public EachKernel {};

TEST_P(BatchInvariant, RowsKeepTheirBits) {
  // On GPUs a head dim decides the tiles.
  const std::vector<int64_t> head_dims =
      GetParam().is_on_gpu() ? std::vector<int64_t>{64, 128, 256} : std::vector<int64_t>{48};
  for (const int64_t head_dim : head_dims) {
    for (const char* dtype : {"bf16", "f32"}) {
      if (!GetParam().computes(dtype) || (head_dim > 64 && dtype == std::string("f32"))) continue;
      for (const Case& c : cases_of_parts({.kernel = GetParam().name,
                           .dtype = dtype,
                           .heads_q = 4,
                           .heads_kv = 2,
                           .seqlen_q = 230,
                           .seqlen_kv = 340,
                           .head_dim_qk = head_dim,
                           .head_dim_v = head_dim,
                           .threads = 2,
                           .seed = 4})) {
        const auto run = [](Call& call, const Case&) {
          return call.run_plain() == TESSELLA_OK ? "" : std::string(tessella_last_error());
        };
        EXPECT_EQ(check_parts(c, run), "") << "--case \"" << to_string(c) << "\"";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, BatchInvariant, testing::ValuesIn(all_kernels()), kernel_test_name);

}  // namespace
}  // namespace tessella::tests
