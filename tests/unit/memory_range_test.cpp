// Whether two tensors share a byte, against the sets of their bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <string>

#include "core/memory_range.hpp"
#include "core/message.hpp"

namespace tessella::core {
namespace {

using Axes = std::array<MemoryBox::Axis, 4>;
constexpr int64_t kBase = 1 << 20;

MemoryBox box_at(int64_t offset, int64_t run, const Axes& axes) {
  return memory_box(reinterpret_cast<const void*>(kBase + offset), run, axes);
}

std::set<uintptr_t> bytes(const MemoryBox& box) {
  std::set<uintptr_t> found;
  std::array<int64_t, 4> idx{};
  do {
    uintptr_t begin = box.begin;
    for (size_t i = 0; i < 4; ++i) begin += static_cast<uintptr_t>(idx[i] * box.axes[i].stride);
    for (int64_t x = 0; x < box.run; ++x) found.insert(begin + static_cast<uintptr_t>(x));
    size_t axis = 0;
    while (axis < 4 && ++idx[axis] == box.axes[axis].size) idx[axis++] = 0;
    if (axis == 4) break;
  } while (true);
  return found;
}

bool share_a_byte(const MemoryBox& a, const MemoryBox& b) {
  const std::set<uintptr_t> of_a = bytes(a);
  const std::set<uintptr_t> of_b = bytes(b);
  return std::any_of(of_a.begin(), of_a.end(), [&](uintptr_t byte) { return of_b.count(byte) != 0; });
}

std::string string(const MemoryBox& box) {
  std::string found = message(box.begin - kBase, " run ", box.run);
  for (const MemoryBox::Axis& axis : box.axes) found += message(" (", axis.size, ", ", axis.stride, ")");
  return found;
}

class Boxes {
 public:
  int64_t pick(int64_t least, int64_t most) { return std::uniform_int_distribution<int64_t>(least, most)(random_); }

  // Slices of one dense buffer with its axes in any order: what interleaved tensors are. Axes of one element have any
  // stride, as where a library leaves what it had before.
  std::array<MemoryBox, 2> slices() {
    std::array<int64_t, 4> sizes, strides;
    for (int64_t& size : sizes) size = pick(1, 3);
    std::array<size_t, 4> order{0, 1, 2, 3};
    std::shuffle(order.begin(), order.end(), random_);
    const int64_t buffer_run = pick(1, 4);
    int64_t step = buffer_run;
    for (const size_t axis : order) {
      strides[axis] = step;
      step *= sizes[axis] + pick(0, 1);
    }
    std::array<MemoryBox, 2> found;
    for (MemoryBox& box : found) {
      int64_t offset = 0;
      Axes axes;
      for (size_t i = 0; i < 4; ++i) {
        const int64_t first = pick(0, sizes[i] - 1);
        offset += first * strides[i];
        axes[i] = {pick(1, sizes[i] - first), strides[i]};
        if (axes[i].size == 1 && pick(0, 1) == 0) axes[i].stride = pick(0, 100);
      }
      std::shuffle(axes.begin(), axes.end(), random_);
      const int64_t skipped = pick(0, buffer_run - 1);
      box = box_at(offset + skipped, pick(1, buffer_run - skipped), axes);
    }
    return found;
  }

  // Two of any strides: they may fold, repeat and cross.
  std::array<MemoryBox, 2> any() {
    std::array<MemoryBox, 2> found;
    for (MemoryBox& box : found) {
      Axes axes;
      for (MemoryBox::Axis& axis : axes) axis = {pick(1, 3), pick(0, 40)};
      box = box_at(pick(0, 60), pick(1, 4), axes);
    }
    return found;
  }

 private:
  std::mt19937_64 random_{7};
};

TEST(MemoryRange, OverlapIsWhatTheBytesSay) {
  Boxes boxes;
  int64_t apart = 0;
  int64_t woven = 0;  // apart, though their ranges meet
  for (int n = 0; n < 40000; ++n) {
    const auto [a, b] = n % 2 == 0 ? boxes.slices() : boxes.any();
    const bool expected = share_a_byte(a, b);
    ASSERT_EQ(overlap(a, b), expected) << string(a) << " and " << string(b);
    ASSERT_EQ(overlap(b, a), expected) << string(b) << " and " << string(a);
    if (!expected) ++apart;
    if (!expected && a.begin < b.end && b.begin < a.end) ++woven;
  }
  EXPECT_GT(woven, 2000);
  EXPECT_LT(apart, 39000);
}

TEST(MemoryRange, EmptyBoxesMeetNothing) {
  const MemoryBox one = box_at(0, 8, {{{2, 8}, {}, {}, {}}});
  EXPECT_TRUE(overlap(one, one));
  EXPECT_FALSE(overlap(one, box_at(0, 8, {{{0, 8}, {}, {}, {}}})));
  EXPECT_FALSE(overlap(one, box_at(0, 0, {})));
  EXPECT_FALSE(overlap(one, memory_box(nullptr, 8)));
}

TEST(MemoryRange, LargeInterleavedTensors) {
  // Two columns of a table of 2^30 rows, and a third across both.
  const MemoryBox first = box_at(0, 4, {{{int64_t{1} << 30, 64}, {}, {}, {}}});
  const MemoryBox second = box_at(4, 4, {{{int64_t{1} << 33, 8}, {}, {}, {}}});
  EXPECT_FALSE(overlap(first, second));
  EXPECT_TRUE(overlap(first, box_at(3, 2, {{{int64_t{1} << 30, 64}, {}, {}, {}}})));
}

// Boxes that are apart, as a sum of these strides is never so far from a multiple of the first; it would take four
// million steps to see.
TEST(MemoryRange, WhatTakesTooLongCountsAsAnOverlap) {
  constexpr int64_t kStride = 1'000'000'000'000;
  const MemoryBox crossed = box_at(0, 1, {{{2000, kStride}, {2000, kStride + 61}, {2000, kStride + 163}, {}}});
  EXPECT_TRUE(overlap(crossed, box_at(3000 * kStride + 500'000'000, 1, {})));
  EXPECT_FALSE(overlap(crossed, box_at(500'000'000, 1, {})));
}

}  // namespace
}  // namespace tessella::core
