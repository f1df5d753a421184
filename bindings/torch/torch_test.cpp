// <tessella/torch.hpp> against softmax(scale * q . k^T + ...) . v in float64 by ATen, on the CPU and, where there is
// one, a GPU.
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <tessella/ranges.hpp>
#include <tessella/torch.hpp>
#include "expect.hpp"

namespace {

// In double; k and v have q's number of heads, bias is added to the scores.
std::tuple<at::Tensor, at::Tensor> reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                             const at::Tensor& bias) {
  const auto rows = [](const at::Tensor& t) { return t.to(at::kDouble).transpose(1, 2); };
  const at::Tensor scores =
      at::matmul(rows(q), rows(k).transpose(2, 3)) / std::sqrt(static_cast<double>(q.size(3))) + bias.to(at::kDouble);
  return {at::matmul(scores.softmax(-1), rows(v)).transpose(1, 2), scores.logsumexp(-1)};
}

bool near(const at::Tensor& got, const at::Tensor& expected, double tolerance) {
  return got.sizes() == expected.sizes() && (got.to(at::kDouble) - expected).abs().max().item<double>() <= tolerance;
}

void test_device(const at::Device& device) {
  using tessella::torch::attention;
  namespace ts = tessella;
  const auto f32 = at::TensorOptions(device);
  const at::Tensor q = at::randn({2, 9, 4, 16}, f32), k = at::randn({2, 13, 4, 16}, f32),
                   v = at::randn({2, 13, 4, 8}, f32), none = at::zeros({1}, f32);
  const at::Tensor causal = at::full({9, 13}, -std::numeric_limits<float>::infinity(), f32).triu(13 - 9 + 1);
  const auto [expected, expected_lse] = reference(q, k, v, none);

  expect(near(attention(q, k, v), expected, 1e-5), "plain");
  const auto [out, lse] = ts::torch::attention_lse(q, k, v, {.mask = ts::Mask::causal()});
  const auto [masked, masked_lse] = reference(q, k, v, causal);
  expect(near(out, masked, 1e-5) && near(lse, masked_lse, 1e-5), "causal, LSE");

  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor a = q.to(dtype), b = k.to(dtype), c = v.to(dtype);
    const at::Tensor exact = std::get<0>(reference(a, b, c, none));
    expect(attention(a, b, c).scalar_type() == dtype && near(attention(a, b, c), exact, 0.03), "16 bits");
    const at::Tensor wide = attention(a, b, c, {.out_dtype = ts::f32});
    expect(wide.scalar_type() == at::kFloat && near(wide, exact, 0.03), "out_dtype");
  }

  const auto strided = [](const at::Tensor& t) { return t.transpose(1, 2).contiguous().transpose(1, 2); };
  expect(near(attention(strided(q), strided(k), strided(v)), expected, 1e-5), "(b, h, s, d) memory");
  const at::Tensor one = k.slice(1, 0, 1).expand({2, 13, 4, 16});
  expect(near(attention(q, one, v), std::get<0>(reference(q, one, v, none)), 1e-5), "stride 0");
  const at::Tensor halves = at::randn({2, 9, 4, 32}, f32).slice(3, 0, 32, 2);
  expect_error(ts::ErrorCode::invalid_argument, "forward: q.strides[3] is 2, expected 1: head_dim must be contiguous",
               [&] { attention(halves, k, v); });

  const at::Tensor bias = at::randn({4, 9, 13}, f32);
  expect(near(attention(q, k, v, {}, {.bias = bias}), std::get<0>(reference(q, k, v, bias)), 1e-5), "bias");
  const at::Tensor visible = causal == 0;
  expect(near(attention(q, k, v, {.mask = ts::Mask::dense(ts::torch::view(visible))}), masked, 1e-5), "dense mask");
  const at::Tensor given = at::empty({2, 9, 4, 8}, f32);
  expect(attention(q, k, v, {}, {.out = given}).is_same(given) && near(given, expected, 1e-5), "out given");
  const at::Tensor cu_seqlens = at::arange(3, f32.dtype(at::kInt)) * 13;
  const at::Tensor packed =
      attention(k.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), {.max_seqlen_q = 13, .max_seqlen_kv = 13},
                {.cu_seqlens_q = cu_seqlens, .cu_seqlens_kv = cu_seqlens});
  expect(near(packed, std::get<0>(reference(k, k, v, none)).flatten(0, 1), 1e-5), "packed");
  const at::Tensor pages = at::tensor({1, 0}, f32.dtype(at::kInt)).view({2, 1});
  expect(near(attention(q, k.flip(0), v.flip(0), {}, {.page_table = pages}), expected, 1e-5), "pages");
  const at::Tensor slots = at::tensor({2, 0}, f32.dtype(at::kInt));
  const auto cache = [](const at::Tensor& t) { return at::stack({t[1], at::full_like(t[0], NAN), t[0]}); };
  expect(near(attention(q, cache(k), cache(v), {}, {.cache_batch_idx = slots}), expected, 1e-5), "slots");
  const at::Tensor tree = at::ones({9, 9}, f32).tril().to(at::kBool);
  expect(near(attention(q, k, v, {}, {.draft_mask = tree}), masked, 1e-5), "draft mask");
  const at::Tensor seed = at::full({1}, 7, f32.dtype(at::kLong));
  expect(attention(q, k, v, {.dropout = 0.5f}, {.seed = seed}).equal(attention(q, k, v, {.dropout = 0.5f, .seed = 7})),
         "dropout");

  const at::Tensor leaf = q.clone().requires_grad_();
  expect(near(attention(leaf, k, v), expected, 1e-5), "a leaf");
  expect(attention(leaf, k, v).requires_grad(), "a result of a leaf");
  expect_error(ts::ErrorCode::unsupported, "attention: mod_args requires grad, and has no gradient, expected detach()",
               [&] { attention(q, k, v, {}, {.mod_args = {leaf}}); });
  {
    const at::NoGradGuard guard;
    expect(near(attention(leaf, k, v), expected, 1e-5), "no grad");
  }
  const uint64_t level = torch::autograd::ForwardADLevel::get_next_idx();
  expect_error(ts::ErrorCode::unsupported, "attention: q has a tangent, and there is no derivative yet, expected",
               [&] { attention(at::_make_dual(q, q, static_cast<int64_t>(level)), k, v); });
  torch::autograd::ForwardADLevel::release_idx(level);
  expect_error(ts::ErrorCode::invalid_argument, "attention: v is undefined, expected a tensor",
               [&] { attention(q, k, at::Tensor()); });
  expect_error(ts::ErrorCode::unsupported, "attention: k has dtype ComplexFloat, expected f64, f32,",
               [&] { attention(q, k.to(at::kComplexFloat), v); });
  expect_error(ts::ErrorCode::unsupported, "attention: q is sparse or nested", [&] { attention(q.to_sparse(), k, v); });
  expect_error(ts::ErrorCode::unsupported, "attention: q has the negative bit",
               [&] { attention(at::_neg_view(q), k, v); });
  expect_error(ts::ErrorCode::unsupported, "attention: q is on meta, expected cpu or cuda",
               [&] { attention(q.to(at::kMeta), k, v); });
}

