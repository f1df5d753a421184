// Wholes and their parts (cases/part.hpp) in the emulator.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "cases/part.hpp"
#include "emulated_case.hpp"

namespace tessella::tests {

// With batch_invariant nothing that stands beside a row decides its bits either.
inline void expect_equal_parts(int64_t head_dim, std::string Case::*left_out, const RunPart& run) {
  Case of = base(head_dim, head_dim);
  of.batch = 1;
  for (const Whole& whole : wholes(of)) {
    if (!(whole.c.*left_out).empty()) continue;  // to compile less
    EXPECT_EQ(check_parts(whole, run), "") << "--case \"" << to_string(whole.c) << "\"";
  }
}

}  // namespace tessella::tests
