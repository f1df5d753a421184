// quantize and dequantize on every kernel of the library, and the reference by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cases/kernels.hpp"
#include "cases/quantize_call.hpp"
#include "portable/hadamard.hpp"
#include "portable/sequence_rows.hpp"

namespace tessella::tests {
namespace {

class Quantize : public EachKernel {
 protected:
  QuantizeCase base() const { return {.kernel = GetParam().name}; }
  // "cpu.quantize" -> "cpu.dequantize".
  static std::string back_kernel() {
    const std::string& name = GetParam().name;
    return name.substr(0, name.find('.') + 1) + "de" + name.substr(name.find('.') + 1);
  }
  static std::string run(const QuantizeCase& c) {
    QuantizeCall call(c);
    if (call.run() != TESSELLA_OK) return to_string(c) + ": " + tessella_last_error();
    if (std::string wrong = call.check(); !wrong.empty()) return wrong;
    if (call.run_back(back_kernel()) != TESSELLA_OK) return to_string(c) + ": " + tessella_last_error();
    return call.check_back();
  }
};

TEST_P(Quantize, RandomCases) {
  const auto draw = GetParam().is_on_gpu() ? random_quantize_of_few : random_quantize;
  for (uint64_t seed = 1; seed <= 400; ++seed) ASSERT_EQ(run(draw(GetParam().name, seed)), "");
}

// Every kind of scale, of every dtype; blocks that end within a tile, blocks of one row, more blocks than rows.
TEST_P(Quantize, Scales) {
  for (const int32_t out_dtype : {TESSELLA_F8E4M3FN, TESSELLA_F8E5M2}) {
    for (const char* scale : {"", "h", "bh", "nh", "bn", "bnh"}) {
      for (const int64_t block : {0, 1, 3, 128, 1000}) {
        for (const bool packed : {false, true}) {
          QuantizeCase c = base();
          c.dtype = TESSELLA_BF16;
          c.out_dtype = out_dtype;
          c.scale = scale;
          c.scale_block = block;
          c.packed = packed;
          c.batch = 3;
          c.seqlen = 20;
          ASSERT_EQ(run(c), "");
        }
      }
    }
  }
}

TEST_P(Quantize, TransposedRows) {
  for (const int64_t seqlen : {1, 15, 16, 17, 127, 128, 129, 300}) {
    for (const bool given : {false, true}) {
      QuantizeCase c = base();
      c.dtype = TESSELLA_BF16;
      c.transposed = true;
      c.seqlen = seqlen;
      c.given = given;
      c.scale_block = seqlen == 300 ? 128 : 0;
      c.hadamard = seqlen % 2 == 0;
      ASSERT_EQ(run(c), "");
    }
  }
}

TEST_P(Quantize, HadamardOfEveryHeadDim) {
  for (int64_t head_dim = 16; head_dim <= 256; head_dim += 16) {
    QuantizeCase c = base();
    c.head_dim = head_dim;
    c.hadamard = true;
    c.smooth = head_dim % 32 == 0;
    c.rotary_dim = head_dim % 48 == 0 ? head_dim / 2 : 0;
    ASSERT_EQ(run(c), "");
  }
}

// More rows than threads and blocks have at once, and means of many chunks.
TEST_P(Quantize, ManyRows) {
  for (const bool packed : {false, true}) {
    QuantizeCase c = base();
    c.dtype = TESSELLA_BF16;
    c.batch = 3;
    c.seqlen = 700;
    c.smooth = true;
    c.hadamard = true;
    c.packed = packed;
    c.scale = "";
    c.head_dim = 32;
    ASSERT_EQ(run(c), "");
    c.smooth = false;
    c.heads_mean = 1;
    c.scale = "bnh";
    c.scale_block = 64;
    ASSERT_EQ(run(c), "");
  }
}

TEST_P(Quantize, RowsOfAnyNumbers) {
  for (const int32_t out_dtype : {TESSELLA_F8E4M3FN, TESSELLA_F8E5M2}) {
    for (const bool given : {false, true}) {
      for (uint64_t seed = 1; seed <= 20; ++seed) {
        QuantizeCase c = base();
        c.dtype = seed % 2 == 0 ? TESSELLA_F32 : TESSELLA_BF16;
        c.out_dtype = out_dtype;
        c.given = given;
        c.scale_block = 1;
        c.extremes = true;
        c.seqlen = 12;
        c.seed = seed;
        ASSERT_EQ(run(c), "");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Quantize, testing::ValuesIn(kernels_of("quantize")), kernel_test_name);

// The same bits for any number of threads.
TEST(CpuQuantize, BitsDependOnTheRowAlone) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    QuantizeCase c = random_quantize("cpu.quantize", seed);
    c.seqlen = 200;
    c.num_threads = 1;
    QuantizeCall first(c);
    ASSERT_EQ(first.run(), TESSELLA_OK) << tessella_last_error();
    for (const int32_t threads : {2, 3, 0}) {
      c.num_threads = threads;
      QuantizeCall again(c);
      ASSERT_EQ(again.run(), TESSELLA_OK) << tessella_last_error();
      ASSERT_EQ(again.results(), first.results()) << to_string(c);
    }
  }
}

// Where nothing is summed, kernels store the reference's bits.
TEST(CpuQuantize, BitsAreThoseOfTheReference) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    QuantizeCase c = random_quantize("reference.quantize", seed);
    c.rotary_dim = c.heads_mean = 0;
    c.hadamard = c.smooth = false;
    QuantizeCall reference(c);
    c.kernel = "cpu.quantize";
    QuantizeCall call(c);
    ASSERT_EQ(reference.run(), TESSELLA_OK) << tessella_last_error();
    ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
    ASSERT_EQ(call.results(), reference.results()) << to_string(c);
  }
}

// A verdict that passes anything would pass all of the above.
TEST(QuantizeVerdict, FindsWhatIsWrong) {
  for (const int32_t out_dtype : {TESSELLA_F8E4M3FN, TESSELLA_F8E5M2}) {
    for (const std::string what : {"out", "scale", "mean", "lse_shift"}) {
      QuantizeCase c{.out_dtype = out_dtype, .scale_block = 2, .seqlen = 6, .hadamard = true, .rotary_dim = 32};
      c.smooth = what == "mean";
      c.heads_mean = what == "lse_shift" ? 2 : 0;
      QuantizeCall call(c);
      ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
      ASSERT_EQ(call.check(), "");
      if (what == "out") {
        auto* at = static_cast<uint8_t*>(call.out().data) + 3 * 64 + 40;
        *at = static_cast<uint8_t>((*at & 0x7F) > 1 ? *at - 1 : *at + 1);
      } else {
        const tessella_tensor* t = what == "scale"  ? call.args().scale
                                   : what == "mean" ? call.args().mean
                                                    : call.args().lse_shift;
        static_cast<float*>(t->data)[3] *= 1.0001F;
      }
      const tessella_call tagged = call.tagged();
      tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
      ASSERT_EQ(tessella_check(&tagged, 0, 1, &report), TESSELLA_OK) << tessella_last_error();
      EXPECT_EQ(report.passed, 0) << what;
      EXPECT_TRUE(report.worst_tensor == what || what == "scale" || what == "mean") << report.worst_tensor;
    }
  }
}

TEST(QuantizeVerdict, FindsWhatIsWrongInNumbers) {
  QuantizeCall call({.dtype = TESSELLA_BF16, .hadamard = true});
  ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
  ASSERT_EQ(call.run_back("cpu.dequantize"), TESSELLA_OK) << tessella_last_error();
  ASSERT_EQ(call.check_back(), "");
  static_cast<uint16_t*>(call.back().data)[77] += 2;
  EXPECT_NE(call.check_back(), "");
}

// What a user writes, by hand: one row of 16 columns.
class ByHand {
 public:
  ByHand(std::vector<float> x, int32_t dtype = TESSELLA_F8E4M3FN) : x_(std::move(x)), out_(x_.size()) {
    const auto d = static_cast<int64_t>(x_.size());
    x_tensor_ = TESSELLA_TENSOR4(x_.data(), TESSELLA_F32, 1, 1, 1, d);
    out_tensor_ = TESSELLA_TENSOR4(out_.data(), dtype, 1, 1, 1, d);
    args.x = &x_tensor_;
    args.out = &out_tensor_;
    args.scale = &scale_tensor_;
  }
  std::vector<uint8_t> run(const char* kernel) {
    options.kernel = kernel;
    EXPECT_EQ(tessella_quantize(&args, &options, nullptr), TESSELLA_OK) << tessella_last_error();
    return out_;
  }
  float scale = 0;
  tessella_quantize_args args = TESSELLA_QUANTIZE_ARGS_INIT;
  tessella_quantize_options options = TESSELLA_QUANTIZE_OPTIONS_INIT;