void test_gradients(const at::Device& device) {
  using tessella::torch::attention;
  using tessella::torch::attention_lse;
  namespace ts = tessella;
  const auto f32 = at::TensorOptions(device);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    if (dtype == at::kDouble && device.is_cuda()) continue;  // no kernel computes it there
    const double tolerance = dtype == at::kDouble ? 1e-6 : dtype == at::kFloat ? 1e-4 : 0.15;
    const auto leaf = [&](at::IntArrayRef shape, at::ScalarType of) {
      return at::randn(shape, f32.dtype(of)).requires_grad_();
    };
    const at::Tensor q = leaf({2, 9, 4, 16}, dtype), k = leaf({2, 13, 4, 16}, dtype), v = leaf({2, 13, 4, 8}, dtype),
                     bias = leaf({4, 9, 13}, at::kFloat);
    const at::Tensor of_out = at::randn({2, 9, 4, 8}, f32), of_lse = at::randn({2, 4, 9}, f32);
    const auto gradients = [&](const std::tuple<at::Tensor, at::Tensor>& result) {
      const auto& [out, lse] = result;
      const at::Tensor loss = (out * of_out).sum() + (lse * of_lse).sum();
      return ::torch::autograd::grad({loss}, {q, k, v, bias});
    };
    const auto got = gradients(attention_lse(q, k, v, {}, {.bias = bias})),
               expected = gradients(reference(q, k, v, bias));
    for (size_t i = 0; i < got.size(); ++i) {
      const at::Tensor wide = expected[i].to(at::kDouble);
      const double size = std::max(1.0, wide.abs().max().item<double>());
      expect(got[i].scalar_type() == (i == 3 ? at::kFloat : dtype) && near(got[i], wide, tolerance * size),
             "gradients");
    }
    const at::Tensor alone = ::torch::autograd::grad({attention(q, k.detach(), v.detach()).sum()}, {q})[0];
    const at::Tensor wanted =
        ::torch::autograd::grad({std::get<0>(reference(q, k, v, at::zeros({1}, f32))).sum()}, {q})[0].to(at::kDouble);
    expect(near(alone, wanted, tolerance), "the gradient of q alone, of a sum");
  }
  const at::Tensor q = at::randn({2, 9, 4, 16}, f32).requires_grad_(), sink = at::randn({4}, f32).requires_grad_(),
                   slopes = at::rand({4}, f32).requires_grad_();
  const ts::AttentionOptions dropout{.mask = ts::Mask::causal(), .dropout = 0.5f, .seed = 3};
  const auto loss = [&] { return attention(q, q, q, dropout, {.alibi_slopes = slopes, .sink = sink}).pow(2).sum(); };
  const auto first = ::torch::autograd::grad({loss()}, {q, sink, slopes});
  const auto second = ::torch::autograd::grad({loss()}, {q, sink, slopes});
  for (size_t i = 0; i < first.size(); ++i) {
    expect(first[i].equal(second[i]) && first[i].abs().max().item<double>() > 0, "the same gradients of dropout");
  }
  expect_error(ts::ErrorCode::unsupported, "attention: a gradient of gradients is wanted, and there is none",
               [&] { ::torch::autograd::grad({loss()}, {q}, {}, true, true); });
  const std::string own = device.is_cpu() ? "cpu.forward_baseline" : "cuda.forward_sm80";
  for (const ts::AttentionOptions& of_forward :
       {ts::AttentionOptions{.kernel = own},
        ts::AttentionOptions{.batch_invariant = true, .query_class = ts::QueryClass::few}}) {
    const at::Tensor one = at::randn({2, 1, 4, 16}, f32).requires_grad_();
    const auto gradient = [&](const ts::AttentionOptions& options) {
      return ::torch::autograd::grad({attention(one, q.detach(), q.detach(), options).pow(2).sum()}, {one})[0];
    };
    expect(near(gradient(of_forward), gradient({}).to(at::kDouble), 1e-4), "options of the forward stay there");
  }
  expect_error(ts::ErrorCode::unsupported,
               "attention: q requires grad, and slices of a whole have gradients in f64 alone; for the forward alone "
               "expected .detach() of each tensor that requires grad, or a call under torch::NoGradGuard",
               [&] { attention(q, q, q, {.first_query = 3}); });
  expect_error(ts::ErrorCode::unsupported,
               "attention: k requires grad, and a call with out or lse given has no gradients", [&] {
                 attention(q.detach(), q, q.detach(), {}, {.out = at::empty({2, 9, 4, 16}, f32)});
               });
  expect_error(ts::ErrorCode::unsupported, "attention: q requires grad, and keys in pages have no gradients", [&] {
    attention(q, q, q, {}, {.page_table = at::zeros({2, 1}, f32.dtype(at::kInt))});
  });
  expect_error(ts::ErrorCode::unsupported, "attention: q requires grad, and keys in slots of a cache have no gradients",
               [&] { attention(q, q, q, {}, {.cache_batch_idx = at::zeros({2}, f32.dtype(at::kInt))}); });
  expect_error(ts::ErrorCode::unsupported, "attention: q requires grad, and drafts have no gradients", [&] {
    attention(q, q, q, {}, {.draft_mask = at::ones({9, 9}, f32.dtype(at::kBool))});
  });
  expect_error(ts::ErrorCode::unsupported,
               "attention: q requires grad, and calls whose keys are split by a schedule have no gradients",
               [&] { attention(q, q, q, {}, {.schedule = at::zeros({8}, f32.dtype(at::kInt))}); });
  if (device.is_cpu()) {
    expect_error(ts::ErrorCode::unsupported, "plan_make: no forward kernel on the CPU supports schedule",
                 [&] { tessella::torch::decode_schedule(q, q, q, {.cache_settled = true}); });
  }
  expect_error(ts::ErrorCode::invalid_argument, "attention: k is undefined, expected a tensor",
               [&] { attention(q, at::Tensor(), q); });
}

