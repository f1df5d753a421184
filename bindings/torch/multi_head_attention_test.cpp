// <tessella/torch/multi_head_attention.hpp> against torch::nn::MultiheadAttention and a plain composition, outputs and
// all gradients: their errors against the same in float64 are compared.
#include <torch/autograd.h>
#include <torch/serialize.h>
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <tessella/torch/multi_head_attention.hpp>
#include <vector>
#include "expect.hpp"

namespace {

using tessella::torch::MultiHeadAttention;
using Args = tessella::torch::MultiHeadAttentionArgs;
using List = std::vector<at::Tensor>;
using Forward = std::function<at::Tensor(const List&)>;

double largest(const at::Tensor& tensor) { return tensor.abs().max().item<double>(); }

// The output and the gradients of inputs and weights.
List outcome(const Forward& forward, const List& inputs, const List& weights) {
  List leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().requires_grad_());
  const at::Tensor out = forward(leaves);
  const at::Tensor loss = (out * at::linspace(-1, 1, out.numel()).view(out.sizes()).sin().to(out.dtype())).sum();
  List wanted = leaves;
  wanted.insert(wanted.end(), weights.begin(), weights.end());
  List found = ::torch::autograd::grad({loss}, wanted);
  found.insert(found.begin(), out.detach());
  return found;
}

// The comparator's rule: twice the error of the plain computation at most, each against the float64 one.
void expect_matches(const List& got, const List& plain, const List& exact, const std::string& what) {
  expect(got.size() == plain.size() && got.size() == exact.size(), what.c_str());
  for (size_t i = 0; i < got.size(); ++i) {
    // In fp32 what counts is the sums of gradients, of hundreds of terms; in bf16 how results are rounded.
    const double unit = plain[i].scalar_type() == at::kBFloat16 ? 8 * std::ldexp(1, -8) : 32 * std::ldexp(1, -24);
    const double tolerance = 2 * largest(plain[i].to(at::kDouble) - exact[i]) + unit * std::max(1.0, largest(exact[i]));
    expect(got[i].scalar_type() == plain[i].scalar_type() && got[i].sizes() == exact[i].sizes() &&
               largest(got[i].to(at::kDouble) - exact[i]) <= tolerance,
           (what + ", tensor " + std::to_string(i)).c_str());
  }
}

List in(at::ScalarType dtype, const List& tensors) {
  List result;
  for (const at::Tensor& tensor : tensors) result.push_back(tensor.to(dtype));
  return result;
}

// torch's layer, whose batch is second, sequence by sequence: it has masks of (seqlen_q, seqlen_kv) alone. masks: one
// of each sequence, added to the scores.
at::Tensor by_torch(torch::nn::MultiheadAttentionImpl& module, const List& inputs, const at::Tensor& masks) {
  List outs;
  for (int64_t i = 0; i < inputs[0].size(0); ++i) {
    const auto one = [&](size_t which) { return inputs[which][i].unsqueeze(1); };
    const at::Tensor mask = masks.defined() ? masks[i].to(inputs[0].scalar_type()) : at::Tensor();
    outs.push_back(std::get<0>(module.forward(one(0), one(1), one(2), {}, /*need_weights=*/false, mask)));
  }
  return at::cat(outs, 1).transpose(0, 1);
}

at::Tensor hidden_above(int64_t rows, int64_t keys) { return at::ones({rows, keys}, at::kBool).triu(1); }

at::Tensor padding() { return at::arange(9) >= at::tensor({9, 4}).unsqueeze(1); }

// The numbers that hide, for torch's bf16 layer knows no others.
at::Tensor numbers(const at::Tensor& hidden) {
  return at::zeros(hidden.sizes()).masked_fill(hidden, -std::numeric_limits<double>::infinity());
}

void test_against_torch(int64_t kdim, const Args& args, const at::Tensor& masks, const std::string& what) {
  torch::nn::MultiheadAttention theirs(torch::nn::MultiheadAttentionOptions(32, 4).kdim(kdim).vdim(kdim));
  for (const at::Tensor& bias : {theirs->in_proj_bias, theirs->out_proj->bias}) torch::nn::init::normal_(bias);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    theirs->to(dtype);
    auto ours = MultiHeadAttention::from_torch(theirs);
    const List inputs = in(dtype, {at::randn({2, 9, 32}), at::randn({2, 9, kdim}), at::randn({2, 9, kdim})});
    const auto gradients = [&](at::ScalarType type) {
      const auto module = std::dynamic_pointer_cast<torch::nn::MultiheadAttentionImpl>(theirs->clone());
      module->to(type);
      const bool is_packed = module->_qkv_same_embed_dim;
      List weights{module->in_proj_bias, module->out_proj->weight, module->out_proj->bias};
      if (is_packed) weights.push_back(module->in_proj_weight);
      if (!is_packed)
        weights.insert(weights.end(), {module->q_proj_weight, module->k_proj_weight, module->v_proj_weight});
      const List found =
          outcome([&](const List& rows) { return by_torch(*module, rows, masks); }, in(type, inputs), weights);
      const List biases = found[4].chunk(3);
      const List apart = is_packed ? found[7].chunk(3) : List{found[7], found[8], found[9]};
      return List{found[0], found[1],  found[2], found[3],  apart[0], biases[0],
                  apart[1], biases[1], apart[2], biases[2], found[5], found[6]};
    };
    const List got = outcome(
        [&](const List& rows) {
          Args given = args;
          given.key = rows[1];
          given.value = rows[2];
          return ours->forward(rows[0], given);
        },
        inputs, ours->parameters());
    expect_matches(got, gradients(dtype), gradients(at::kDouble), what + " of " + c10::toString(dtype));
  }
}

