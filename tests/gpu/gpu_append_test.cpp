// append and copy_pages with hostile tables on a GPU: nothing but elements of what is written changes.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "cases/append_call.hpp"
#include "cases/copy_pages_call.hpp"
#include "cases/kernels.hpp"
#include "cases/random.hpp"

namespace tessella::tests {
namespace {

bool has_kernel(const std::string& operation, std::string& name, std::string& problem) {
  for (const KernelInfo& kernel : kernels_of(operation)) {
    if (!kernel.is_on_gpu()) continue;
    name = kernel.name;
    problem = kernel.unavailable;
    return problem.empty();
  }
  problem = "this build has no CUDA backend";
  return false;
}

int32_t hostile(Random& random) {
  const int32_t values[] = {std::numeric_limits<int32_t>::min(), -1000, -1, 0, 1, 3, 17, 40, 1000,
                            std::numeric_limits<int32_t>::max()};
  return random.chance(0.2) ? static_cast<int32_t>(random.bits()) : random.one_of(values);
}

TEST(GpuAppend, HostileTables) {
  std::string kernel, problem;
  if (!has_kernel("append", kernel, problem)) GTEST_SKIP() << problem;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    AppendCase c = random_append(kernel, "f32 bf16", seed);
    c.guard = seed % 2 == 0;
    AppendCall call(c);
    Random random(seed);
    for (const char* name : {"seqlens_kv", "seqlens_new", "cu_seqlens_new", "page_table", "cache_batch_idx",
                             "leftpad_kv", "rotary_offsets"}) {
      const tessella_tensor* table = call.table(name);
      if (table == nullptr) continue;
      const int64_t count = table->shape[0] * (table->ndim == 2 ? table->shape[1] : 1);
      for (int64_t i = 0; i < count; ++i) {
        if (random.chance(0.5)) static_cast<int32_t*>(table->data)[i] = hostile(random);
      }
    }
    ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
    ASSERT_EQ(call.check_bounds(), "") << to_string(c);
  }
}

// The same tables, had they been read.
TEST(GpuAppend, ChecksValuesOnDemand) {
  std::string kernel, problem;
  if (!has_kernel("append", kernel, problem)) GTEST_SKIP() << problem;
  AppendCall call({.kernel = kernel, .page_size = 4});
  call.options().check_device_values = 1;
  ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
  static_cast<int32_t*>(call.table("seqlens_kv")->data)[1] = 1000;
  EXPECT_EQ(call.run(), TESSELLA_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tessella_last_error()).find("seqlens_kv[1] is 1000"), std::string::npos);
}

TEST(GpuCopyPages, HostilePairs) {
  std::string kernel, problem;
  if (!has_kernel("copy_pages", kernel, problem)) GTEST_SKIP() << problem;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    CopyPagesCase c = random_copy_pages(kernel, seed);
    c.guard = seed % 2 == 0;
    CopyPagesCall call(c);
    Random random(seed);
    for (int64_t i = 0; i < 2 * c.num_pairs; ++i) {
      if (random.chance(0.5)) call.pairs()[i] = hostile(random);
    }
    ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
    ASSERT_EQ(call.check_bounds(), "") << to_string(c);
  }
}

}  // namespace
}  // namespace tessella::tests