// Calls and their gradients have the same bits with the mask's map as without.
void test_mask_map(const at::Device& device) {
  using tessella::torch::attention;
  namespace ts = tessella;
  const auto bf16 = at::TensorOptions(device).dtype(at::kBFloat16);
  const auto leaf = [&](int64_t heads) { return at::randn({2, 300, heads, 64}, bf16).requires_grad_(); };
  const at::Tensor q = leaf(4), k = leaf(2), v = leaf(2);
  const at::Tensor visible = at::rand({2, 1, 1, 300}, bf16) < 0.5;
  const ts::AttentionOptions options{.mask = ts::Mask::dense(ts::torch::view(visible)) & ts::Mask::causal()};
  const at::Tensor sink = at::randn({4}, bf16.dtype(at::kFloat)).requires_grad_();
  const at::Tensor map = ts::torch::mask_map(q, k, v, options, {.sink = sink});
  expect(map.defined() == device.is_cuda(), "a map is made on GPUs alone");
  expect(!ts::torch::mask_map(q, k, v, {.mask = ts::Mask::causal()}).defined(), "a map of a mask that is not read");
  const at::Tensor out = attention(q, k, v, options, {.mask_map = map, .sink = sink}),
                   without = attention(q, k, v, options, {.sink = sink});
  expect(out.equal(without) && out.abs().max().item<double>() > 0, "out by the map of a mask");
  const auto got = ::torch::autograd::grad({out.sum()}, {q, k, v, sink}),
             wanted = ::torch::autograd::grad({without.sum()}, {q, k, v, sink});
  for (size_t i = 0; i < got.size(); ++i) {
    expect(got[i].equal(wanted[i]) && got[i].abs().max().item<double>() > 0, "gradients by the map of a mask");
  }
}

