// merge on every kernel of the library against the reference, and the reference against attention over all keys.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cases/kernels.hpp"
#include "cases/merge_call.hpp"
#include "cases/random.hpp"
#include "cases/tensor_places.hpp"
#include "tessella/attention.hpp"
#include "tessella/merge.hpp"

namespace ts = tessella;

namespace tessella::tests {
namespace {

constexpr float kNoKeys = -std::numeric_limits<float>::infinity();

class Merge : public EachKernel {
 protected:
  MergeCase base() const {
    return {.kernel = GetParam().name, .num_states = 3, .batch = 2, .seqlen = 9, .heads = 3, .head_dim = 64};
  }
  static std::string run(const MergeCase& c) {
    MergeCall call(c);
    if (call.run() != TESSELLA_OK) return to_string(c) + ": " + tessella_last_error();
    return call.check();
  }
};

TEST_P(Merge, RandomCases) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    ASSERT_EQ(run(random_merge(GetParam().name, GetParam().dtypes, seed)), "") << "seed " << seed;
  }
}

TEST_P(Merge, AnyNumberOfStates) {
  for (int32_t states = 1; states <= 70; ++states) {
    MergeCase c = base();
    c.num_states = states;
    c.seed = static_cast<uint64_t>(states);
    ASSERT_EQ(run(c), "") << states;
  }
}

TEST_P(Merge, HeadDims) {
  for (int64_t head_dim = 1; head_dim <= 140; ++head_dim) {
    MergeCase c = base();
    c.head_dim = head_dim;
    c.dtype = c.out_dtype = GetParam().computes("bf16") ? TESSELLA_BF16 : TESSELLA_F32;
    c.guard = head_dim % 2 == 0;
    ASSERT_EQ(run(c), "") << head_dim;
  }
}

// A row for each of many threads' pieces of work.
TEST_P(Merge, ManyRows) {
  MergeCase c = base();
  c.seqlen = 1111;
  c.heads = 5;
  ASSERT_EQ(run(c), "");
}

TEST_P(Merge, AStateAloneIsCopied) {
  for (const int32_t states : {1, 5, 40}) {
    MergeCase c = base();
    c.num_states = states;
    c.empty = 0;
    MergeCall call(c);
    const int32_t alone = states / 2;
    for (int32_t i = 0; i < states; ++i) {
      for (int64_t b = 0; b < c.batch; ++b) {
        for (int64_t row = 0; row < c.seqlen; ++row) {
          for (int64_t head = 0; head < c.heads; ++head) {
            const float minus_zero = -0.0F;
            if (i == alone) {
              std::memcpy(call.at(i, b, row, head, 5), &minus_zero, sizeof minus_zero);
            } else {
              std::memcpy(call.at(i, b, row, head, -1), &kNoKeys, sizeof kNoKeys);
            }
          }
        }
      }
    }
    ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
    for (int64_t row = 0; row < c.seqlen; ++row) {
      for (int64_t head = 0; head < c.heads; ++head) {
        ASSERT_EQ(std::memcmp(call.at(-1, 1, row, head, 0), call.at(alone, 1, row, head, 0), 64 * sizeof(float)), 0);
        ASSERT_EQ(std::memcmp(call.at(-1, 1, row, head, -1), call.at(alone, 1, row, head, -1), sizeof(float)), 0);
      }
    }
  }
}

TEST_P(Merge, NoKeysAtAll) {
  MergeCase c = base();
  c.empty = 1;
  ASSERT_EQ(run(c), "");
  MergeCall call(c);
  ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
  float value;
  std::memcpy(&value, call.at(-1, 1, 3, 2, 7), sizeof value);
  EXPECT_EQ(value, 0.0F);
  std::memcpy(&value, call.at(-1, 1, 3, 2, -1), sizeof value);
  EXPECT_EQ(value, kNoKeys);
}

// Large lses: the maximum is taken off. +inf and NaN give NaN, and in their row alone.
TEST_P(Merge, ExtremeLses) {
  for (const float extreme : {3e38F, -3e38F, 700.0F, -700.0F}) {
    MergeCase c = base();
    c.empty = 0;
    MergeCall call(c);
    std::memcpy(call.at(1, 1, 2, 1, -1), &extreme, sizeof extreme);
    ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
    ASSERT_EQ(call.check(), "") << extreme;
  }
  for (const float extreme : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (const int32_t state : {0, 2}) {
      MergeCase c = base();
      c.empty = 0;
      MergeCall call(c);
      std::memcpy(call.at(state, 1, 2, 1, -1), &extreme, sizeof extreme);
      ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
      ASSERT_EQ(call.check(), "") << extreme;
      float value;
      std::memcpy(&value, call.at(-1, 1, 2, 1, -1), sizeof value);
      EXPECT_TRUE(std::isnan(value));
      std::memcpy(&value, call.at(-1, 1, 2, 1, 63), sizeof value);
      EXPECT_TRUE(std::isnan(value));
    }
  }
}

TEST_P(Merge, NaNBesideNoKeys) {
  MergeCase c = base();
  c.empty = 1;
  MergeCall call(c);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(call.at(1, 0, 0, 0, -1), &nan, sizeof nan);
  ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
  ASSERT_EQ(call.check(), "");
}

