// The ladder's kernels on the CPU (emulator.hpp): against the reference, and that a row depends on nothing beside it.
#include "builtins.hpp"
// builtins.hpp comes first: device code is written in its words.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "api/forward.hpp"
#include "cases/call.hpp"
#include "cases/part.hpp"
#include "cuda/device/ladder/flash_1.hpp"
#include "cuda/device/ladder/standard.hpp"
#include "cuda/forward_sm80/config.hpp"
#include "cuda/ladder/config.hpp"
#include "cuda/launch/forward_arguments.hpp"
#include "emulator.hpp"

namespace tessella::tests {
namespace {

using portable::LadderConfig;
using portable::LadderParams;

constexpr LadderConfig config(bool batch_invariant) {
  return {.score = {.element = portable::Element::f32, .batch_invariant = batch_invariant},
          .head_dim_qk = 32,
          .head_dim_v = 32,
          .tile_q = 64,
          .tile_kv = 32,
          .num_warps = 4};
}

template <LadderConfig C>
void run_standard(const LadderParams& params, unsigned blocks, unsigned kv_tiles) {
  const auto launch = [](emulator::Index grid, auto kernel) {
    emulator::launch(grid, C.num_warps * 32, static_cast<size_t>(portable::shared_bytes(C)), 1, kernel);
  };
  launch({blocks, kv_tiles, 1}, [&] { device::standard_scores<C>(params); });
  launch({blocks, 1, 1}, [&] { device::standard_softmax<C>(params); });
  launch({blocks, 1, 1}, [&] { device::standard_output<C>(params); });
}
template <LadderConfig C>
void run_flash_1(const LadderParams& params, unsigned blocks, unsigned) {
  const unsigned heads = blocks / static_cast<unsigned>(params.forward.tiles_q);
  emulator::launch({heads, 1, 1}, C.num_warps * 32, static_cast<size_t>(portable::shared_bytes(C)), 1,
                   [&] { device::flash_1<C>(params); });
}

using Launch = void (*)(const LadderParams& params, unsigned blocks, unsigned kv_tiles);
struct Rung {
  const char* name;
  Launch plain, batch_invariant;
};
class EmulatedLadder : public testing::TestWithParam<Rung> {
 protected:
  static std::string run(Call& call, const Case& c) {
    core::Problem p = api::read_problem(&call.args(), call.options(), "emulated", nullptr);
    p.alignment = 16;
    const LadderConfig of = cuda::ladder_config(p, cuda::typical_device(90));
    if (of != config(c.batch_invariant)) return "no kernel of this config is among those of the test";
    const cuda::TileMap map = cuda::tile_map(p, of);
    std::vector<float> scratch(1 << 22, std::numeric_limits<float>::quiet_NaN());
    const LadderParams params{cuda::forward_params(p, of, map, nullptr, {.blocks = 3, .l2_bytes = 256 << 10}),
                              scratch.data()};
    const Launch launch = c.batch_invariant ? GetParam().batch_invariant : GetParam().plain;
    try {
      launch(params, static_cast<unsigned>(cuda::forward_blocks(p, map)), static_cast<unsigned>(map.kv_tiles));
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  }
};

TEST_P(EmulatedLadder, IsRight) {
  Case base = {.dtype = "f32", .batch = 2, .heads_q = 2, .seqlen_q = 70, .seqlen_kv = 100, .seed = 3};
  base.head_dim_qk = base.head_dim_v = 32;
  for (const auto& change : std::vector<void (*)(Case&)>{
           [](Case&) {}, [](Case& c) { c.window_right = 0; }, [](Case& c) { c.window_left = 40, c.sink = true; },
           [](Case& c) { c.seqlens_q = c.seqlens_kv = true; }, [](Case& c) { c.window_right = 0, c.seqlen_kv = 30; }}) {
    Case c = base;
    change(c);
    Call call(c);
    EXPECT_EQ(run(call, c), "");
    EXPECT_EQ(call.check(), "") << "--case \"" << to_string(c) << "\"";
  }
}

TEST_P(EmulatedLadder, BatchInvariant) {
  Case c = {.dtype = "f32", .seqlen_q = 110, .seqlen_kv = 150, .spread = 8, .batch_invariant = true, .seed = 1};
  c.head_dim_qk = c.head_dim_v = 32;
  for (const int64_t window_right : {-1, 0}) {
    c.window_right = window_right;
    EXPECT_EQ(check_parts({c}, run), "") << "--case \"" << to_string(c) << "\"";
  }
}

INSTANTIATE_TEST_SUITE_P(Rungs, EmulatedLadder,
                         testing::Values(Rung{"standard", run_standard<config(false)>, run_standard<config(true)>},
                                         Rung{"flash_1", run_flash_1<config(false)>, run_flash_1<config(true)>}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace tessella::tests