// Key ranges and query ranges, with gradients, beside the same masks as matrices.
void test_ranges(const at::Device& device) {
  using tessella::torch::attention_lse;
  namespace ts = tessella;
  constexpr int64_t kSeqlen = 200;
  const auto f32 = at::TensorOptions(device);
  const auto leaf = [&](int64_t heads) { return at::randn({2, kSeqlen, heads, 32}, f32).requires_grad_(); };
  const at::Tensor q = leaf(4), k = leaf(2), v = leaf(2);
  const at::Tensor of_out = at::randn({2, kSeqlen, 4, 32}, f32), of_lse = at::randn({2, 4, kSeqlen}, f32);
  const ts::ranges::Ranges tree = ts::ranges::prefix_tree({80, 50, 40, 30}, {-1, 0, 1, 0}),
                           images = ts::ranges::bidirectional_spans(kSeqlen, {{10, 74}, {120, 184}});
  for (const ts::ranges::Ranges* ranges : {&tree, &images}) {
    const at::Tensor array = at::tensor(ranges->numbers, at::kInt).view(ranges->shape).to(device);
    const at::Tensor indices = at::arange(kSeqlen, array.options());
    const at::Tensor starts = array.select(-1, 0).unsqueeze(-1), ends = array.select(-1, 1).unsqueeze(-1);
    const at::Tensor covered = at::logical_and(starts <= indices, indices < ends).any(-2);  // (1, 1, seqlen, seqlen)
    const at::Tensor visible = (ranges == &tree ? covered.transpose(2, 3) : covered).contiguous();
    const ts::Mask mask =
        ranges == &tree ? ts::Mask::query_ranges(ts::torch::view(array)) : ts::Mask::key_ranges(ts::torch::view(array));
    const auto results = [&](const ts::Mask& of) {
      const auto [out, lse] = attention_lse(q, k, v, {.mask = of});
      std::vector<at::Tensor> made = ::torch::autograd::grad({(out * of_out).sum() + (lse * of_lse).sum()}, {q, k, v});
      made.insert(made.end(), {out.detach(), lse.detach()});
      return made;
    };
    const std::vector<at::Tensor> got = results(mask), expected = results(ts::Mask::dense(ts::torch::view(visible)));
    for (size_t i = 0; i < got.size(); ++i) {
      expect(near(got[i], expected[i].to(at::kDouble), 1e-4), "out, LSE and gradients by ranges");
    }
  }
}

}  // namespace

int main() {
  test_device(at::kCPU);
  test_gradients(at::kCPU);
  test_mask_map(at::kCPU);
  test_ranges(at::kCPU);
  if (at::hasCUDA()) {
    const at::Device gpu(at::kCUDA, 0);
    test_device(gpu);
    test_gradients(gpu);
    test_mask_map(gpu);
    test_ranges(gpu);
  } else {
    std::printf("libtorch finds no GPU here: the CPU alone\n");
  }
  return report();
}
