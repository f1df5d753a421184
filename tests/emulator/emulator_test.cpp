// The emulator shows what is wrong with a kernel: a wait for nothing, a missing wait, an arrival too many, a register
// or shared memory written too early, a missing fence. And what of the device code no call of a test reaches.
#include "builtins.hpp"
// builtins.hpp comes first: device code is written in its words.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <vector>

#include "cuda/device/ptx/barrier.cuh"
#include "cuda/device/ptx/global.cuh"
#include "cuda/device/ptx/shared.cuh"
#include "cuda/device/ptx/tensor_copy.cuh"
#include "cuda/device/ptx/wgmma.cuh"
#include "cuda/device/score/softmax.cuh"
#include "cuda/device/tile/operand.cuh"

namespace tessella::emulator {
namespace {

constexpr uint32_t kBarrier = 1024, kData = 2048;

// Also where exponents were taken against zero, and where the sink is too small for fp32.
TEST(Softmax, ARowWithoutAKeyIsItsSinkAlone) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  for (const float max : {kNone, 0.0f}) {
    EXPECT_EQ(device::finish(max, 0, 1, false, 0).lse, kNone);
    EXPECT_EQ(device::finish(max, 0, 1, true, kNone).lse, kNone);
    for (const float sink : {1e4f, -1.0f, -1e4f}) {
      const device::RowResult row = device::finish(max, 0, 1, true, sink);
      EXPECT_EQ(row.factor, 0);
      EXPECT_EQ(row.lse, sink);
    }
  }
}

TEST(Emulator, VotesAndShufflesWithinWarps) {
  std::vector<int> sums(64);
  launch({1, 1, 1}, 64, 0, 1, [&] {
    int sum = static_cast<int>(threadIdx.x);
    for (int with = 16; with > 0; with /= 2) sum += __shfl_xor_sync(~0u, sum, with);
    sums[threadIdx.x] = __any_sync(~0u, threadIdx.x == 40) ? -sum : sum;
  });
  for (unsigned i = 0; i < 64; ++i) EXPECT_EQ(sums[i], i < 32 ? 496 : -(496 + 32 * 32));
}

// Any cluster may be the last.
TEST(Emulator, ClustersRunInAnOrderOfTheSeed) {
  std::vector<bool> was_last(4, false);
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::vector<unsigned> blocks;
    launch(
        {4, 2, 1}, 1, 0, seed, [&] { blocks.push_back(blockIdx.y * 4 + blockIdx.x); }, 2);
    ASSERT_EQ(blocks.size(), 8u);
    was_last[blocks.back() / 2] = true;
  }
  EXPECT_EQ(was_last, std::vector<bool>(4, true));
}

TEST(Emulator, AWaitForNothingIsADeadlock) {
  const auto run = [](bool is_missing) {
    launch({1, 1, 1}, 32, 64, 1, [&] {
      if (threadIdx.x == 0) init_barrier(kBarrier, 2);
      __syncthreads();
      if (threadIdx.x < (is_missing ? 1 : 2)) arrive(kBarrier, 0);
      wait(kBarrier, 0);
    });
  };
  EXPECT_NO_THROW(run(false));
  EXPECT_THROW(run(true), Deadlock);
}

TEST(Emulator, TheKernelBeforeEndsBehindAWaitForIt) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    int written = 0;
    emulator::set_kernel_before([&] { ++written; });
    emulator::launch({2, 1, 1}, 64, 0, seed, [&] {
      emulator::wait_for_kernel_before();
      EXPECT_EQ(written, 1);
    });
    EXPECT_EQ(written, 1);
  }
}

TEST(Emulator, AnArrivalTooManyIsAnError) {
  const auto run = [](unsigned arrivals) {
    launch({1, 1, 1}, 32, 64, 1, [&] {
      if (threadIdx.x == 0) init_barrier(kBarrier, 1);
      __syncthreads();
      if (threadIdx.x == 0) arrive(kBarrier, 16);  // the phase waits for bytes
      if (threadIdx.x == 0 && arrivals > 1) arrive(kBarrier, 0);
      if (threadIdx.x == 0) complete_bytes(kBarrier, 16);
    });
  };
  EXPECT_NO_THROW(run(1));
  EXPECT_THROW(run(2), std::logic_error);
}

