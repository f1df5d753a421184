// The kernels that the library carries: precompiled programs for their targets, without spills.
#include <gtest/gtest.h>

#include "cuda/compile/embedded_cubins.hpp"
#include "cuda/compile/find_cubin.hpp"
#include "cuda/precompiled_programs.hpp"

namespace {

using namespace tessella::cuda;

class EmbeddedTest : public testing::Test {
 protected:
  void SetUp() override {
    if (embedded_cubins().empty()) GTEST_SKIP() << "this build carries no kernels";
  }
};

// Of every build that carries kernels; releases carry all.
TEST_F(EmbeddedTest, HoldsThoseOfCommonModels) {
  for (const PrecompiledProgram& precompiled : precompiled_programs(Precompiled::common)) {
    for (const Target& target : precompiled.targets) {
      const auto cubin = find_embedded_for(precompiled.program, target);
      ASSERT_NE(cubin, nullptr) << precompiled.program.expression << " " << target.name();
      EXPECT_EQ(cubin->target, target.name());
    }
  }
}

TEST_F(EmbeddedTest, HoldsNothingButPrecompiledProgramsEachOnce) {
  size_t all = 0, common = 0, found = 0;
  for (const PrecompiledProgram& precompiled : precompiled_programs(Precompiled::common)) {
    common += precompiled.targets.size();
  }
  for (const PrecompiledProgram& precompiled : precompiled_programs()) {
    all += precompiled.targets.size();
    for (const Target& target : precompiled.targets) found += find_embedded_for(precompiled.program, target) != nullptr;
  }
  EXPECT_EQ(embedded_cubins().size(), found);
  EXPECT_TRUE(found == common || found == all) << found << " of " << common << " or " << all;
}

TEST_F(EmbeddedTest, NothingSpills) {
  for (const PrecompiledProgram& precompiled : precompiled_programs()) {
    for (const Target& target : precompiled.targets) {
      const auto cubin = find_embedded_for(precompiled.program, target);
      if (target.ptx || cubin == nullptr) continue;
      const Resources& takes = cubin->resources;
      EXPECT_GT(takes.registers, 0) << cubin->log;
      EXPECT_EQ(takes.stack_bytes + takes.spill_store_bytes + takes.spill_load_bytes, 0)
          << precompiled.program.expression << "\n"
          << cubin->log;
      // The assembler's notes C7510 to C7519: it has made matrix instructions wait for each other.
      EXPECT_EQ(cubin->log.find("C751"), std::string::npos) << precompiled.program.expression << "\n" << cubin->log;
    }
  }
}

}  // namespace
