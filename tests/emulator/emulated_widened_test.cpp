// cuda.forward_widened in the emulator: its own steps, and the other kernel's between them.
#include <gtest/gtest.h>

#include <string>

#include "cases/random.hpp"
#include "cuda/kernels/forward_widened/recipe.hpp"
#include "emulated_run.hpp"

namespace tessella::tests {
namespace {

// max_seqlen of a case: of its plan, whose copies lie further apart.
void expect_right(const Case& c, const Gpu& gpu = {}) {
  Call call(c);
  ASSERT_EQ(run_recipe(call, cuda::forward_widened_recipe, c.max_seqlen, c.seed, Sources::none, gpu), "")
      << to_string(c);
  ASSERT_EQ(call.check(), "") << to_string(c);
}

Case base() {
  return {.dtype = "f8e4m3fn",
          .out_dtype = "bf16",
          .kv_dtype = "f8e4m3fn",
          .kv_scale = "h",
          .q_scale = "h",
          .batch = 2,
          .heads_q = 4,
          .heads_kv = 2,
          .seqlen_q = 70,
          .seqlen_kv = 90,
          .head_dim_qk = 64,
          .head_dim_v = 64,
          .seed = 1};
}

// What is drawn changes nothing that a kernel is compiled for but dtypes.
Case drawn(uint64_t seed) {
  Random random(seed);
  Case c = base();
  c.seed = seed;
  c.dtype = random.chance(0.5) ? "f8e4m3fn" : "f8e5m2";
  draw_float8(random, c);
  if (random.chance(0.5)) c.window_right = 0;
  c.spread = random.chance(0.2) ? 8 : 1;
  c.seqlen_q = random.in(1, 90);
  c.seqlen_kv = random.in(1, 150);
  c.packed_q = random.chance(0.3);
  c.packed_kv = random.chance(c.packed_q ? 0.8 : 0.1);
  c.seqlens_q = random.chance(0.3);
  c.seqlens_kv = random.chance(0.4);
  c.leftpad_kv = random.chance(0.2);
  if (!c.packed_kv && random.chance(0.4)) {
    c.cache_batch_idx = random.chance(0.5);
    if (!c.cache_batch_idx) c.page_size = random.in(1, 20);
  }
  c.transposed_v = c.transposed_v && !c.packed_kv && !c.cache_batch_idx && c.page_size == 0;
  static constexpr const char* kLayouts[] = {"bshd", "bhsd", "gaps", "sliced"};
  c.layout = random.one_of(kLayouts);
  c.shift = random.chance(0.3) ? random.in(1, 20) : 0;
  c.masked_nan = random.chance(0.3);
  c.sink = random.chance(0.2);
  c.max_seqlen = random.chance(0.3) ? 200 : 0;
  c.guard = random.chance(0.5);
  return c;
}

TEST(EmulatedWidened, RandomCases) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    expect_right(drawn(seed));
    if (HasFatalFailure()) return;
  }
}

// Scores that err by more than the thousands which they lie apart, and rows of which dropout leaves 2^-500 and less.
TEST(EmulatedWidened, ErrorsBeyondTheRangeOfDouble) {
  for (
      const char* line :
      {"dtype=f8e5m2 out_dtype=f16 kv_dtype=f8e5m2 q_scale=sh outliers=1 layout=bhsd batch=2 heads_q=2 heads_kv=2 "
       "seqlen_q=30 seqlen_kv=2 head_dim_qk=80 head_dim_v=80 leftpad_kv=1 page_size=3 spread=40 lse=0 seed=57000017511",
       "dtype=f16 amax=1 scale_block=7 layout=bhsd shift=32 seqlen_q=96 seqlen_kv=96 head_dim_qk=64 head_dim_v=64 "
       "seqlens_q=1 seqlens_kv=1 page_size=128 dense=bhqk alibi=h scale=0.7110426979143766 dropout=0.36098240440005436 "
       "spread=40 mean=13.138742563499786 seed=57000002831"}) {
    expect_right(parse(line));
    if (HasFatalFailure()) return;
  }
}

// Rows that are no whole pieces; Hopper's kernel does not read them either.
TEST(EmulatedWidened, OddHeadDims) {
  for (const char* out : {"bf16", "f8e4m3fn"}) {
    Case c = base();
    c.out_dtype = out;
    c.head_dim_qk = 37;
    c.head_dim_v = 21;
    c.out_scale = *out == 'f' ? "bh" : "";
    c.amax = "bh";
    c.scale_block = 7;
    expect_right(c);
  }
}

// 16-bit q on caches of 8 bits.
TEST(EmulatedWidened, Caches) {
  for (const char* cache : {"f8e4m3fn", "i8"}) {
    for (const char* scale : {"1", "h", "bh", "th", "ph"}) {
      for (const int64_t page_size : {0, 16}) {
        Case c = base();
        c.dtype = "bf16";
        c.out_dtype = c.q_scale = "";
        c.kv_dtype = cache;
        c.kv_scale = scale;
        c.page_size = page_size;
        c.cache_batch_idx = page_size == 0;
        c.seqlens_kv = true;
        c.window_right = 0;
        expect_right(c);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Nothing but out of 8 bits, or amax.
TEST(EmulatedWidened, OutAlone) {
  for (const char* out : {"f8e4m3fn", "f8e5m2", "bf16", "f32"}) {
    Case c = base();
    c.dtype = "bf16";
    c.out_dtype = out;
    c.kv_dtype = c.kv_scale = c.q_scale = "";
    c.out_scale = out[0] == 'f' && out[1] == '8' ? "th" : "";
    c.amax = "th";
    c.packed_q = c.packed_kv = true;
    c.seqlens_q = true;
    expect_right(c);
  }
}

// On Hopper out of 8 bits and amax are written behind the kernel that multiplies in 8 bits.
TEST(EmulatedWidened, OutOfHoppersKernel) {
  for (const char* out : {"f8e4m3fn", "f8e5m2", "bf16"}) {
    for (const char* scale : {"h", "bh"}) {
      Case c = base();
      c.out_dtype = out;
      c.kv_scale = c.q_scale = scale;
      c.out_scale = out[0] == 'f' ? scale : "";
      c.amax = *scale == 'h' && out[0] == 'f' ? "" : scale;
      c.packed_q = c.packed_kv = *scale == 'h';
      c.window_right = 0;
      expect_right(c);
    }
  }
}

// No value of a table makes a step read or write outside of the tensors.
TEST(EmulatedWidened, HostileTables) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    Case c = drawn(seed);
    c.guard = true;
    Gpu gpu;
    gpu.hostile_tables = seed;
    Call call(c);
    ASSERT_EQ(run_recipe(call, cuda::forward_widened_recipe, c.max_seqlen, seed, Sources::none, gpu), "")
        << to_string(c);
    ASSERT_EQ(call.spoiled(), "") << to_string(c);
  }
}

}  // namespace
}  // namespace tessella::tests