// The second warp waits for the second phase, whose parity tells it from the first one and not from none. It may know
// of the first by a wait of its own, or by a meeting with those who waited.
TEST(Emulator, AWaitThatSkipsAPhaseIsAnError) {
  enum class Knows { nothing, by_its_wait, by_a_meeting };
  const auto run = [](Knows knows, uint64_t seed) {
    bool have_ended = false;
    launch({1, 1, 1}, 64, 64, seed, [&] {
      if (threadIdx.x == 0) init_barrier(kBarrier, 1);
      __syncthreads();
      if (threadIdx.x == 0) arrive(kBarrier, 0);
      if (threadIdx.x < 32 || knows == Knows::by_its_wait) wait(kBarrier, 0);
      if (knows != Knows::nothing) __syncthreads();
      if (threadIdx.x == 0) {
        arrive(kBarrier, 0);
        have_ended = true;
      }
      if (threadIdx.x >= 32) wait_until([&] { return have_ended; });
      wait(kBarrier, 1);
    });
  };
  for (uint64_t seed = 0; seed < 32; ++seed) {
    EXPECT_NO_THROW(run(Knows::by_its_wait, seed));
    EXPECT_NO_THROW(run(Knows::by_a_meeting, seed));
    EXPECT_THROW(run(Knows::nothing, seed), std::logic_error);
  }
}

// A copy that nobody waits for has landed in some orders and not in others.
TEST(Emulator, AMissingWaitIsSeen) {
  const auto wrong = [](bool waits) {
    const uint32_t source[4] = {1, 2, 3, 4};
    int count = 0;
    for (uint64_t seed = 0; seed < 32; ++seed) {
      launch({1, 1, 1}, 32, 4096, seed, [&] {
        if (threadIdx.x != 0) return;
        device::ptx::copy_chunk_async(kData, source, true);
        device::ptx::commit_copies();
        if (waits) device::ptx::wait_copies<0>();
        if (device::ptx::load_word(kData) != 1) ++count;
      });
    }
    return count;
  };
  EXPECT_EQ(wrong(true), 0);
  EXPECT_GT(wrong(false), 0);
}

TEST(Emulator, AWarpgroupThatPartsIsAnError) {
  const auto run = [](bool parts) {
    launch({1, 1, 1}, 256, 0, 1, [&] {
      float products[1][4];
      device::ptx::fence_registers();
      device::ptx::commit_products();
      if (parts && threadIdx.x == 200) {
        device::ptx::wait_products<0>(products);
      } else {
        device::ptx::wait_products<0>(products);
      }
      if (threadIdx.x < 128) device::ptx::fence_registers();
    });
  };
  EXPECT_NO_THROW(run(false));
  EXPECT_THROW(run(true), std::logic_error);
}

// A block that the others of its cluster still arrive at.
TEST(Emulator, ABlockThatEndsTooEarlyIsAnError) {
  const auto run = [](bool stays) {
    for (uint64_t seed = 0; seed < 32; ++seed) {
      launch(
          {4, 1, 1}, 32, 64, seed,
          [&] {
            const unsigned block = block_in_cluster();
            EXPECT_EQ(block, blockIdx.x % 2);
            const uint32_t barrier = device::ptx::shared_address(device::ptx::dynamic_shared());
            if (threadIdx.x == 0) init_barrier(barrier, 1);
            sync_cluster();
            if (threadIdx.x == 0) arrive(address_in(1 - block, barrier), 0);
            if (stays) wait(barrier, 0);
          },
          2);
    }
  };
  EXPECT_NO_THROW(run(true));
  EXPECT_THROW(run(false), std::logic_error);
}

// The matrix unit would read another address of the shared memory, or the operand's elements in another order.
TEST(Emulator, ADescriptorThatNoKernelMakesIsAnError) {
  const auto run = [](uint64_t more) {
    launch({1, 1, 1}, 128, 16384, 1, [&] {
      float products[8][4];
      const uint64_t operand = device::Operand(kData).at(0) + more;
      device::ptx::fence_registers();
      device::ptx::WarpgroupMma<portable::Element::bf16, 64>::with_shared(products, operand, operand, false);
      device::ptx::commit_products();
      device::ptx::wait_products<0>(products);
    });
  };
  EXPECT_NO_THROW(run(0));
  EXPECT_THROW(run(uint64_t{2} << 62), std::invalid_argument) << "swizzled otherwise";
  EXPECT_THROW(run(1 << 14), std::invalid_argument) << "an address too large";
}