void test_against_torch() {
  const at::Tensor causal = hidden_above(9, 9).expand({2, 9, 9}), padded = padding().unsqueeze(1).expand({2, 9, 9});
  test_against_torch(32, {}, {}, "plain");
  test_against_torch(20, {}, {}, "kdim and vdim");
  test_against_torch(32, {.is_causal = true}, numbers(causal), "causal");
  test_against_torch(32, {.key_padding_mask = padding()}, numbers(padded), "key_padding_mask");
  test_against_torch(32, {.seqlens = at::tensor({9, 4})}, numbers(padded), "seqlens");
  const at::Tensor both = padded.logical_or(causal);
  test_against_torch(32, {.is_causal = true, .key_padding_mask = padding()}, numbers(both), "causal and padding");
  test_against_torch(32, {.key_padding_mask = padding(), .attn_mask = causal[0]}, numbers(both), "two bool masks");
  const at::Tensor mask = at::randn({2, 9, 9});
  test_against_torch(32, {.attn_mask = mask[0]}, mask[0].expand({2, 9, 9}), "attn_mask of numbers");
  test_against_torch(32, {.attn_mask = mask.unsqueeze(1)}, mask, "attn_mask of four axes");
  test_against_torch(32, {.attn_mask = mask.repeat_interleave(4, 0)}, mask, "attn_mask of heads");
  test_against_torch(32, {.key_padding_mask = padding(), .attn_mask = mask[0]}, mask[0] + numbers(padded),
                     "both kinds");
}

// Causal, with softmax written out; weights in the order of their names, without biases.
at::Tensor written_out(const at::Tensor& x, const List& weights,
                       const tessella::torch::MultiHeadAttentionOptions& options, const at::Tensor& positions) {
  const auto heads = [&](const at::Tensor& weight) {
    return at::linear(x, weight).unflatten(-1, {-1, options.head_dim}).transpose(1, 2);
  };
  const int64_t half = options.head_dim / 2;
  const at::Tensor steps = at::arange(half, at::kDouble) * 2 / options.head_dim;
  const at::Tensor angles =
      (positions.to(at::kDouble).unsqueeze(-1) / at::pow(options.rotary_base, steps)).repeat({1, 2});
  const auto turned = [&](const at::Tensor& rows) {
    const at::Tensor other = at::cat({-rows.slice(-1, half), rows.slice(-1, 0, half)}, -1);
    return (rows * angles.cos() + other * angles.sin()).to(rows.scalar_type());
  };
  const int64_t group = options.num_heads / options.num_kv_heads;
  const at::Tensor q = turned(heads(weights[0])), k = turned(heads(weights[1])).repeat_interleave(group, 1),
                   v = heads(weights[2]).repeat_interleave(group, 1);
  const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(options.head_dim));
  const at::Tensor weights_of_keys =
      scores.masked_fill(hidden_above(x.size(1), x.size(1)), -std::numeric_limits<double>::infinity()).softmax(-1);
  return at::linear(at::matmul(weights_of_keys, v).transpose(1, 2).flatten(2), weights[3]);
}

void test_llama() {
  MultiHeadAttention layer(
      {.embed_dim = 256, .num_heads = 8, .bias = false, .num_kv_heads = 2, .rotary_base = 10000.0});
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    layer->to(dtype);
    const at::Tensor x = at::randn({2, 11, 256}).to(dtype);
    for (const at::Tensor& positions : {at::arange(11), at::arange(11) * 3 + 5}) {
      const List got = outcome(
          [&](const List& rows) { return layer->forward(rows[0], {.is_causal = true, .positions = positions}); }, {x},
          layer->parameters());
      const auto plain = [&](at::ScalarType type) {
        List weights;
        for (const at::Tensor& weight : layer->parameters())
          weights.push_back(weight.detach().to(type).requires_grad_());
        return outcome([&](const List& rows) { return written_out(rows[0], weights, layer->options, positions); },
                       {x.to(type)}, weights);
      };
      expect_matches(got, plain(dtype), plain(at::kDouble), "Llama's shapes");
    }
    expect(layer->forward(x).equal(layer->forward(x, {.positions = at::arange(11)})), "positions from 0");
  }
}

