// cpu.linear_amx's walk over tiles, with stand-ins for the instructions on tile registers: on any machine with AVX-512.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cases/memory.hpp"
#include "core/cancel.hpp"
#include "core/message.hpp"
#include "core/plan.hpp"
#include "cpu/amx/target-inl.hpp"
#include "cpu/memory.hpp"
#include "cpu/parallel.hpp"
#include "cpu/vector/linear_vector.hpp"
#include "operations/linear/arguments.hpp"
#include "portable/float16.hpp"
#include "reference/linear.hpp"

#if defined(__x86_64__) && defined(__linux__)

#include <immintrin.h>

namespace tessella {
namespace {

struct Tile {
  alignas(64) std::array<std::byte, 1024> bytes;
};
thread_local std::array<Tile, 8> t_tiles;
std::atomic<int> configured{0};
int32_t* flag_of_first_sum = nullptr;  // a cancel flag that the first tile of sums sets

struct EmulatedTiles {
  struct Scope {
    Scope() { ++configured; }
    ~Scope() { --configured; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
  };
  template <int kTile>
  static void zero() {
    t_tiles[kTile].bytes.fill(std::byte{0});
    if (flag_of_first_sum != nullptr) __atomic_store_n(flag_of_first_sum, 1, __ATOMIC_RELAXED);
  }
  template <int kTile>
  static void load(const void* rows, int64_t stride_bytes) {
    for (int i = 0; i < 16; ++i) {
      std::memcpy(&t_tiles[kTile].bytes[static_cast<size_t>(64 * i)],
                  static_cast<const std::byte*>(rows) + i * stride_bytes, 64);
    }
  }
  template <int kTile>
  static void store(void* rows, int64_t stride_bytes) {
    for (int i = 0; i < 16; ++i) {
      std::memcpy(static_cast<std::byte*>(rows) + i * stride_bytes, &t_tiles[kTile].bytes[static_cast<size_t>(64 * i)],
                  64);
    }
  }
  // TDPBF16PS: C[m][n] += sum over pairs p of A[m][2p] B[p][2n] + A[m][2p + 1] B[p][2n + 1].
  template <int kC, int kA, int kB>
  static void dot() {
    float c[16][16];
    uint16_t a[16][32], b[16][32];
    std::memcpy(c, t_tiles[kC].bytes.data(), sizeof c);
    std::memcpy(a, t_tiles[kA].bytes.data(), sizeof a);
    std::memcpy(b, t_tiles[kB].bytes.data(), sizeof b);
    const auto value = [](uint16_t bits) { return portable::to_float(portable::BFloat16{bits}); };
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 16; ++n) {
        for (int k = 0; k < 32; ++k) c[m][n] += value(a[m][k]) * value(b[k / 2][2 * n + k % 2]);
      }
    }
    std::memcpy(t_tiles[kC].bytes.data(), c, sizeof c);
  }
};

}  // namespace
}  // namespace tessella

TESSELLA_AMX_BEGIN

#include "cpu/amx/linear-inl.hpp"

namespace tessella {
namespace {

void run_emulated(const core::LinearArguments& a, int num_threads, void* memory) {
  cpu::amx::run_linear_tiles<EmulatedTiles>(a, num_threads, memory);
}

int64_t workspace_bytes(const core::LinearShape& shape, int num_threads) {
  return cpu::amx::LinearTiles(shape, nullptr).bytes + num_threads * cpu::amx::LinearTileScratch(nullptr).bytes;
}

}  // namespace
}  // namespace tessella

TESSELLA_AMX_END

