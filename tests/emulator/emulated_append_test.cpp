// cuda.append and cuda.copy_pages in the emulator, as calls on a GPU run them.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "api/call.hpp"
#include "cases/append_call.hpp"
#include "cases/copy_pages_call.hpp"
#include "cases/random.hpp"
#include "cuda/kernels/append/recipe.hpp"
#include "cuda/kernels/copy_pages/recipe.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "emulated_step.hpp"
#include "operations/append/append.hpp"
#include "operations/copy_pages/copy_pages.hpp"

namespace tessella::tests {
namespace {

cuda::DeviceInfo small_gpu() {
  cuda::DeviceInfo device = cuda::typical_device(90);
  device.num_sms = 1;
  return device;
}

// The steps of a call on a GPU, for its alignments; the plan is of the same shape.
template <typename Arguments>
std::string run_steps(Arguments arguments, cuda::Recipe (*recipe_of)(const core::Shape&, const cuda::DeviceInfo&),
                      uint64_t seed) {
  arguments.device.type = core::DeviceType::cuda;
  arguments.derive_shape();
  const core::Shape bounds = core::shape(&arguments);
  const cuda::Recipe recipe = recipe_of(bounds, small_gpu());
  if (!recipe.ineligible.empty()) return recipe.ineligible;
  try {
    for (const cuda::Step& step : recipe.steps) {
      const auto launch = step.launch(bounds, &arguments, cuda::concurrency(step, bounds, small_gpu()), {});
      if (launch) run_step(step, *launch, seed);
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

core::AppendArguments read(AppendCall& call) {
  return api::read<core::Append>(&call.args(), call.options(), "emulated", nullptr);
}
core::CopyPagesArguments read(CopyPagesCall& call) {
  return api::read<core::CopyPages>(&call.args(), call.options(), "emulated", nullptr);
}

void expect_right(const AppendCase& c) {
  AppendCall call(c);
  call.remember();
  ASSERT_EQ(run_steps(read(call), cuda::append_recipe, c.seed), "") << to_string(c);
  finish(call);
  ASSERT_EQ(call.check(), "");
}

TEST(EmulatedAppend, RandomCases) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    AppendCase c = random_append("", "f32 bf16 f16", seed);
    c.plan = false;
    expect_right(c);
    if (testing::Test::HasFatalFailure()) return;
  }
}

// What is rotated and what is quantised too: an append on a CPU and one on a GPU can take turns on a cache.
TEST(EmulatedAppend, BitsAreThoseOfTheCpu) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    AppendCase c = random_append("", "f32 bf16 f16", seed);
    c.plan = false;
    AppendCall emulated(c);
    emulated.remember();
    ASSERT_EQ(run_steps(read(emulated), cuda::append_recipe, seed), "") << to_string(c);
    finish(emulated);
    c.kernel = "cpu.append";
    AppendCall call(c);
    ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
    ASSERT_EQ(emulated.results(), call.results()) << to_string(c);
  }
}

// More rows than the blocks of the GPU have at once, and rows with more pieces than a warp has threads.
TEST(EmulatedAppend, ManyRowsAndPieces) {
  for (const int32_t dtype : {TESSELLA_F32, TESSELLA_BF16}) {
    for (const bool packed : {false, true}) {
      expect_right({.dtype = dtype,
                    .batch = 3,
                    .seqlen_new = 300,
                    .seqlen_kv = 310,
                    .heads_q = 4,
                    .page_size = 16,
                    .packed = packed,
                    .rotary_dim = 64});
      expect_right({.dtype = dtype, .head_dim_qk = 776, .head_dim_v = 521, .packed = packed, .rotary_dim = 640});
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(EmulatedAppend, QuantizedCaches) {
  for (const int32_t cache_dtype : {TESSELLA_F8E4M3FN, TESSELLA_I8, TESSELLA_I4}) {
    for (const char* scale : {"1", "h", "th", "ph"}) {
      for (const int32_t dtype : {TESSELLA_F32, TESSELLA_BF16}) {
        const AppendCase c{.dtype = dtype,
                           .cache_dtype = cache_dtype,
                           .scale = scale,
                           .batch = 3,
                           .seqlen_new = 30,
                           .seqlen_kv = 40,
                           .heads_q = 4,
                           .page_size = 16};
        for (const int64_t rotary_dim : {64, 6}) {
          AppendCase rotated = c;
          rotated.rotary_dim = rotary_dim;
          expect_right(rotated);
        }
        AppendCase long_rows = c;
        long_rows.seqlen_new = 2;
        long_rows.heads_q = 0;
        long_rows.head_dim_qk = 576;
        long_rows.head_dim_v = 522;
        expect_right(long_rows);
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

int32_t hostile(Random& random) {
  constexpr int32_t kMost = std::numeric_limits<int32_t>::max(), kLeast = std::numeric_limits<int32_t>::min();
  const int32_t values[] = {kLeast, kLeast + 1, -1000, -2, -1, 0, 1, 2, 3, 5, 17, 40, 41, 1000, kMost - 1, kMost};
  return random.chance(0.2) ? static_cast<int32_t>(random.bits()) : random.one_of(values);
}

// Whatever tables hold, nothing but elements of the caches and of q_out is written, and nothing outside is read.
TEST(EmulatedAppend, HostileTables) {
  for (uint64_t seed = 1; seed <= 1000; ++seed) {
    AppendCase c = random_append("", "f32 bf16", seed);
    c.guard = seed % 2 == 0;
    AppendCall call(c);
    const core::AppendArguments arguments = read(call);
    Random random(seed);
    for (const char* name : {"seqlens_kv", "seqlens_new", "cu_seqlens_new", "page_table", "cache_batch_idx",
                             "leftpad_kv", "rotary_offsets"}) {
      tessella_tensor* table = call.table(name);
      if (table == nullptr || random.chance(0.3)) continue;
      const int64_t count = table->shape[0] * (table->ndim == 2 ? table->shape[1] : 1);
      for (int64_t i = 0; i < count; ++i) {
        if (random.chance(0.5)) static_cast<int32_t*>(table->data)[i] = hostile(random);
      }
    }
    call.remember();
    ASSERT_EQ(run_steps(arguments, cuda::append_recipe, seed), "") << to_string(c);
    ASSERT_EQ(call.check_bounds(), "") << to_string(c);
  }
}

TEST(EmulatedCopyPages, RandomCases) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    const CopyPagesCase c = random_copy_pages("", seed);
    CopyPagesCall call(c);
    call.remember();
    ASSERT_EQ(run_steps(read(call), cuda::copy_pages_recipe, seed), "") << to_string(c);
    finish(call);
    ASSERT_EQ(call.check(), "");
  }
}

TEST(EmulatedCopyPages, HostilePairs) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CopyPagesCase c = random_copy_pages("", seed);
    c.guard = seed % 2 == 0;
    CopyPagesCall call(c);
    const core::CopyPagesArguments arguments = read(call);
    Random random(seed);
    for (int64_t i = 0; i < 2 * c.num_pairs; ++i) {
      if (random.chance(0.5)) call.pairs()[i] = hostile(random);
    }
    call.remember();
    ASSERT_EQ(run_steps(arguments, cuda::copy_pages_recipe, seed), "") << to_string(c);
    ASSERT_EQ(call.check_bounds(), "") << to_string(c);
  }
}

}  // namespace
}  // namespace tessella::tests
