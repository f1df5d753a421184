#include "cuda/compile/hot_programs.hpp"

#include <algorithm>
#include <optional>

#include "cuda/compile/user_source.hpp"
#include "cuda/forward_sm80/config.hpp"
#include "cuda/forward_sm90/config.hpp"

namespace tessella::cuda {

using portable::ForwardSm90Config;

std::vector<HotProgram> hot_programs() {
  std::vector<HotProgram> programs;
  const auto add = [&](Program program, const Target& target, const char* kernel = "cuda.forward_sm80") {
    const auto same = std::ranges::find(programs, program, &HotProgram::program);
    if (same == programs.end()) {
      programs.push_back({kernel, std::move(program), {target}});
    } else if (std::ranges::find(same->targets, target) == same->targets.end()) {
      same->targets.push_back(target);
    }
  };
  // What models use without masks of their own: an aligned call with no feature, or with any that is read at run time.
  for (const core::DType dtype : {core::DType::bf16, core::DType::f16}) {
    for (const int64_t head_dim : {64, 128, 256}) {
      core::Problem plain{.dtype = dtype, .head_dim_qk = head_dim, .head_dim_v = head_dim, .alignment = 16};
      const auto program = [&](int arch) {
        return forward_sm80_program(forward_sm80_config(plain, typical_device(arch)), user_text());
      };
      add(program(80), {.arch = 80});
      add(program(90), {.arch = 90});
      add(program(90), {.arch = 80, .ptx = true});  // for what comes after Hopper
      const auto add_sm90 = [&](const ForwardSm90Config& config) {
        add(forward_sm90_program(config, user_text()), {.arch = 90, .arch_specific = true}, "cuda.forward_sm90");
      };
      plain.seqlen_q = 8192;
      for (const int64_t seqlen_kv : {1024, 8192}) {
        plain.seqlen_kv = seqlen_kv;
        const ForwardSm90Config config = forward_sm90_config(plain);
        add_sm90(config);
        if (const std::optional<ForwardSm90Config> paired = in_pairs(config, plain)) add_sm90(*paired);
      }
    }
  }
  return programs;
}

}  // namespace tessella::cuda
