// cuda.decode on k and v of 8 and 4 bits, in the emulator.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "api/call.hpp"
#include "cases/part.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "emulated_decode_case.hpp"
#include "operations/attention/attention.hpp"
#include "portable/float16.hpp"

namespace tessella::tests {
namespace {

constexpr const char* kDTypes[] = {"f8e4m3fn", "i8", "i4"};
constexpr const char* kScales[] = {"1", "h", "bh", "th", "ph"};

constexpr const char* kCollectors = "reference.attention";  // what the collector computes calls with

Case quantized(const char* dtype, const char* kv_dtype, const char* kv_scale, int64_t seqlen_kv = 300) {
  Case c = decode_base(seqlen_kv);
  c.kernel = kCollectors;
  c.dtype = dtype;
  c.kv_dtype = kv_dtype;
  c.kv_scale = kv_scale;
  return c;
}

// NaN in rows and scales that no query sees, in pages and behind the last key. All with bf16, of the others a third.
TEST(EmulatedQuantizedDecode, DTypesAndScales) {
  uint64_t seed = 0, idx = 0;
  for (const char* dtype : {"bf16", "f16", "f32"}) {
    for (const char* kv_dtype : kDTypes) {
      for (const char* kv_scale : kScales) {
        for (const int64_t page_size : {0, 1, 3, 16, 64}) {
          if (std::string_view(dtype) != "bf16" && idx++ % 3 != 0) continue;
          Case c = quantized(dtype, kv_dtype, kv_scale);
          c.heads_q = 8, c.heads_kv = 2;
          c.page_size = page_size;
          c.seqlens_kv = c.leftpad_kv = c.masked_nan = true;
          c.window_right = 0;
          c.seed = ++seed;
          expect_decoded(c, {.num_splits = 4}, cuda::decode_recipe, 1);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(EmulatedQuantizedDecode, ShortCaches) {
  for (const char* kv_dtype : kDTypes) {
    for (const int64_t keys : {0, 1, 15, 17, 130})
      expect_decoded(quantized("bf16", kv_dtype, "th", keys), {.num_splits = 2});
  }
}

// Of 64 rows each warp sums columns of its own.
TEST(EmulatedQuantizedDecode, ManyRows) {
  for (const char* dtype : {"bf16", "f16", "f32"}) {
    for (const char* kv_dtype : kDTypes) {
      Case c = quantized(dtype, kv_dtype, "th", 600);
      c.seqlen_q = 16;
      c.window_right = 0;
      for (const double spread : {1.0, 20.0}) {
        c.spread = spread;
        expect_decoded(c, {.num_splits = 2}, cuda::decode_recipe, 1);
      }
    }
  }
}

TEST(EmulatedQuantizedDecode, HeadDims) {
  for (const char* dtype : {"bf16", "f32"}) {
    for (const char* kv_dtype : kDTypes) {
      for (const auto& [qk, v] : {std::pair{32, 32}, {96, 160}, {192, 256}}) {
        Case c = quantized(dtype, kv_dtype, "h");
        c.head_dim_qk = qk;
        c.head_dim_v = v;
        expect_decoded(c, {.num_splits = 2}, cuda::decode_recipe, 1);
      }
    }
  }
}

TEST(EmulatedQuantizedDecode, Caches) {
  for (const auto& change :
       {+[](Case& c) { c.packed_kv = c.packed_q = true; }, +[](Case& c) { c.cache_batch_idx = true; },
        +[](Case& c) { c.window_left = 50, c.window_right = 0, c.keep_first = 20; },
        +[](Case& c) { c.batch = 5, c.seqlens_kv = true; }}) {
    for (const char* kv_scale : {"h", "th", "ph"}) {
      Case c = quantized("bf16", "i8", kv_scale, 500);
      change(c);
      c.masked_nan = true;
      expect_decoded(c, {.num_splits = 3}, cuda::decode_recipe, 1);
      expect_decoded(c, {.num_sms = 6, .scheduled = true}, cuda::decode_recipe, 1);
    }
  }
}

// Scales far below what f16 holds, and such that grow by powers of two from key to key or shrink: none of a
// probability's bits are lost. Some keys' scales are 0 or below it.
TEST(EmulatedQuantizedDecode, SmallValueScales) {
  for (const auto& [dtype, queries] : {std::pair{"f16", 2}, {"f16", 16}, {"f32", 1}}) {
    for (const double step : {0.0, 0.04, -0.04}) {
      for (const float least : {0x1p-30f, 0x1p-3f, 0x1p20f}) {
        Case c = quantized(dtype, "f8e4m3fn", "th", 500);
        c.out_dtype = "f32";
        c.seqlen_q = queries;
        Call call(c);
        const tessella_tensor& t = *call.args().v_scale;
        auto* scales = static_cast<float*>(t.data);
        for (int64_t b = 0; b < t.shape[0]; ++b) {
          for (int64_t key = 0; key < t.shape[1]; ++key) {
            float& scale = scales[b * t.strides[0] + key * t.strides[1]];
            scale *= least * static_cast<float>(std::exp2(std::floor(step * static_cast<double>(key))));
            if (key % 7 == 0) scale = -scale;
            if (key % 50 == 0) scale = 0;
          }
        }
        ASSERT_EQ(run_decode(call, cuda::decode_recipe, 0, 1, {.num_splits = 2}), "");
        ASSERT_EQ(call.check(), "") << dtype << " " << queries << " " << step << " " << least;
      }
    }
  }
}

// With one key out is v times v_scale, rounded once: a scale of all keys of a sequence and head multiplies out, and no
// probability. The reference has that product in double.
TEST(EmulatedQuantizedDecode, OneKeyIsRoundedOnce) {
  for (const char* dtype : {"bf16", "f16", "f32"}) {
    for (const char* kv_dtype : kDTypes) {
      if (std::string_view(dtype) != "bf16" && kv_dtype != kDTypes[0]) continue;
      for (const char* kv_scale : {"1", "h", "bh"}) {  // bh: of 4 keys
        for (const auto& change : {+[](Case&) {}, +[](Case& c) { c.cache_batch_idx = true; },
                                   +[](Case& c) { c.packed_q = c.packed_kv = true; }}) {
          Case c = quantized(dtype, kv_dtype, kv_scale, 1);
          c.batch = 4;
          c.seqlen_q = 1;
          c.heads_q = c.heads_kv = 8;
          c.lse = false;
          change(c);
          Call call(c);
          ASSERT_EQ(run_decode(call, cuda::decode_recipe, 0, 1, {.num_splits = 1}), "") << to_string(c);
          const std::vector<std::byte> got = call.results();
          ASSERT_EQ(tessella_forward(&call.args(), &call.options(), nullptr), TESSELLA_OK) << tessella_last_error();
          ASSERT_TRUE(got == call.results()) << to_string(c);
        }
      }
    }
  }
}

// Nor does a scale of NaN reach a row that sees no key.
TEST(EmulatedQuantizedDecode, ScalesOfNoKey) {
  for (const char* kv_scale : {"h", "th"}) {
    Case c = quantized("bf16", "i8", kv_scale, 20);
    c.seqlens_kv = true;
    Call call(c);
    const_cast<int32_t*>(static_cast<const int32_t*>(call.args().seqlens_kv->data))[0] = 0;
    const tessella_tensor& scales = *call.args().v_scale;
    static_cast<float*>(scales.data)[0] = NAN;
    ASSERT_EQ(run_decode(call, cuda::decode_recipe, 0, 1, {.num_splits = 1}), "") << kv_scale;
    ASSERT_EQ(call.check(), "") << kv_scale;
  }
}

// A stored NaN is one.
TEST(EmulatedQuantizedDecode, StoredNan) {
  for (const char* dtype : {"bf16", "f16", "f32"}) {
    for (const bool in_keys : {true, false}) {
      for (const int bits : {0x7F, 0xFF}) {
        Case c = quantized(dtype, "f8e4m3fn", "1", 40);
        Call call(c);
        const tessella_tensor& t = in_keys ? *call.args().k : *call.args().v;
        static_cast<uint8_t*>(t.data)[3 * t.strides[1] + 5] = static_cast<uint8_t>(bits);
        ASSERT_EQ(run_decode(call, cuda::decode_recipe, 0, 1, {.num_splits = 1}), "");
        const void* out = call.args().out->data;
        const int at = in_keys ? 0 : 5;
        const float value = c.dtype == "bf16"  ? portable::to_float(static_cast<const portable::BFloat16*>(out)[at])
                            : c.dtype == "f16" ? portable::to_float(static_cast<const portable::Float16*>(out)[at])
                                               : static_cast<const float*>(out)[at];
        EXPECT_TRUE(std::isnan(value)) << dtype << " " << in_keys << " " << bits;
        ASSERT_EQ(call.check(), "") << dtype << " " << in_keys << " " << bits;
      }
    }
  }
}

// A row has the same bits alone and beside others, whose scales are others.
TEST(EmulatedQuantizedDecode, BatchInvariant) {
  Case c = quantized("f16", "i8", "th", 4200);
  c.batch = 1;
  c.heads_q = 2;
  c.seqlen_q = 70;
  c.window_right = 0;
  c.batch_invariant = true;
  const auto run = [](Call& call, const Case& of) {
    return run_decode(call, cuda::decode_recipe, of.max_seqlen, 1, {.few = true});
  };
  for (const int64_t window_left : {-1, 90}) {
    c.window_left = window_left;
    EXPECT_EQ(check_parts({c}, run), "") << to_string(c);
  }
}

// Whatever tables hold, a call reads no row and no scale that is not there.
TEST(EmulatedQuantizedDecode, HostileTables) {
  for (const auto& change :
       {+[](Case& c) { c.seqlens_kv = c.leftpad_kv = true; }, +[](Case& c) { c.cache_batch_idx = true; },
        +[](Case& c) { c.packed_q = c.packed_kv = true; }, +[](Case& c) { c.page_size = 3, c.seqlens_kv = true; }}) {
    for (const char* kv_scale : {"h", "th", "ph"}) {
      for (uint64_t seed = 1; seed <= 4; ++seed) {
        Case c = quantized("f16", "i8", kv_scale, 90);
        c.batch = 3;
        c.guard = true;
        change(c);
        Call call(c);
        ASSERT_EQ(run_decode(call, cuda::decode_recipe, 0, seed, {.num_splits = 2, .hostile_tables = seed}), "")
            << to_string(c);
        ASSERT_EQ(call.spoiled(), "") << to_string(c) << " tables of " << seed;
      }
    }
  }
}

// Random cases of all that the kernel reads at run time.
class EmulatedRandomQuantizedDecode : public testing::TestWithParam<uint64_t> {};

TEST_P(EmulatedRandomQuantizedDecode, IsRight) {
  constexpr uint64_t kCasesOfGroup = 30;
  constexpr int kCompiled = 3;
  for (uint64_t seed = GetParam() * kCasesOfGroup; seed < (GetParam() + 1) * kCasesOfGroup; ++seed) {
    Case c = random_quantized_case(seed, "cuda.decode", "bf16 f16 f32", kCompiled);
    c.kernel = kCollectors;
    c.seqlen_kv /= seed % 8 == 0 ? 1 : 4;
    Gpu gpu{.num_sms = static_cast<int>(2 + seed % 41), .num_splits = static_cast<int>(c.num_splits), .few = c.few};
    c.few = false;  // the GPU's alone; the call's are those of the CPU
    c.num_splits = 0;
    if (!gpu.few && c.seqlen_q > 8 && gpu.num_splits < 2) gpu.num_splits = 2;
    if (!gpu.few && seed % 3 == 0) {
      gpu.scheduled = true;
      gpu.num_splits = 0;
    }
    expect_decoded(c, gpu, cuda::decode_recipe, 1);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, EmulatedRandomQuantizedDecode, testing::Range(uint64_t{0}, uint64_t{4}));

// What random_test runs on a GPU.
TEST(RandomQuantizedDecode, EveryOneIsEligible) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const Case c = random_quantized_case(seed, "cuda.decode", "bf16 f16 f32");
    const Call call(c);
    core::AttentionArguments p = api::read<core::Forward>(&call.args(), call.options(), "random", nullptr);
    for (const core::Name name : core::kNames) p.operands[name].alignment = 16;
    for (const core::Name name : {core::Name::q, core::Name::k, core::Name::v}) {
      const core::Operand& t = p.tensors[name];
      for (const int64_t stride : {t.batch_stride, t.row_stride, t.head_stride}) {
        ASSERT_EQ(stride * core::size_bits(t.dtype) % 128, 0) << to_string(c);
      }
    }
    for (const int arch : {80, 90}) {
      ASSERT_EQ(cuda::decode_recipe(p, cuda::typical_device(arch)).ineligible, "") << to_string(c);
    }
  }
}

}  // namespace
}  // namespace tessella::tests