// Registers of A are the product's until it is there. Groups before the latest may be waited for alone.
TEST(Emulator, AnOperandWrittenTooEarlyIsAnError) {
  const auto run = [](int written) {
    launch({1, 1, 1}, 128, 16384, 1, [&] {
      float products[8][4] = {};
      uint32_t operands[2][4] = {};
      device::ptx::fence_registers();
      for (const auto& operand : operands) {
        device::ptx::WarpgroupMma<portable::Element::bf16, 64>::with_registers<device::ptx::Contiguous::columns>(
            products, operand, device::Operand(kData).at(0), true);
        device::ptx::commit_products();
      }
      device::ptx::wait_products<1>(products);
      operands[written][0] = 1;
      device::ptx::wait_products<0>(products);
    });
  };
  EXPECT_NO_THROW(run(0));
  EXPECT_THROW(run(1), std::logic_error);
}

using Mma = device::ptx::WarpgroupMma<portable::Element::bf16, 64>;

// Of the 64 x 64 panel at kPanel, which is also what the copies below write and read.
constexpr uint32_t kPanel = 2048;
void multiply_panel(float (&products)[8][4]) {
  const uint64_t operand = device::Operand(kPanel).at(0);
  device::ptx::fence_registers();
  Mma::with_shared(products, operand, operand, false);
  device::ptx::commit_products();
}

// Eight rows of 64 elements in global memory, a box.
struct Box {
  std::vector<uint16_t> elements = std::vector<uint16_t>(8 * 64);
  portable::TensorMap map{};
  Box() {
    const Tensor tensor = {reinterpret_cast<std::byte*>(elements.data()), 2, {64, 8, 1, 1}, 64, 512, 512, 8};
    std::memcpy(&map, &tensor, sizeof tensor);
  }
};

enum class Fence { none, of_another, own };

// Thread 5 stores, all meet, and the matrix unit or the copy engine goes over it.
void store_and_meet(Fence fence) {
  if (threadIdx.x == 5) device::ptx::store_word(kPanel + 4, 7);
  if (fence == Fence::own ? threadIdx.x == 5 : fence == Fence::of_another && threadIdx.x != 5) {
    device::ptx::fence_async();
  }
  __syncthreads();
}

TEST(Emulator, AProductOfWhatIsNotFencedIsAnError) {
  const auto run = [](Fence fence) {
    launch({1, 1, 1}, 128, 16384, 1, [&] {
      store_and_meet(fence);
      float products[8][4];
      multiply_panel(products);
      device::ptx::wait_products<0>(products);
    });
  };
  EXPECT_NO_THROW(run(Fence::own));
  EXPECT_THROW(run(Fence::none), std::logic_error);
  EXPECT_THROW(run(Fence::of_another), std::logic_error);
}

TEST(Emulator, ACopyOverWhatIsNotFencedIsAnError) {
  const auto run = [](bool stores, Fence fence) {
    Box box;
    launch({1, 1, 1}, 32, 16384, 1, [&] {
      store_and_meet(fence);
      if (threadIdx.x != 0) return;
      if (stores) {
        device::ptx::store_box(box.map, kPanel, 0, 0, 0, 0);
        device::ptx::commit_boxes();
        device::ptx::wait_boxes();
      } else {
        init_barrier(kBarrier, 1);
        device::ptx::arrive_expecting(kBarrier, 1024);
        device::ptx::copy_box(kPanel, box.map, kBarrier, 0, 0, 0, 0);
        device::ptx::wait(kBarrier, 0);
        EXPECT_EQ(device::ptx::load_word(kPanel + 4), 0u);
      }
    });
    EXPECT_EQ(box.elements[2], stores ? 7 : 0);
  };
  for (const bool stores : {true, false}) {
    EXPECT_NO_THROW(run(stores, Fence::own));
    EXPECT_THROW(run(stores, Fence::none), std::logic_error);
    EXPECT_THROW(run(stores, Fence::of_another), std::logic_error);
  }
}

// Boxes of 128 bytes a row, of elements of every size. Loads fill what lies outside of the tensor with zeros.
TEST(Emulator, CopiesMoveElementsOfAnySize) {
  for (const int64_t bytes : {1, 2, 4}) {
    const int64_t columns = 128 / bytes * 3 / 2, rows = 5;  // one box and half of another
    std::vector<std::byte> from(static_cast<size_t>(columns * rows * bytes)), into(from.size());
    for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i % 251 + 1);
    const auto map_of = [&](std::vector<std::byte>& memory) {
      const Tensor tensor = {memory.data(), bytes, {columns, rows, 1, 1}, columns, columns * rows, columns * rows, 8};
      portable::TensorMap map{};
      std::memcpy(&map, &tensor, sizeof tensor);
      return map;
    };
    const portable::TensorMap source = map_of(from), target = map_of(into);
    launch({1, 1, 1}, 1, 16384, 1, [&] {
      init_barrier(kBarrier, 1);
      for (int box = 0; box < 2; ++box) {
        const auto column = static_cast<int32_t>(box * 128 / bytes);
        device::ptx::arrive_expecting(kBarrier, 1024);
        device::ptx::copy_box(kPanel, source, kBarrier, column, 0, 0, 0);
        device::ptx::wait(kBarrier, static_cast<uint32_t>(box));
        for (uint32_t at = kPanel + 5 * 128; at < kPanel + 1024; at += 4) EXPECT_EQ(device::ptx::load_word(at), 0u);
        device::ptx::store_box(target, kPanel, column, 0, 0, 0);
        device::ptx::commit_boxes();
        device::ptx::wait_boxes();
      }
    });
    EXPECT_EQ(into, from) << bytes;
  }
}