void test_module() {
  MultiHeadAttention layer({.embed_dim = 32, .num_heads = 4, .dropout = 0.5});
  const at::Tensor x = at::randn({2, 9, 32});
  torch::manual_seed(1);
  const at::Tensor first = layer->forward(x), second = layer(x);
  torch::manual_seed(1);
  expect(layer(x).equal(first) && !first.equal(second), "dropout follows torch's seed");
  layer->eval();
  const at::Tensor out = layer(x);
  expect(layer(x).equal(out) && !out.equal(first), "no dropout in evaluation");
  expect(layer(x[0]).equal(layer(x.slice(0, 0, 1))[0]), "without a batch");
  expect(layer->forward(x[0], {.seqlens = at::scalar_tensor(4, at::kInt)})
             .equal(layer->forward(x.slice(0, 0, 1), {.seqlens = at::tensor({4})})[0]),
         "lengths without a batch");
  MultiHeadAttention other({.embed_dim = 32, .num_heads = 4});
  std::stringstream stream;
  torch::save(layer, stream);
  torch::load(other, stream);
  other->eval();
  expect(other(x).equal(out), "saved and loaded");
  const auto clone = std::dynamic_pointer_cast<tessella::torch::MultiHeadAttentionImpl>(layer->clone());
  expect(clone->forward(x).equal(out), "cloned");
  torch::nn::init::normal_(layer->out_proj->bias);
  const at::Tensor unseen = layer->forward(x, {.seqlens = at::tensor({9, 0})})[1];
  expect(unseen.equal(layer->out_proj->bias.expand({9, 32})), "a row that sees nothing");
}

void test_errors() {
  const auto expect_message = [](const std::string& message, const std::function<void()>& call) {
    expect_error(tessella::ErrorCode::invalid_argument, "MultiHeadAttention: " + message, call);
  };
  expect_message("embed_dim is 0, expected 1 or more", [] { MultiHeadAttention({.num_heads = 4}); });
  expect_message("num_heads is 5, expected a divisor of embed_dim, 32, or head_dim given",
                 [] { MultiHeadAttention({.embed_dim = 32, .num_heads = 5}); });
  expect_message("num_kv_heads is 3, expected a divisor of num_heads, 4",
                 [] { MultiHeadAttention({.embed_dim = 32, .num_heads = 4, .num_kv_heads = 3}); });
  expect_message("kdim is -1, expected", [] { MultiHeadAttention({.embed_dim = 32, .num_heads = 4, .kdim = -1}); });
  expect_message("dropout is 1.0", [] { MultiHeadAttention({.embed_dim = 32, .num_heads = 4, .dropout = 1}); });
  expect_message("rotary_base is -1.0",
                 [] { MultiHeadAttention({.embed_dim = 32, .num_heads = 4, .rotary_base = -1}); });
  expect_message("head_dim is 5, expected an even number beside rotary_base",
                 [] { MultiHeadAttention({.embed_dim = 32, .num_heads = 4, .head_dim = 5, .rotary_base = 10}); });
  MultiHeadAttention layer({.embed_dim = 32, .num_heads = 4}),
      rotary({.embed_dim = 32, .num_heads = 4, .rotary_base = 10});
  const at::Tensor x = at::zeros({2, 9, 32});
  expect_message("query is (2, 9, 31), expected 3 axes, the last of 32", [&] { layer(x.slice(2, 1)); });
  expect_message("query is (32), expected 3 axes", [&] { layer(x[0][0]); });
  expect_message("query is undefined, expected a tensor", [&] { layer(at::Tensor()); });
  expect_message("key is (9, 32), expected 3 axes", [&] { layer->forward(x, {.key = x[0]}); });
  expect_message("positions is given, expected a layer with rotary_base",
                 [&] { layer->forward(x, {.positions = at::arange(9)}); });
  expect_message("key is another tensor than query", [&] { rotary->forward(x, {.key = x.clone()}); });
  expect_message("key_padding_mask is (9, 2), expected (2, 9)",
                 [&] { layer->forward(x, {.key_padding_mask = padding().t()}); });
  expect_message("attn_mask is (9, 8), expected (9, 9), (8, 9, 9) or 4 axes", [&] {
    layer->forward(x, {.attn_mask = at::zeros({9, 8})});
  });
  expect_message("attn_mask is Long, expected bool or", [&] {
    layer->forward(x, {.attn_mask = at::zeros({9, 9}, at::kLong)});
  });
  for (const bool is_bias : {true, false}) {
    const torch::nn::MultiheadAttention module(
        torch::nn::MultiheadAttentionOptions(32, 4).add_bias_kv(is_bias).add_zero_attn(!is_bias));
    expect_message(is_bias ? "from_torch: add_bias_kv is true" : "from_torch: add_zero_attn is true",
                   [&] { MultiHeadAttention::from_torch(module); });
  }
}

}  // namespace

int main() {
  torch::manual_seed(5);
  test_against_torch();
  test_llama();
  test_module();
  test_errors();
  return report();
}