// The same bits for any number of threads, through plans and plain calls, in place and not.
TEST_P(Merge, BitsDependOnTheRowAlone) {
  MergeCase c = base();
  c.seqlen = 300;
  c.num_states = 35;
  c.num_threads = 1;
  MergeCall first(c);
  ASSERT_EQ(first.run(), TESSELLA_OK) << tessella_last_error();
  for (const bool plan : {false, true}) {
    for (const bool in_place : {false, true}) {
      for (const int32_t threads : {1, 2, 3, 0}) {
        c.plan = plan;
        c.in_place = in_place;
        c.num_threads = threads;
        MergeCall again(c);
        ASSERT_EQ(again.run(), TESSELLA_OK) << tessella_last_error();
        ASSERT_EQ(again.results(), first.results()) << to_string(c);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, Merge, testing::ValuesIn(kernels_of("merge")), kernel_test_name);

// What merge is for: keys in pieces, forward over each, merged, is forward over all keys.
struct Attention {
  static constexpr int64_t kQueries = 21, kKeys = 77, kHeads = 4, kHeadsKv = 2, kDim = 40;
  std::vector<double> q, k, v;
  Attention() {
    Random random(5);
    for (auto [values, size] :
         {std::pair{&q, kQueries * kHeads}, std::pair{&k, kKeys * kHeadsKv}, {&v, kKeys * kHeadsKv}}) {
      values->resize(static_cast<size_t>(size * kDim));
      for (double& value : *values) value = random.normal();
    }
  }
  struct Result {
    std::vector<double> out = std::vector<double>(static_cast<size_t>(kQueries * kHeads * kDim));
    std::vector<double> lse = std::vector<double>(static_cast<size_t>(kQueries * kHeads));
    ts::State state() {
      return {ts::view(out.data(), ts::f64, {kQueries, kHeads, kDim}),
              ts::view(lse.data(), ts::f64, {kHeads, kQueries})};
    }
  };
  Result over(int64_t begin, int64_t end) {
    Result result;
    const ts::State state = result.state();
    ts::forward({.q = ts::view(q.data(), ts::f64, {kQueries, kHeads, kDim}),
                 .k = ts::view(k.data() + begin * kHeadsKv * kDim, ts::f64, {end - begin, kHeadsKv, kDim}),
                 .v = ts::view(v.data() + begin * kHeadsKv * kDim, ts::f64, {end - begin, kHeadsKv, kDim}),
                 .out = state.out,
                 .lse = state.lse});
    return result;
  }
};

TEST(MergeOfPieces, IsAttentionOverAllKeys) {
  Attention attention;
  Attention::Result all = attention.over(0, Attention::kKeys);
  const int64_t cuts[] = {0, 1, 1, 30, 70, Attention::kKeys};  // one piece has no keys
  std::vector<Attention::Result> pieces;
  for (size_t i = 0; i + 1 < std::size(cuts); ++i) pieces.push_back(attention.over(cuts[i], cuts[i + 1]));
  std::vector<ts::State> states;
  for (Attention::Result& piece : pieces) states.push_back(piece.state());
  Attention::Result merged;
  ts::merge(states, merged.state().out, merged.state().lse);
  for (size_t i = 0; i < all.out.size(); ++i) ASSERT_NEAR(merged.out[i], all.out[i], 1e-14) << i;
  for (size_t i = 0; i < all.lse.size(); ++i) ASSERT_NEAR(merged.lse[i], all.lse[i], 1e-13) << i;
  EXPECT_NE(ts::check_merge(states, merged.state().out, merged.state().lse, 0).passed, 0);
}

// A check that passes anything would pass all of the above.
TEST(MergeCheck, FindsWrongElements) {
  MergeCase c{.num_states = 3, .batch = 2, .seqlen = 5, .heads = 2, .head_dim = 64, .empty = 0};
  for (const int64_t dim : {-1, 0, 63}) {
    for (const float change : {1e-4F, std::numeric_limits<float>::quiet_NaN()}) {
      MergeCall call(c);
      ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
      ASSERT_EQ(call.check(), "");
      float value;
      std::memcpy(&value, call.at(-1, 1, 4, 1, dim), sizeof value);
      value += change;
      std::memcpy(call.at(-1, 1, 4, 1, dim), &value, sizeof value);
      EXPECT_NE(call.check(), "") << dim;
    }
  }
}

// The second state's weight is 0 in fp32 and 1e-87 in double: infinity times it is NaN, or infinity.
TEST(MergeCheck, KnowsWhereAStateIsNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> a = {1, 2}, b = {infinity, 3}, lse_a = {0}, lse_b = {-200};
  const auto state = [](std::vector<float>& out, std::vector<float>& lse) {
    return ts::State{ts::view(out.data(), ts::f32, {1, 2}), ts::view(lse.data(), ts::f32, {1})};
  };
  const std::vector<ts::State> states = {state(a, lse_a), state(b, lse_b)};
  std::vector<float> out(2), lse(1);
  const ts::State merged = state(out, lse);
  const auto passes = [&] { return ts::check_merge(states, merged.out, merged.lse, 0).passed == 1; };
  ts::merge(states, merged.out, merged.lse);
  EXPECT_TRUE(passes());
  out[1] = NAN;
  EXPECT_FALSE(passes());
  out[1] = 2;
  lse_b[0] = -infinity;  // it counts for nothing
  EXPECT_FALSE(passes());
  ts::merge(states, merged.out, merged.lse);
  EXPECT_EQ(out[0], 1);
  EXPECT_TRUE(passes());
}

TEST(MergeFork, AChildMerges) {
  const MergeCase c{.num_states = 3, .batch = 2, .seqlen = 500, .heads = 4, .head_dim = 128};
  MergeCall call(c);
  ASSERT_EQ(call.run(), TESSELLA_OK) << tessella_last_error();
  const pid_t child = fork();
  if (child == 0) {
    MergeCall again(c);
    const bool same = again.run() == TESSELLA_OK && again.results() == call.results();
    _exit(same ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace tessella::tests