namespace tessella {
namespace {

using core::DType;

struct Sizes {
  int64_t rows, in_features, out_features;
  bool is_swiglu = false;
  int64_t gap = 0;  // elements behind every row
};

// Matrices that end where an unreadable page begins.
class Call {
 public:
  explicit Call(const Sizes& sizes) {
    a_.rows = sizes.rows;
    a_.in_features = sizes.in_features;
    a_.out_features = sizes.out_features;
    a_.activation = sizes.is_swiglu ? core::Activation::swiglu : core::Activation::none;
    a_.x = matrix(x_, sizes.rows, sizes.in_features, sizes.gap);
    a_.w = matrix(w_, a_.weight_rows(), sizes.in_features, sizes.gap);
    a_.residual = matrix(residual_, sizes.rows, sizes.out_features, 0);
    a_.out = matrix(out_, sizes.rows, sizes.out_features, 0);
    a_.derive_shape();
  }
  core::LinearArguments& arguments() { return a_; }
  // Elements of out.
  std::vector<uint16_t> run(int num_threads) {
    const std::span<uint16_t> out = elements(out_);
    std::ranges::fill(out, uint16_t{0x7FC0});
    std::vector<std::byte> memory(static_cast<size_t>(workspace_bytes(a_, num_threads)) + 64, std::byte{0xFF});
    void* base = memory.data();
    size_t room = memory.size();
    run_emulated(a_, num_threads, std::align(64, room - 64, base, room));
    EXPECT_EQ(configured, 0);
    return {out.begin(), out.end()};
  }
  std::string wrong() const {
    const auto report = reference::check_linear(a_, 0, 1);
    return report.passed ? ""
                         : core::message("out at (", report.worst_index[1], ", ", report.worst_index[3], ") is ",
                                         report.worst_got, ", expected ", report.worst_expected);
  }

 private:
  static std::span<uint16_t> elements(tests::Memory& memory) {
    return {reinterpret_cast<uint16_t*>(memory.data()), memory.size() / sizeof(uint16_t)};
  }
  core::Operand matrix(tests::Memory& to, int64_t rows, int64_t columns, int64_t gap) {
    std::normal_distribution<float> normal;
    const int64_t count = rows * (columns + gap) - (rows > 0 ? gap : 0);
    to = tests::Memory(static_cast<size_t>(count) * sizeof(uint16_t), tests::Placement::guarded);
    for (uint16_t& element : elements(to)) element = portable::to_bfloat16(normal(engine_) / 8).bits;
    return {to.data(), DType::bf16, 0, columns + gap, 0};
  }

  std::mt19937 engine_{1};
  tests::Memory x_, w_, residual_, out_;
  core::LinearArguments a_;
};

class LinearTiles : public testing::Test {
 protected:
  void SetUp() override {
    const std::string reason = cpu::vector_unavailable(cpu::InstructionSet::avx512);
    if (!reason.empty()) GTEST_SKIP() << reason;
  }
};

TEST_F(LinearTiles, AnySize) {
  for (const Sizes sizes : {Sizes{1, 32, 16},
                            {5, 64, 32},
                            {16, 100, 48},
                            {17, 31, 33},
                            {33, 1, 100},
                            {64, 640, 70},
                            {70, 96, 16, true},
                            {130, 65, 23, true},
                            {9, 200, 8, true, 5},
                            {40, 32, 17, false, 3},
                            {3, 40, 9},
                            {20, 64, 3, true},
                            {0, 32, 16}}) {
    Call call(sizes);
    call.run(2);
    EXPECT_EQ(call.wrong(), "") << sizes.rows << " " << sizes.in_features << " " << sizes.out_features;
  }
}

TEST_F(LinearTiles, BitsDependOnTheRowAlone) {
  const Sizes sizes{70, 330, 90, true};
  Call all(sizes);
  const std::vector<uint16_t> expected = all.run(1);
  EXPECT_EQ(all.run(3), expected);
  for (const int64_t rows : {1, 2, 16, 17, 33, 64}) {
    all.arguments().rows = rows;
    const std::vector<uint16_t> got = all.run(2);
    ASSERT_TRUE(std::equal(got.begin(), got.begin() + rows * sizes.out_features, expected.begin())) << rows;
  }
}

TEST_F(LinearTiles, ACancelledCallLeavesNoTilesConfigured) {
  Call call({8, 64, 500});
  int32_t flag = 0;
  flag_of_first_sum = &flag;
  call.arguments().cancel = &flag;
  EXPECT_THROW(call.run(2), core::Cancelled);
  flag_of_first_sum = nullptr;
  EXPECT_EQ(configured, 0);
}

}  // namespace
}  // namespace tessella

#endif
