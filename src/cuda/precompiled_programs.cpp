#include "cuda/precompiled_programs.hpp"

#include <algorithm>

#include "cuda/kernels/append/recipe.hpp"
#include "cuda/kernels/backward_sm80/recipe.hpp"
#include "cuda/kernels/backward_sm90/recipe.hpp"
#include "cuda/kernels/copy_pages/recipe.hpp"
#include "cuda/kernels/decode/recipe.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "cuda/kernels/forward_sm80/recipe.hpp"
#include "cuda/kernels/forward_sm90/recipe.hpp"
#include "cuda/kernels/linear_gemv/recipe.hpp"
#include "cuda/kernels/linear_sm80/recipe.hpp"
#include "cuda/kernels/linear_sm90/recipe.hpp"
#include "cuda/kernels/merge/recipe.hpp"
#include "cuda/kernels/quantize/recipe.hpp"
#include "operations/append/shape.hpp"
#include "operations/attention/shape.hpp"
#include "operations/copy_pages/shape.hpp"
#include "operations/linear/shape.hpp"
#include "operations/merge/shape.hpp"
#include "operations/quantize/shape.hpp"

namespace tessella::cuda {

std::vector<PrecompiledProgram> precompiled_programs(Precompiled which) {
  std::vector<PrecompiledProgram> programs;
  const auto add_always = [&](const char* kernel, const Recipe& recipe, Target target) {
    std::vector<Step> steps = recipe.steps;
    steps.insert(steps.end(), recipe.made_before.begin(), recipe.made_before.end());
    for (const Step& step : steps) {
      target.arch_specific = step.program.arch_specific;
      const auto same = std::ranges::find(programs, step.program, &PrecompiledProgram::program);
      if (same == programs.end()) {
        programs.push_back({kernel, step.program, {target}});
      } else if (std::ranges::find(same->targets, target) == same->targets.end()) {
        same->targets.push_back(target);
      }
    }
  };
  const auto add_for_releases = [&](const char* kernel, const Recipe& recipe, Target target) {
    if (which == Precompiled::all) add_always(kernel, recipe, target);
  };
  const auto add_everywhere = [&](const char* kernel, const Recipe& recipe) {
    add_for_releases(kernel, recipe, {.arch = 80});
    add_for_releases(kernel, recipe, {.arch = 90});
    add_for_releases(kernel, recipe, {.arch = 80, .ptx = true});
  };
  const DeviceInfo ampere = typical_device(80), hopper = typical_device(90);
  // Calls of models without masks of their own: aligned, with no feature, or with those read at run time.
  for (const core::DType dtype : {core::DType::bf16, core::DType::f16}) {
    for (const int64_t head_dim : {64, 128, 256}) {
      core::AttentionShape plain{
          .batch = 1, .heads_q = 1, .heads_kv = 1, .head_dim_qk = head_dim, .head_dim_v = head_dim};
      for (const core::Name name : {core::Name::q, core::Name::k, core::Name::v, core::Name::out}) {
        plain.operands[name] = {dtype, 16};
      }
      add_for_releases("cuda.forward_sm80", forward_sm80_recipe(plain, ampere), {.arch = 80});
      add_for_releases("cuda.forward_sm80", forward_sm80_recipe(plain, hopper), {.arch = 90});
      // For what comes after Hopper.
      add_for_releases("cuda.forward_sm80", forward_sm80_recipe(plain, hopper), {.arch = 80, .ptx = true});
      core::AttentionShape backward = plain;
      backward.operation = core::Operation::backward;
      for (const core::Name name : {core::Name::d_out, core::Name::dq, core::Name::dk, core::Name::dv}) {
        backward.operands[name] = {dtype, 16};
      }
      add_for_releases("cuda.backward_sm80", backward_sm80_recipe(backward, ampere), {.arch = 80});
      add_always("cuda.backward_sm90", backward_sm90_recipe(backward, hopper), {.arch = 90});
      // A token at a time, up to 8 heads on one.
      plain.seqlen_q = 1;
      plain.seqlen_kv = 8192;
      plain.features = core::Feature::schedule;
      const Recipe before = decode_recipe(plain, ampere), decode = decode_recipe(plain, hopper);
      add_for_releases("cuda.decode", before, {.arch = 80});
      add_always("cuda.decode", decode, {.arch = 90});
      add_for_releases("cuda.decode", decode, {.arch = 80, .ptx = true});  // for what comes after Hopper
      plain.features = {};
      plain.seqlen_q = 8192;
      for (const int64_t seqlen_kv : {1024, 8192}) {
        plain.seqlen_kv = seqlen_kv;
        add_always("cuda.forward_sm90", forward_sm90_recipe(plain, hopper), {.arch = 90});
      }
    }
    // Layers of models of 7 to 8 billion weights and of twice the width, for up to 8 tokens.
    core::LinearShape linear{.x_shape = {dtype, 16}, .w_shape = {dtype, 16}, .out_shape = {dtype, 16}, .rows = 8};
    linear.in_features = 4096;
    const auto add_linear = [&](core::Activation activation, int64_t out_features) {
      linear.activation = activation;
      linear.out_features = out_features;
      add_for_releases("cuda.linear_sm90", linear_sm90_recipe(linear, hopper), {.arch = 90});
      const Recipe before = linear_sm80_recipe(linear, ampere);
      add_for_releases("cuda.linear_sm80", before, {.arch = 80});
      add_for_releases("cuda.linear_sm80", before, {.arch = 80, .ptx = true});
    };
    for (const int64_t out_features : {4096, 8192, 12288, 32000}) add_linear(core::Activation::none, out_features);
    for (const int64_t out_features : {11008, 14336}) add_linear(core::Activation::swiglu, out_features);
    linear.rows = 1;
    linear.activation = core::Activation::none;
    add_for_releases("cuda.linear_gemv", linear_gemv_recipe(linear, ampere), {.arch = 80});
    add_for_releases("cuda.linear_gemv", linear_gemv_recipe(linear, ampere), {.arch = 80, .ptx = true});
    core::MergeShape merge{.num_states = 2, .states = {dtype, 16}, .out = {dtype, 16}, .head_dim = 128};
    add_everywhere("cuda.merge", merge_recipe(merge, hopper));
    core::AppendShape append{.rows = {dtype, 16}, .cache = {dtype, 16}};
    append.k_new = append.v_new = {.heads = 1, .head_dim = 128};
    add_everywhere("cuda.append", append_recipe(append, hopper));
    append.rotary = core::DType::f32;
    append.rotary_dim = 128;
    add_everywhere("cuda.append", append_recipe(append, hopper));
    core::QuantizeShape quantize{.x = {dtype, 16}, .out = {core::DType::f8e4m3fn, 16}};
    quantize.head_dim = 128;
    quantize.computes_scales = true;
    add_everywhere("cuda.quantize", quantize_recipe(quantize, hopper));
  }
  core::CopyPagesShape pages{.pools = {core::DType::bf16, 16}, .num_pools = 1};
  add_everywhere("cuda.copy_pages", copy_pages_recipe(pages, hopper));
  return programs;
}

}  // namespace tessella::cuda
