// A call leaves no upper halves of vector registers in use: code without AVX would be many times slower behind it.
#include <gtest/gtest.h>

#include "cases/backward_call.hpp"
#include "cases/call.hpp"
#include "cases/cases.hpp"
#include "cases/kernels.hpp"

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace tessella::tests {
namespace {

#ifdef __x86_64__

bool can_tell() {
  if (!__builtin_cpu_supports("avx")) return false;
  uint32_t a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid_count(0xD, 1, &a, &b, &c, &d) != 0 && (a & 4) != 0;
}
// Whether the upper halves of ymm0 to ymm15 or of zmm0 to zmm15 are (XINUSE of Intel's manual, volume 1, 13.6).
bool are_in_use() {
  uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(1));
  return (low & 0x44) != 0;
}

class UpperHalves : public EachKernel {};

TEST_P(UpperHalves, AreNotInUseBehindACall) {
  if (!can_tell()) GTEST_SKIP() << "this CPU does not tell which state is in use";
  for (const char* dtype : {"bf16", "f16", "f32", "f64"}) {
    if (!GetParam().computes(dtype)) continue;
    for (const char* out : {"", "f32"}) {
      for (const int64_t head_dim : {64, 70}) {
        Case c = {.kernel = GetParam().name,
                  .dtype = dtype,
                  .out_dtype = out,
                  .seqlen_q = 100,
                  .seqlen_kv = 130,
                  .head_dim_qk = head_dim,
                  .head_dim_v = head_dim,
                  .window_right = 0,
                  .batch_invariant = GetParam().is_for_few(),
                  .few = GetParam().is_for_few()};
        for (const bool has_features : {false, true}) {
          if (has_features) c.softcap = 5, c.alibi = "h", c.bias = "bhqk", c.dense = "qk", c.dropout = 0.1;
          Call call(c);
          asm volatile("vzeroupper");
          if (are_in_use()) GTEST_SKIP() << "this CPU does not tell when state is free again";
          ASSERT_EQ(call.run_plain(), TESSELLA_OK) << tessella_last_error();
          EXPECT_FALSE(are_in_use()) << "--case \"" << to_string(c) << "\"";
        }
      }
    }
  }
}

class BackwardUpperHalves : public EachKernel {};

TEST_P(BackwardUpperHalves, AreNotInUseBehindACall) {
  if (!can_tell()) GTEST_SKIP() << "this CPU does not tell which state is in use";
  for (const char* dtype : {"bf16", "f16", "f32"}) {
    if (!GetParam().computes(dtype)) continue;
    Case c =
        parse("heads_q=2 seqlen_q=100 seqlen_kv=130 head_dim_qk=70 head_dim_v=70 bias=qk alibi=h sink=1 dropout=0.1");
    c.kernel = GetParam().name;
    c.dtype = dtype;
    c.gradients = "qkvbsa";
    BackwardCall call(c);
    asm volatile("vzeroupper");
    if (are_in_use()) GTEST_SKIP() << "this CPU does not tell when state is free again";
    ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
    EXPECT_FALSE(are_in_use()) << dtype;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, BackwardUpperHalves, testing::ValuesIn(kernels_of("backward")), kernel_test_name);
INSTANTIATE_TEST_SUITE_P(Kernels, UpperHalves, testing::ValuesIn(kernels_of("forward")), kernel_test_name);

#endif

}  // namespace
}  // namespace tessella::tests
