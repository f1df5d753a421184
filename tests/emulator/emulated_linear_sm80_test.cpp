// cuda.linear_sm80 and cuda.linear_gemv in the emulator, as calls on a GPU run them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "api/call.hpp"
#include "cases/linear_call.hpp"
#include "cases/tensor_elements.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "cuda/kernels/linear_gemv/recipe.hpp"
#include "cuda/kernels/linear_sm80/recipe.hpp"
#include "emulated_step.hpp"
#include "late_memory.hpp"
#include "operations/linear/linear.hpp"

namespace tessella::tests {
namespace {

constexpr const char* kReference = "reference.linear";  // of the collector

struct EmulatedKernel {
  const char* name;
  const char* dtypes;
  int64_t most_rows;  // of random cases
  cuda::Recipe (*recipe)(const core::Shape&, const cuda::DeviceInfo&);
};
constexpr EmulatedKernel kSm80{"linear_sm80", "bf16 f16", 70, cuda::linear_sm80_recipe};
constexpr EmulatedKernel kGemv{"linear_gemv", "f32 bf16 f16", 20, cuda::linear_gemv_recipe};

// The steps of a call on a GPU, for its alignments. The kernel before writes last what the call does not promise to be
// there already.
std::string run_linear(const EmulatedKernel& kernel, LinearCall& call, int num_sms = 132) {
  call.remember();
  const tessella_linear_args args = call.args();
  core::LinearArguments arguments = api::read<core::Linear>(&args, call.options(), "emulated", nullptr);
  arguments.device.type = core::DeviceType::cuda;
  arguments.derive_shape();
  core::LinearShape bounds = arguments;
  bounds.rows = std::max(bounds.rows, call.data().max_rows);
  cuda::DeviceInfo device = cuda::typical_device(90);
  device.num_sms = num_sms;
  const cuda::Recipe recipe = kernel.recipe(bounds, device);
  if (!recipe.ineligible.empty()) return recipe.ineligible;
  std::vector<Late> late;
  for (const tessella_tensor* t : {args.x, args.out}) late.emplace_back(*t);
  if (args.residual != nullptr && args.residual != args.out) late.emplace_back(*args.residual);
  for (const tessella_tensor* t : {args.w, args.w_scale, args.bias}) {
    if (t != nullptr && !arguments.weights_ready) late.emplace_back(*t);
  }
  bool is_written = false;
  const auto write_late = [&] {
    for (const Late& of : late) of.write();
    is_written = true;
  };
  set_kernel_before(write_late);
  std::string wrong;
  try {
    for (const cuda::Step& step : recipe.steps) {
      const auto launch = step.launch(bounds, &arguments, cuda::concurrency(step, bounds, device), {});
      if (launch) run_step(step, *launch, call.data().seed);
    }
    if (!is_written) write_late();
    finish(call);
  } catch (const std::exception& error) {
    wrong = error.what();
  }
  set_kernel_before(nullptr);
  return wrong;
}

std::string checked(const EmulatedKernel& kernel, const LinearCase& c, int num_sms = 132) {
  LinearCall call(c);
  if (std::string problem = run_linear(kernel, call, num_sms); !problem.empty()) return problem + ", " + to_string(c);
  return call.check();
}

LinearCase random_case(const EmulatedKernel& kernel, uint64_t seed) {
  LinearCase c = random_linear(kReference, kernel.dtypes, seed, kernel.most_rows);
  c.plan = false;
  return c;
}

class EmulatedLinear : public testing::TestWithParam<EmulatedKernel> {
 protected:
  LinearCase base() const {
    return {.kernel = kReference,
            .dtype = TESSELLA_BF16,
            .w_dtype = TESSELLA_BF16,
            .out_dtype = TESSELLA_BF16,
            .rows = 3,
            .in_features = 256,
            .out_features = 48};
  }
};

TEST_P(EmulatedLinear, RandomCases) {
  for (uint64_t seed = 1; seed <= 100; ++seed) ASSERT_EQ(checked(GetParam(), random_case(GetParam(), seed)), "");
}

// 32 rows of w a block, where the GPU is small; and the same bits.
TEST(EmulatedLinearSm80, WiderBlocks) {
  for (const int32_t w_dtype : {TESSELLA_BF16, TESSELLA_I8}) {
    for (const int64_t rows : {1, 20, 60}) {
      const LinearCase c{.kernel = kReference,
                         .dtype = TESSELLA_BF16,
                         .w_dtype = w_dtype,
                         .out_dtype = TESSELLA_BF16,
                         .bias_dtype = TESSELLA_F32,
                         .rows = rows,
                         .in_features = 1300,
                         .out_features = 145};
      LinearCall narrow(c), wide(c);
      ASSERT_EQ(run_linear(kSm80, narrow), "");
      ASSERT_EQ(run_linear(kSm80, wide, 1), "");
      ASSERT_EQ(wide.check(), "");
      ASSERT_EQ(wide.results(), narrow.results());
    }
  }
}

// A row has the bits that it has alone, whatever the plan, tiles of more than 64 rows included.
TEST_P(EmulatedLinear, BatchInvariant) {
  for (const int32_t w_dtype : {TESSELLA_BF16, TESSELLA_F8E4M3FN}) {
    LinearCase c = base();
    c.w_dtype = w_dtype;
    c.batch_invariant = true;
    c.in_features = 1536;
    c.rows = 70;
    LinearCall all(c);
    ASSERT_EQ(run_linear(GetParam(), all), "");
    ASSERT_EQ(all.check(), "");
    for (const int64_t rows : {1, 2, 9, 33}) {
      LinearCase few = c;
      few.rows = rows;
      few.max_rows = rows == 9 ? 64 : 0;
      LinearCall call(few);
      std::memcpy(call.x().data, all.x().data, static_cast<size_t>(rows * c.in_features * size_of(c.dtype)));
      ASSERT_EQ(run_linear(GetParam(), call), "");
      ASSERT_EQ(
          std::memcmp(call.out().data, all.out().data, static_cast<size_t>(rows * c.out_features * size_of(c.dtype))),
          0)
          << rows;
    }
  }
}

// Rows that are not aligned have the bits of rows that are.
TEST_P(EmulatedLinear, AlignmentChangesNoBits) {
  for (const int32_t w_dtype : {TESSELLA_BF16, TESSELLA_I8}) {
    LinearCase c = base();
    c.w_dtype = w_dtype;
    LinearCall aligned(c);
    ASSERT_EQ(run_linear(GetParam(), aligned), "");
    c.gap = 3;
    c.offset = 1;
    LinearCall call(c);
    ASSERT_EQ(run_linear(GetParam(), call), "");
    for (int64_t row = 0; row < c.rows; ++row) {
      for (int64_t column = 0; column < c.out_features; ++column) {
        ASSERT_EQ(get(call.out(), row * call.out().strides[0] + column),
                  get(aligned.out(), row * aligned.out().strides[0] + column));
      }
    }
  }
}

// Every odd number of columns, of tensors that end where memory does.
TEST_P(EmulatedLinear, Columns) {
  for (int64_t columns = 1; columns <= 140; columns += 3) {
    LinearCase c = base();
    c.in_features = columns;
    c.out_features = 71 - columns / 2;
    c.guard = true;
    ASSERT_EQ(checked(GetParam(), c), "");
  }
}

// NaN and infinities of a row of x or of w, of 8 bits too, reach the elements that are computed from it, and no other.
TEST_P(EmulatedLinear, NotFinite) {
  for (const double value : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    for (const int32_t w_dtype : {TESSELLA_BF16, TESSELLA_F8E4M3FN}) {
      LinearCase c = base();
      c.w_dtype = w_dtype;
      c.rows = 9;
      LinearCall call(c);
      const tessella_tensor& t = w_dtype == TESSELLA_BF16 && std::isinf(value) ? call.x() : call.w();
      set(t, 5 * t.strides[0] + 70, value);
      ASSERT_EQ(run_linear(GetParam(), call), "");
      ASSERT_EQ(call.check(), "");
    }
  }
}

// Every number of 8 bits as the products have it: x is 1 in one column.
TEST_P(EmulatedLinear, EveryWeight) {
  for (const int32_t dtype : {TESSELLA_BF16, TESSELLA_F16}) {
    for (const int32_t w_dtype : {TESSELLA_I8, TESSELLA_F8E4M3FN}) {
      LinearCase c = base();
      c.dtype = dtype;
      c.w_dtype = w_dtype;
      c.out_dtype = TESSELLA_F32;
      c.rows = 2;
      c.in_features = 16;
      c.out_features = 128;
      LinearCall call(c);
      for (int64_t row = 0; row < 2; ++row) {
        for (int64_t k = 0; k < 16; ++k) set(call.x(), row * call.x().strides[0] + k, k == 5 + row ? 1 : 0);
      }
      auto* bytes = static_cast<uint8_t*>(call.w().data);
      for (int64_t row = 0; row < 128; ++row) {
        for (int64_t k = 0; k < 16; ++k) {
          const auto byte = static_cast<uint8_t>(2 * row + (k == 6 ? 1 : 0));
          const bool is_nan = w_dtype == TESSELLA_F8E4M3FN && (byte & 0x7F) == 0x7F;
          bytes[row * call.w().strides[0] + k] = is_nan ? uint8_t{0} : byte;
        }
      }
      ASSERT_EQ(run_linear(GetParam(), call), "");
      ASSERT_EQ(call.check(), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, EmulatedLinear, testing::Values(kSm80, kGemv),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessella::tests