 private:
  std::vector<float> x_;
  std::vector<uint8_t> out_;
  tessella_tensor x_tensor_{}, out_tensor_{};
  tessella_tensor scale_tensor_{&scale, TESSELLA_F32, 1, 0, 0, {1}, {1}, 0, {}};
};

constexpr const char* kOfCpu[] = {"reference.quantize", "cpu.quantize"};

TEST(QuantizeByHand, RoundingAndSaturation) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {1,     -1,   17,       18,      19, 448, 449,   -1e9F,
                                -kInf, kNan, 0x1p-10F, 0x1p-9F, -0, 0,   1e-9F, 3 * 0x1p-10F};
  for (const char* kernel : kOfCpu) {
    ByHand e4m3(x);
    e4m3.scale = 1;
    e4m3.options.scales_given = 1;
    e4m3.args.scale = nullptr;  // 1
    EXPECT_EQ(e4m3.run(kernel), (std::vector<uint8_t>{0x38, 0xB8, 0x58, 0x59, 0x5A, 0x7E, 0x7E, 0xFE, 0xFE, 0x7F, 0,
                                                      0x01, 0, 0, 0, 0x02}));
    ByHand e5m2({1, -1, 1.125F, 1.375F, 57344, 1e9F, -kInf, kNan, 0x1p-17F, 0x1p-16F, 3 * 0x1p-17F, 0},
                TESSELLA_F8E5M2);
    e5m2.options.scales_given = 1;
    e5m2.args.scale = nullptr;
    EXPECT_EQ(e5m2.run(kernel),
              (std::vector<uint8_t>{0x3C, 0xBC, 0x3C, 0x3E, 0x7B, 0x7B, 0xFB, 0x7F, 0, 0x01, 0x02, 0}));
  }
}

