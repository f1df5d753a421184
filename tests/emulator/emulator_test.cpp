// The emulator shows what is wrong with a kernel: a wait for nothing, a missing wait, an arrival too many, a register
// written too early. And what of the device code no call of a test reaches.
#include "builtins.hpp"
// builtins.hpp comes first: device code is written in its words.
#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "cuda/device/ptx/barrier.hpp"
#include "cuda/device/ptx/shared.hpp"
#include "cuda/device/ptx/wgmma.hpp"
#include "cuda/device/score/softmax.hpp"
#include "cuda/device/tile/operand.hpp"

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
            const unsigned block = device::ptx::block_in_cluster();
            EXPECT_EQ(block, blockIdx.x % 2);
            const uint32_t barrier = device::ptx::shared_address(device::ptx::dynamic_shared());
            if (threadIdx.x == 0) init_barrier(barrier, 1);
            sync_cluster();
            if (threadIdx.x == 0) device::ptx::arrive_at(1 - block, barrier);
            if (stays) wait(barrier, 0);
          },
          2);
    }
  };
  EXPECT_NO_THROW(run(true));
  EXPECT_THROW(run(false), std::logic_error);
}

// The matrix unit would read some other place of the shared memory, or the operand's elements in another order.
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
  EXPECT_THROW(run(uint64_t{1} << 62), std::invalid_argument) << "swizzled otherwise";
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
      device::ptx::wait_products<1>();
      operands[written][0] = 1;
      device::ptx::wait_products<0>(products);
    });
  };
  EXPECT_NO_THROW(run(0));
  EXPECT_THROW(run(1), std::logic_error);
}

TEST(Emulator, AddressesAreChecked) {
  EXPECT_THROW(launch({1, 1, 1}, 1, 64, 1, [] { device::ptx::load_word(0); }), std::out_of_range);
}

}  // namespace
}  // namespace tessella::emulator
