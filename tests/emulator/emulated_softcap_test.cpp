// Softcaps of the GPU's forward kernels on the CPU (emulator.hpp): products that their series serves, and others.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "emulated_case.hpp"

namespace tessella::tests {
namespace {

// The series serves some key tiles of a query tile, all or none; three warpgroups change their rows from query tile to
// query tile.
TEST(EmulatedSm90, Softcaps) {
  for (const double softcap : {0.3, 6.0, 30.0}) {
    for (const double spread : {0.3, 2.0, 20.0}) {
      Case c = base(64, 64);
      c.softcap = softcap;
      c.spread = spread;
      c.seqlen_q = 700;
      c.batch = 1;
      c.window_right = 0;
      expect_right(c);
    }
  }
  // Rows all of whose scores are far below zero; products beyond the series behind tiles that it serves.
  for (const char* dtype : {"bf16", "f16"}) {
    for (const double spread : {2.7, 6.0, 90.0}) {
      for (const int64_t seqlen_kv : {5, 300, 900}) {
        Case c = base(64, 64);
        c.dtype = dtype;
        c.softcap = 400;
        c.spread = spread;
        c.seqlen_kv = seqlen_kv;
        if (seqlen_kv == 300) c.window_left = 6, c.window_right = 0, c.batch = 8;
        expect_right(c);
      }
    }
  }
}

// Tiles of other sizes, and those of long rows.
TEST(EmulatedSm90, SoftcapsOfOtherTiles) {
  const auto run = [](Case c, double spread) {
    c.heads_q = c.batch = 1;
    if (c.softcap == 0) c.softcap = 30;
    c.spread = spread;
    expect_right(c);
  };
  for (const Case& of : {base(128, 128), base_of_long(128)}) {
    for (const double softcap : {0.3, 30.0, 400.0}) {
      for (const double spread : {1.0, 6.0}) {
        Case c = of;
        c.softcap = softcap;
        c.seqlen_kv = 300;
        c.window_right = 0;
        c.scale = -0.2;
        run(c, spread);
      }
    }
    for (const double mean : {-6.0, -25.0}) {  // all scores far below zero
      Case c = of;
      c.mean = mean;
      c.seqlen_kv = 600;
      run(c, 1);
    }
  }
  Case paged = base(64, 64), dropped = base(64, 64);
  paged.page_size = 64;
  dropped.dropout = 0.2;
  for (const Case& of : {base(192, 128), base(192, 192), base(256, 256), base_of_long(256), paged, dropped}) {
    Case c = of;
    c.scale = 0.1;
    c.seqlen_kv = 300;
    run(c, 2.5);
  }
}

// Rows that see no key or a few, keys that nobody sees and may hold anything, several query tiles a block.
TEST(EmulatedSm90, SoftcapsOfSomeKeys) {
  for (const Case& of : {base(128, 128), base_of_long(128)}) {
    for (const std::function<void(Case&)>& change : std::vector<std::function<void(Case&)>>{
             [](Case& c) { c.leftpad_kv = c.masked_nan = true; },
             [](Case& c) { c.window_left = 6, c.window_right = 0; },
             [](Case& c) { c.packed_q = c.packed_kv = true, c.batch = 3, c.window_right = 0; },
             [](Case& c) { c.seqlen_q = 700, c.window_right = 0, c.sink = true; }}) {
      Case c = of;
      c.softcap = 30;
      c.spread = 2.7;
      change(c);
      expect_right(c);
    }
  }
  Case c = base(128, 128);
  c.softcap = 30;
  c.sink = true;
  c.dense = "bhqk";
  expect_right(c);
}

// A row that sees a NaN is NaN, others are not.
TEST(EmulatedSm90, NanUnderASoftcap) {
  for (Case c : {base(128, 128), base_of_long(128)}) {
    constexpr int64_t kAt = 150;
    c.batch = c.heads_q = c.heads_kv = 1;
    c.seqlen_q = c.seqlen_kv = 300;
    c.window_right = 0;
    c.softcap = 30;
    c.lse = false;
    Call call(c);
    const tessella_tensor &k = *call.args().k, &out = *call.args().out;
    static_cast<uint16_t*>(k.data)[kAt * k.strides[1] + 5] = 0x7FC0;
    ASSERT_EQ(run_sm90(call, c, 1), "");
    for (int64_t query = 0; query < c.seqlen_q; ++query) {
      const auto* row = static_cast<const uint16_t*>(out.data) + query * out.strides[1];
      for (int64_t i = 0; i < c.head_dim_v; ++i) {
        EXPECT_EQ((row[i * out.strides[3]] & 0x7FFF) > 0x7F80, query >= kAt) << query << ", " << i;
      }
    }
  }
}

// A query that holds a NaN: the series serves the other rows of its warp, or tanh does. Its row is NaN, others are
// right.
std::string run_with_nan(Case c, const std::function<std::string(Call&)>& run) {
  c.softcap = 30;
  Call call(c);
  const tessella_tensor& q = *call.args().q;
  static_cast<uint16_t*>(q.data)[21 * q.strides[1] + 5] = 0x7FC0;
  if (const std::string message = run(call); !message.empty()) return message;
  const tessella_tensor& out = *call.args().out;
  const auto* row = static_cast<const uint16_t*>(out.data) + 21 * out.strides[1];
  for (int64_t i = 0; i < c.head_dim_v; ++i) {
    if ((row[i * out.strides[3]] & 0x7FFF) <= 0x7F80) return "the query's row is not NaN";
  }
  return call.check();
}

TEST(EmulatedSm90, NanQueryUnderASoftcap) {
  for (Case c : {base(64, 64), base(128, 128)}) {
    for (const double spread : {0.3, 6.0}) {
      c.spread = spread;
      EXPECT_EQ(run_with_nan(c, [&](Call& call) { return run_sm90(call, c, 1); }), "") << spread;
    }
  }
}

TEST(EmulatedSm80, NanQueryUnderASoftcap) {
  for (const double spread : {0.3, 6.0}) {
    Case c = base(32, 32);
    c.spread = spread;
    EXPECT_EQ(run_with_nan(c, [](Call& call) { return run_sm80(call, 1); }), "") << spread;
  }
}

// As Forward.Softcaps of forward_test.cpp.
TEST(EmulatedSm80, Softcaps) {
  for (const char* dtype : {"bf16", "f16"}) {
    for (const double softcap : {0.3, 4.0, 30.0, 400.0, 1e4}) {
      for (const double spread : {0.3, 2.7, 6.0, 90.0}) {
        for (const int64_t seqlen_kv : {1, 37, 150}) {
          Case c = base(32, 32);
          c.dtype = dtype;
          c.seqlen_q = 37;
          c.softcap = softcap;
          c.spread = spread;
          c.seqlen_kv = seqlen_kv;
          c.window_right = seqlen_kv == 150 ? 0 : -1;
          if (seqlen_kv == 37) c.document = true;  // of a few keys, or of one
          EXPECT_EQ(run_sm80(c, 1), "") << "--case \"" << to_string(c) << "\"";
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessella::tests