TEST(QuantizeByHand, ComputedScale) {
  for (const char* kernel : kOfCpu) {
    ByHand call({0, 3.5F, -896, 448, 2, 0, 0, 0});
    EXPECT_EQ(call.run(kernel), (std::vector<uint8_t>{0, 0x3E, 0xFE, 0x76, 0x38, 0, 0, 0}));
    EXPECT_EQ(call.scale, 2);
    ByHand zeros({0, 0, 0, -0.0F});
    EXPECT_EQ(zeros.run(kernel), (std::vector<uint8_t>{0, 0, 0, 0}));
    EXPECT_EQ(zeros.scale, 1);
  }
}

// A row with one number: H gives it in every column of its block, with the signs of a row of the matrix.
TEST(QuantizeByHand, Hadamard) {
  for (const char* kernel : kOfCpu) {
    std::vector<float> x(48);  // blocks of 16, whose root is 4
    x[16 + 5] = 8;
    ByHand call(x);
    call.options.hadamard = 1;
    call.options.hadamard_seed = 42;
    call.options.scales_given = 1;
    call.args.scale = nullptr;
    const std::vector<uint8_t> out = call.run(kernel);
    const bool is_negated = (portable::hadamard_signs(42, 0) >> 21 & 1) != 0;
    for (size_t c = 0; c < 48; ++c) {
      const bool is_negative = (__builtin_popcountll((c - 16) & 5) % 2 != 0) != is_negated;
      EXPECT_EQ(out[c], c < 16 || c >= 32 ? 0 : is_negative ? 0xC0 : 0x40) << c;  // 2
    }
  }
}

// Rows of q and k that have the same signs keep their product.
TEST(QuantizeByHand, HadamardKeepsProducts) {
  float q[64], k[64];
  double before = 0, after = 0;
  for (int c = 0; c < 64; ++c) {
    q[c] = static_cast<float>(c % 5) - 2;
    k[c] = static_cast<float>(c % 7) - 1;
    before += q[c] * k[c];
  }
  for (float* row : {q, k}) {
    portable::sign_row(row, 64, 7);
    portable::hadamard_row(row, 64);
  }
  for (int c = 0; c < 64; ++c) after += q[c] * k[c];
  EXPECT_NEAR(after, before, 1e-4);
}

TEST(QuantizeByHand, PlacesOfKeys) {
  for (int64_t t = 0; t < 4; ++t) {
    for (int64_t b = 0; b < 4; ++b) {
      EXPECT_EQ(portable::key_place(32 + 8 * (b / 2) + 2 * t + b % 2), 32 + 4 * t + b);
    }
  }
}

}  // namespace
}  // namespace tessella::tests