// A fence of shared memory does not order what a thread has acquired in global memory.
TEST(Emulator, ACopyToMemoryBehindAnAcquireWantsItsFence) {
  const auto run = [](bool fences) {
    float sums[64] = {};
    const uint32_t turn = 1;
    launch({1, 1, 1}, 1, 16384, 1, [&] {
      for (uint32_t i = 0; i < 256; i += 4) device::ptx::store_word(kPanel + i, 0);
      device::ptx::acquire(&turn, ~0u, 1);
      device::ptx::fence_async();
      if (fences) device::ptx::fence_async_memory(kPanel, 256);
      device::ptx::add_floats(sums, kPanel, 256);
      device::ptx::commit_boxes();
      device::ptx::wait_boxes_written();
    });
  };
  EXPECT_NO_THROW(run(true));
  EXPECT_THROW(run(false), std::logic_error);
}

// Stores of the same bytes are none, and one warpgroup's fence serves what all of them store.
TEST(Emulator, WhatSeveralStoreOneMayFence) {
  EXPECT_NO_THROW(launch({1, 1, 1}, 128, 16384, 1, [] {
    device::ptx::store_word(kPanel, 7);
    if (threadIdx.x == 5) device::ptx::fence_async();
    __syncthreads();
    float products[8][4];
    multiply_panel(products);
    device::ptx::store_word(kPanel, 7);
    device::ptx::wait_products<0>(products);
  }));
}

// Also where the storing warp has its products and another one does not.
TEST(Emulator, AChangeOfWhatAProductReadsIsAnError) {
  const auto run = [](bool waits, bool meets) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      launch({1, 1, 1}, 128, 16384, seed, [&] {
        float products[8][4];
        multiply_panel(products);
        if (waits) device::ptx::wait_products<0>(products);
        if (meets) device::ptx::named_wait(1, 128);
        if (threadIdx.x == 0) device::ptx::store_word(kPanel, 7);
        device::ptx::wait_products<0>(products);
      });
    }
  };
  EXPECT_NO_THROW(run(true, true));
  EXPECT_THROW(run(false, true), std::logic_error);
  EXPECT_THROW(run(true, false), std::logic_error);
}

TEST(Emulator, ACopyOverWhatAProductReadsIsAnError) {
  const auto run = [](bool waits) {
    Box box;
    launch({1, 1, 1}, 128, 16384, 1, [&] {
      float products[8][4];
      multiply_panel(products);
      if (waits) device::ptx::wait_products<0>(products);
      __syncthreads();
      if (threadIdx.x == 0) {
        init_barrier(kBarrier, 1);
        device::ptx::arrive_expecting(kBarrier, 1024);
        device::ptx::copy_box(kPanel, box.map, kBarrier, 0, 0, 0, 0);
      }
      device::ptx::wait_products<0>(products);
      if (threadIdx.x == 0) device::ptx::wait(kBarrier, 0);
    });
  };
  EXPECT_NO_THROW(run(true));
  EXPECT_THROW(run(false), std::logic_error);
}

TEST(Emulator, AChangeOfWhatACopyReadsIsAnError) {
  const auto run = [](bool waits) {
    Box box;
    launch({1, 1, 1}, 1, 16384, 1, [&] {
      device::ptx::store_box(box.map, kPanel, 0, 0, 0, 0);
      device::ptx::commit_boxes();
      if (waits) device::ptx::wait_boxes();
      device::ptx::store_word(kPanel, 7);
      device::ptx::wait_boxes();
    });
  };
  EXPECT_NO_THROW(run(true));
  EXPECT_THROW(run(false), std::logic_error);
}

TEST(Emulator, AddressesAreChecked) {
  EXPECT_THROW(launch({1, 1, 1}, 1, 64, 1, [] { device::ptx::load_word(0); }), std::out_of_range);
}

}  // namespace
}  // namespace tessella::emulator
