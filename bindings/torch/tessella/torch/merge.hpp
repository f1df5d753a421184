// merge on at::Tensor: states of attention over disjoint sets of keys become the state over all of them.
//
//   auto [out, lse] = tessella::torch::merge({{out_a, lse_a}, {out_b, lse_b}});
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <tessella/merge.hpp>
#include <tessella/torch/tensor.hpp>
#include <tuple>
#include <utility>
#include <vector>

namespace tessella::torch {

// What attention_lse gives for a set of keys: out (batch, seqlen, heads, head_dim), lse (batch, heads, seqlen).
using TensorState = std::pair<at::Tensor, at::Tensor>;

namespace detail {

// Writes out and lse, which are made like those of the first state where they are not given.
inline TensorState run_merge(const std::vector<TensorState>& states, const MergeOptions& options, at::Tensor out,
                             at::Tensor lse) {
  std::vector<State> views;
  for (const auto& [out_i, lse_i] : states) {
    views.push_back({.out = required("merge", out_i, "outs"), .lse = required("merge", lse_i, "lses")});
  }
  if (!out.defined()) out = at::empty(states[0].first.sizes(), states[0].first.options());
  if (!lse.defined()) lse = at::empty(states[0].second.sizes(), states[0].second.options());
  const TensorView to_out = view("merge", out, "out"), to_lse = view("merge", lse, "lse");
  run_on(states[0].first, options,
         [&](const MergeOptions& own, void* stream) { tessella::merge(views, to_out, to_lse, own, stream); });
  written(out);
  written(lse);
  return {out, lse};
}

// merge in autograd's graph. With w_i = exp(lse_i - LSE) and out = sum_i w_i out_i:
//   d_out_i = w_i d_out,  d_lse_i = w_i (d_out . (out_i - out) + d_lse)
class DifferentiableMerge : public ::torch::autograd::Function<DifferentiableMerge> {
 public:
  using Context = ::torch::autograd::AutogradContext;
  using List = ::torch::autograd::variable_list;

  struct Kept : ::torch::CustomClassHolder {
    MergeOptions options;
  };

  // tensors: the outs, then the lses.
  static List forward(Context* context, at::TensorList tensors, const c10::intrusive_ptr<Kept>& kept) {
    const size_t count = tensors.size() / 2;
    std::vector<TensorState> states;
    for (size_t i = 0; i < count; ++i) states.emplace_back(tensors[i], tensors[count + i]);
    const auto [out, lse] = run_merge(states, kept->options, {}, {});
    List saved = tensors.vec();
    saved.push_back(out);
    saved.push_back(lse);
    context->save_for_backward(saved);
    return {out, lse};
  }

  static List backward(Context* context, List incoming) {
    const List saved = context->get_saved_variables();
    const size_t count = (saved.size() - 2) / 2;
    const at::ScalarType real = at::promote_types(at::kFloat, saved[2 * count].scalar_type());
    const at::Tensor lse = saved[2 * count + 1].to(real), out = saved[2 * count].to(real), d_out = incoming[0].to(real),
                     d_lse = incoming[1].to(real);
    List made(2 * count + 1);
    for (size_t i = 0; i < count; ++i) {
      const at::Tensor &out_i = saved[i], &lse_i = saved[count + i];
      // Of a state without keys out may hold anything.
      const at::Tensor has_keys = lse_i.ne(-std::numeric_limits<double>::infinity());
      const at::Tensor weight = (lse_i - lse).exp().masked_fill(has_keys.logical_not(), 0);
      const at::Tensor change = (out_i.to(real) - out).masked_fill(beside_out(has_keys.logical_not()), 0);
      made[i] = (beside_out(weight) * d_out).to(out_i.scalar_type());
      made[count + i] = (weight * (beside_lse((d_out * change).sum(-1)) + d_lse)).to(lse_i.scalar_type());
    }
    return made;
  }

 private:
  // (batch, heads, seqlen) beside (batch, seqlen, heads, head_dim), and the way back.
  static at::Tensor beside_lse(const at::Tensor& rows) { return rows.dim() < 2 ? rows : rows.transpose(-1, -2); }
  static at::Tensor beside_out(const at::Tensor& lse) { return beside_lse(lse).unsqueeze(-1); }
};

}  // namespace detail

// LSE = log sum_i exp(lse_i), out = sum_i exp(lse_i - LSE) out_i, in fp32 and rounded once (FlashInfer, arXiv
// 2501.01005, section 2.2).
//   states    one or more; outs f64, f32, bf16 or f16, all of one dtype and shape, lses f32 (f64 allowed beside f64)
//   out, lse  where the result goes; made like those of the first state where absent. out may also be f32, and for
//             outs of f32 bf16 or f16
//   returns   (out, lse)
// Autograd has the gradients of every out and lse, where out and lse are not given. Throws Error as tessella::merge.
inline TensorState merge(const std::vector<TensorState>& states, const MergeOptions& options = {}, at::Tensor out = {},
                         at::Tensor lse = {}) {
  if (states.empty()) detail::fail("merge", ErrorCode::invalid_argument, "states is empty, expected one or more");
  std::vector<at::Tensor> tensors;
  bool requires_grad = false;
  for (const auto& [name, member] : {std::pair{"outs", &TensorState::first}, {"lses", &TensorState::second}}) {
    for (const TensorState& state : states) {
      const at::Tensor& tensor = state.*member;
      if (!tensor.defined()) detail::required("merge", tensor, name);
      requires_grad |= tensor.requires_grad();
      tensors.push_back(tensor);
    }
  }
  if (!requires_grad || !c10::GradMode::is_enabled()) {
    return detail::run_merge(states, options, std::move(out), std::move(lse));
  }
  if (out.defined() || lse.defined()) {
    detail::fail("merge", ErrorCode::unsupported,
                 "a state requires grad, and a call with out or lse given has no gradients, expected neither of the "
                 "two, .detach() of the states, or a call under torch::NoGradGuard");
  }
  auto kept = c10::make_intrusive<detail::DifferentiableMerge::Kept>();
  kept->options = options;
  const auto made = detail::DifferentiableMerge::apply(at::TensorList(tensors), kept);
  return {made[0], made[1]};
}

}  // namespace tessella::torch
