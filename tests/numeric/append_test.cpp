// append and copy_pages on every kernel of the library, against plain loops: rows, rotations, and what stays untouched.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "cases/append_call.hpp"
#include "cases/copy_pages_call.hpp"
#include "cases/kernels.hpp"
#include "cases/tensor_places.hpp"

namespace tessella::tests {
namespace {

class Append : public EachKernel {
 protected:
  AppendCase base() const { return {.kernel = GetParam().name, .dtype = TESSELLA_F32, .heads_q = 4, .rotary_dim = 64}; }
  static std::string run(const AppendCase& c) {
    AppendCall call(c);
    if (call.run() != TESSELLA_OK) return to_string(c) + ": " + tessella_last_error();
    return call.check();
  }
};

TEST_P(Append, RandomCases) {
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    ASSERT_EQ(run(random_append(GetParam().name, GetParam().dtypes, seed)), "") << "seed " << seed;
  }
}

TEST_P(Append, PagesOfAnySize) {
  for (const int64_t page_size : {0, 1, 2, 3, 7, 16, 64, 100}) {
    for (const bool heads_first : {false, true}) {
      for (const bool interleaved : {false, true}) {
        AppendCase c = base();
        c.batch = 3;
        c.seqlen_new = 9;
        c.page_size = page_size;
        c.heads_first = heads_first;
        c.interleaved = interleaved;
        c.seed = static_cast<uint64_t>(page_size);
        ASSERT_EQ(run(c), "");
      }
    }
  }
}

TEST_P(Append, RotaryDims) {
  for (int64_t rotary_dim = 0; rotary_dim <= 80; rotary_dim += 2) {
    for (const bool interleaved : {false, true}) {
      for (const int32_t dtype : {TESSELLA_F32, TESSELLA_BF16}) {
        AppendCase c = base();
        c.dtype = dtype;
        c.head_dim_qk = 80;
        c.rotary_dim = rotary_dim;
        c.heads_q = rotary_dim == 0 ? 0 : 3;
        c.interleaved = interleaved;
        c.f32_angles = rotary_dim % 4 == 0;
        ASSERT_EQ(run(c), "");
      }
    }
  }
}

// More rows than threads and blocks have at once.
TEST_P(Append, ManyRows) {
  AppendCase c = base();
  c.dtype = TESSELLA_BF16;
  c.batch = 3;
  c.seqlen_new = 700;
  c.seqlen_kv = 1000;
  c.heads_kv = 5;
  c.page_size = 16;
  for (const bool packed : {false, true}) {
    c.packed = packed;
    ASSERT_EQ(run(c), "");
  }
}

// What is not rotated keeps its bits: -0, infinities, NaN with its payload, subnormals.
TEST_P(Append, CopiesAreExact) {
  for (const int32_t dtype : {TESSELLA_F32, TESSELLA_BF16, TESSELLA_F16}) {
    AppendCase c = base();
    c.dtype = dtype;
    c.heads_q = 0;
    c.rotary_dim = 0;
    AppendCall call(c);
    const auto* v_new = call.args().v_new;
    const uint32_t f32[] = {0x80000000, 0x7F800000, 0x7F812345, 0x00000001};
    const uint16_t halves[] = {0x8000, 0x7F81, 0x7C01, 0x0001};
    auto* first = static_cast<std::byte*>(v_new->data);
    if (dtype == TESSELLA_F32) {
      std::memcpy(first, f32, sizeof f32);
    } else {
      std::memcpy(first, halves, sizeof halves);
    }
    ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
    ASSERT_EQ(call.check(), "");
  }
}

// The same bits for any number of threads, in place and not.
TEST_P(Append, BitsDependOnTheRowAlone) {
  AppendCase c = base();
  c.seqlen_new = 200;
  c.seqlen_kv = 300;
  c.num_threads = 1;
  AppendCall first(c);
  ASSERT_EQ(first.run(), TESSELLA_OK) << tessella_last_error();
  for (const bool plan : {false, true}) {
    for (const int32_t threads : {1, 2, 3, 0}) {
      c.plan = plan;
      c.num_threads = threads;
      AppendCall again(c);
      ASSERT_EQ(again.run(), TESSELLA_OK) << tessella_last_error();
      ASSERT_EQ(again.results(), first.results()) << to_string(c);
    }
  }
}

// A verdict that passes anything would pass all of the above.
TEST(AppendVerdict, FindsWhatIsWrong) {
  const AppendCase c{.heads_q = 2, .rotary_dim = 32};
  for (const char* what : {"k", "v", "q_out", "beside", "input"}) {
    AppendCall call(c);
    ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
    ASSERT_EQ(call.check(), "");
    const std::string name = what;
    const tessella_tensor* t = name == "k" || name == "beside" ? call.args().k
                               : name == "v"                   ? call.args().v
                               : name == "q_out"               ? call.args().q_out
                                                               : call.args().k_new;
    const auto* seqlens = static_cast<const int32_t*>(call.args().seqlens_kv->data);
    const int64_t row = name == "q_out" || name == "input" ? 0 : name == "beside" ? seqlens[1] : seqlens[1] - 1;
    if (name == "beside" && row == t->shape[1]) continue;
    auto* at = static_cast<float*>(t->data) + t->strides[0] + row * t->strides[1] + 5;
    *at = *at == *at ? *at + 1e-4F : 0;
    EXPECT_NE(call.check(), "") << what;
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Append, testing::ValuesIn(kernels_of("append")), kernel_test_name);

class CopyPages : public EachKernel {
 protected:
  static std::string run(const CopyPagesCase& c) {
    CopyPagesCall call(c);
    if (call.run() != TESSELLA_OK) return to_string(c) + ": " + tessella_last_error();
    return call.check();
  }
};

TEST_P(CopyPages, RandomCases) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    ASSERT_EQ(run(random_copy_pages(GetParam().name, seed)), "") << "seed " << seed;
  }
}

TEST_P(CopyPages, ManyPairsAndPools) {
  CopyPagesCase c{.kernel = GetParam().name, .num_pools = 5, .num_pages = 400, .page_size = 16, .num_pairs = 200};
  ASSERT_EQ(run(c), "");
  c.num_pools = 160;
  c.num_pages = 10;
  c.num_pairs = 3;
  ASSERT_EQ(run(c), "");
}

INSTANTIATE_TEST_SUITE_P(Kernels, CopyPages, testing::ValuesIn(kernels_of("copy_pages")), kernel_test_name);

}  // namespace
}  // namespace tessella::tests
