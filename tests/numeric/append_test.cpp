// append and copy_pages on every kernel of the library, against plain loops: rows, rotations, and what stays untouched.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cases/append_call.hpp"
#include "cases/copy_pages_call.hpp"
#include "cases/kernels.hpp"
#include "cases/tensor_places.hpp"

namespace tessella::tests {
namespace {

constexpr int32_t kQuantized[] = {TESSELLA_F8E4M3FN, TESSELLA_I8, TESSELLA_I4};

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

// A neighbour of what is right, of a number and of a scale; tessella_check must say so too.
TEST(AppendVerdict, FindsWhatIsWrongInQuantizedCaches) {
  for (const int32_t cache_dtype : kQuantized) {
    for (const char* what : {"k", "v", "k_scale", "v_scale"}) {
      const AppendCase c{.cache_dtype = cache_dtype, .scale = "th", .rotary_dim = 32};
      AppendCall call(c);
      ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
      ASSERT_EQ(call.check(), "");
      const std::string name = what;
      const int64_t row = static_cast<const int32_t*>(call.args().seqlens_kv->data)[1] - 1;
      if (name.size() > 1) {
        const tessella_tensor& t = name == "k_scale" ? call.k_scale() : call.v_scale();
        static_cast<float*>(t.data)[t.strides[0] + row * t.strides[1] + t.strides[2]] *= 1.0001F;
      } else {
        const tessella_tensor& t = name == "k" ? *call.args().k : *call.args().v;
        auto* at = static_cast<uint8_t*>(t.data) +
                   bytes_of(cache_dtype, t.strides[0] + row * t.strides[1] + t.strides[2] + 40);
        // Away from zero would be beyond what the row's largest number allows; in f8e4m3fn -0 is no neighbour of 0.
        const int step = cache_dtype == TESSELLA_F8E4M3FN ? ((*at & 0x7F) > 1 ? -1 : 1) : (*at & 0x8) != 0 ? 1 : -1;
        *at = static_cast<uint8_t>(*at + step);
      }
      EXPECT_NE(call.check(), "") << what;
      const tessella_call tagged = call.tagged();
      tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
      ASSERT_EQ(tessella_check(&tagged, 0, 1, &report), TESSELLA_OK) << tessella_last_error();
      EXPECT_EQ(report.passed, 0) << what << " of " << cache_dtype;
      EXPECT_EQ(report.worst_tensor, name);
    }
  }
}

// Of every dtype and kind of scale; head dims that are no whole pieces, and many rows.
TEST_P(Append, QuantizedCaches) {
  for (const int32_t cache_dtype : kQuantized) {
    for (const char* scale : {"1", "h", "s", "th", "ph"}) {
      for (const int32_t dtype : {TESSELLA_F32, TESSELLA_BF16, TESSELLA_F16}) {
        for (const int64_t head_dim : {2, 10, 64, 130}) {
          AppendCase c = base();
          c.dtype = dtype;
          c.cache_dtype = cache_dtype;
          c.scale = scale;
          c.seqlen_new = 9;
          c.page_size = head_dim == 10 ? 0 : 4;
          c.head_dim_qk = head_dim;
          c.rotary_dim = head_dim == 64 ? 64 : head_dim == 130 ? 32 : 2;
          c.interleaved = head_dim == 130;
          ASSERT_EQ(run(c), "");
        }
      }
    }
  }
}

// Rows and scales that do not fit each other.
TEST_P(Append, QuantizedRowsOfAnyNumbers) {
  for (const int32_t cache_dtype : kQuantized) {
    for (const char* scale : {"1", "s", "th"}) {
      for (const int32_t dtype : {TESSELLA_F32, TESSELLA_BF16}) {
        for (uint64_t seed = 1; seed <= 10; ++seed) {
          AppendCase c = base();
          c.heads_q = 0;
          c.rotary_dim = 0;
          c.dtype = dtype;
          c.cache_dtype = cache_dtype;
          c.scale = scale;
          c.extremes = true;
          c.seqlen_new = 12;
          c.seed = seed;
          ASSERT_EQ(run(c), "");
        }
      }
    }
  }
}

// Every kernel of the CPU stores the bits of the others, but for the reference where it rotates in double.
TEST(QuantizedAppend, BitsAreThoseOfTheReference) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    AppendCase c = random_append("reference.append", "f32 bf16 f16", seed);
    if (c.cache_dtype == 0) continue;
    c.rotary_dim = c.heads_q = 0;
    AppendCall reference(c);
    c.kernel = "cpu.append";
    AppendCall call(c);
    ASSERT_EQ(reference.run(), TESSELLA_OK) << tessella_last_error();
    ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
    ASSERT_EQ(call.results(), reference.results()) << to_string(c);
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
