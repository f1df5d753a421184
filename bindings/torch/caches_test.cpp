// What <tessella/torch.hpp> does with caches: append, copy_pages, quantised keys and values, and merge with its
// gradients, on the CPU and, where there is one, a GPU.
#include <torch/csrc/autograd/autograd.h>
#include <cstdio>
#include <limits>
#include <tessella/torch.hpp>
#include "expect.hpp"

namespace {

namespace ts = tessella;

bool near(const at::Tensor& got, const at::Tensor& expected, double tolerance) {
  return got.sizes() == expected.sizes() &&
         (got.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>() <= tolerance;
}

// There and back: rows, and v transposed; what is written autograd hears of.
void test_quantize(const at::Device& device) {
  const auto f32 = at::TensorOptions(device);
  const at::Tensor x = at::randn({2, 40, 2, 32}, f32), back = at::zeros_like(x);
  const at::ScalarType e4m3 = ts::torch::detail::type_named("Float8_e4m3fn");
  if (e4m3 == at::ScalarType::Undefined) return;  // libtorch before 2.1
  const at::Tensor out = at::zeros({2, 40, 2, 32}, f32.dtype(e4m3));
  const at::Tensor scale = at::zeros({2, 3, 2}, f32), mean = at::zeros({2, 1, 2, 32}, f32);
  const auto version = out._version();
  ts::torch::quantize(x, out, {.scale_block = 16, .hadamard = true}, {.scale = scale, .mean = mean});
  expect(near(mean, x.mean(1, true), 1e-5) && out._version() > version && scale._version() > 0, "what is written");
  ts::torch::dequantize(out, back, {.scale_block = 16, .hadamard = true}, {.scale = scale, .mean = mean});
  expect(near(back, x, 0.3), "there and back");

  const at::Tensor columns = at::zeros({2, 2, 32, 128}, f32.dtype(e4m3));
  const at::Tensor again = at::zeros_like(x);
  ts::torch::quantize(x, columns, {.scale_block = 16, .hadamard = true},
                      {.scale = scale, .mean = mean, .is_transposed = true});
  ts::torch::dequantize(columns, again, {.scale_block = 16, .hadamard = true},
                        {.scale = scale, .mean = mean, .is_transposed = true});
  expect(again.equal(back), "transposed");
  const at::Tensor q = at::randn({2, 7, 4, 32}, f32).to(e4m3), k = x.to(e4m3);
  const ts::AttentionOptions options{.scale_block = 16, .out_dtype = ts::f32};
  const at::Tensor of_rows = ts::torch::attention(q, k, out, options, {.v_scale = scale});
  const at::Tensor of_columns = ts::torch::attention(q, k, columns, options, {.v_scale = scale, .v_transposed = true});
  expect(of_columns.equal(of_rows), "attention of transposed v");
  expect_error(ts::ErrorCode::invalid_argument, "quantize: x is undefined, expected a tensor",
               [&] { ts::torch::quantize({}, out); });
}

// Rows go where seqlens_kv says, q is rotated, and attention on the pages is attention on the rows.
void test_append(const at::Device& device) {
  const auto f32 = at::TensorOptions(device);
  const auto i32 = f32.dtype(at::kInt);
  const at::Tensor k = at::randn({2, 6, 2, 16}, f32), v = at::randn({2, 6, 2, 8}, f32),
                   q = at::randn({2, 2, 4, 16}, f32);
  const at::Tensor k_pages = at::full({4, 4, 2, 16}, NAN, f32), v_pages = at::full({4, 4, 2, 8}, NAN, f32);
  const at::Tensor pages = at::tensor({2, 0, 1, 3}, i32).view({2, 2});
  for (const int64_t new_rows : {4, 2}) {
    const int64_t first = new_rows == 4 ? 0 : 4;
    const at::Tensor seqlens = at::full({2}, first + new_rows, i32);
    const at::Tensor none = ts::torch::append(k.narrow(1, first, new_rows), v.narrow(1, first, new_rows), k_pages,
                                              v_pages, seqlens, {}, {.page_table = pages});
    expect(!none.defined(), "no q_out without q");
  }
  expect(k_pages[0].narrow(0, 0, 2).equal(k[0].narrow(0, 4, 2)) && k_pages[1].equal(k[1].narrow(0, 0, 4)), "rows");
  const at::Tensor seqlens = at::full({2}, 6, i32);
  expect(near(ts::torch::attention(q, k_pages, v_pages, {}, {.seqlens_kv = seqlens, .page_table = pages}),
              ts::torch::attention(q, k, v), 1e-5),
         "attention on the pages");

  const at::Tensor angles = at::rand({8, 8}, f32), cos = angles.cos(), sin = angles.sin();
  const at::Tensor cache = at::zeros({2, 6, 2, 16}, f32);
  const auto version = cache._version();
  const at::Tensor turned =
      ts::torch::append(k.narrow(1, 4, 2), {}, cache, {}, seqlens, {}, {.rotary_cos = cos, .rotary_sin = sin, .q = q});
  const auto rotated = [&](const at::Tensor& x) {  // positions 4 and 5
    const at::Tensor c = cos.narrow(0, 4, 2).unsqueeze(1), s = sin.narrow(0, 4, 2).unsqueeze(1);
    const at::Tensor a = x.narrow(-1, 0, 8), b = x.narrow(-1, 8, 8);
    return at::cat({a * c - b * s, b * c + a * s}, -1);
  };
  expect(near(turned, rotated(q), 1e-5) && near(cache.narrow(1, 4, 2), rotated(k.narrow(1, 4, 2)), 1e-5), "rotary");
  expect(cache._version() > version, "autograd hears of what is written");

  const at::Tensor pairs = at::tensor({2, 3}, i32).view({1, 2});
  ts::torch::copy_pages({k_pages, v_pages}, pairs);
  expect(k_pages[3].equal(k_pages[2]) && v_pages[3].equal(v_pages[2]), "copy_pages");

  const at::Tensor leaf = k.narrow(1, 0, 2).clone().requires_grad_();
  expect_error(ts::ErrorCode::unsupported, "append: k_new requires grad, and has no gradient, expected detach() of it",
               [&] { ts::torch::append(leaf, {}, cache, {}, seqlens); });
  expect_error(ts::ErrorCode::invalid_argument, "append: seqlens_kv is undefined, expected a tensor",
               [&] { ts::torch::append(k, v, k, v, {}); });
  expect_error(ts::ErrorCode::invalid_argument, "append: k_new and v_new are undefined, expected one of them or both",
               [&] { ts::torch::append({}, {}, {}, {}, seqlens); });
  expect_error(ts::ErrorCode::invalid_argument, "copy_pages: pools is empty",
               [&] { ts::torch::copy_pages({}, pairs); });
}

// Caches of i8 and i4 with a scale for each row, written by append.
void test_quantized(const at::Device& device) {
  const auto f32 = at::TensorOptions(device);
  const at::Tensor k = at::randn({2, 6, 2, 16}, f32), v = at::randn({2, 6, 2, 8}, f32),
                   q = at::randn({2, 1, 4, 16}, f32);
  const at::Tensor seqlens = at::full({2}, 6, f32.dtype(at::kInt)), expected = ts::torch::attention(q, k, v);
  const auto scales = [&] { return at::zeros({2, 6, 2}, f32); };
  struct Cache {
    ts::DType dtype;
    at::ScalarType stored;
    int64_t elements;
    double tolerance;
  };
  for (const auto& [dtype, stored, elements, tolerance] :
       {Cache{ts::i8, at::kChar, 1, 0.05}, {ts::i8, at::kByte, 1, 0.05}, {ts::i4, at::kByte, 2, 0.6}}) {
    const at::Tensor k_cache = at::zeros({2, 6, 2, 16 / elements}, f32.dtype(stored)),
                     v_cache = at::zeros({2, 6, 2, 8 / elements}, f32.dtype(stored)), k_scale = scales(),
                     v_scale = scales();
    ts::torch::append(k, v, k_cache, v_cache, seqlens, {.scale_block = 1},
                      {.k_scale = k_scale, .v_scale = v_scale, .kv_dtype = dtype});
    const at::Tensor out = ts::torch::attention(q, k_cache, v_cache, {.scale_block = 1},
                                                {.k_scale = k_scale, .v_scale = v_scale, .kv_dtype = dtype});
    expect(near(out, expected, tolerance) && k_scale.gt(0).all().item<bool>(), ts::name_of(dtype));
    if (stored != at::kChar) continue;
    const at::Tensor plain = k_cache.to(at::kFloat) * k_scale.unsqueeze(-1);
    expect(near(out, ts::torch::attention(q, plain, v_cache.to(at::kFloat) * v_scale.unsqueeze(-1)), 1e-5),
           "scales times what is stored");
    expect_error(ts::ErrorCode::unsupported, "attention: q requires grad, and quantised caches have no gradients",
                 [&] { ts::torch::attention(q.clone().requires_grad_(), k_cache, v_cache); });
  }
  expect_error(ts::ErrorCode::invalid_argument,
               "attention: k has dtype f32, expected u8, whose bytes kv_dtype i4 names",
               [&] { ts::torch::attention(q, k, v, {}, {.kv_dtype = ts::i4}); });
  expect_error(ts::ErrorCode::invalid_argument, "attention: kv_dtype is f32, expected i4, i8 or f8e4m3fn",
               [&] { ts::torch::attention(q, k, v, {}, {.kv_dtype = ts::f32}); });
}

void test_merge(const at::Device& device) {
  const auto f32 = at::TensorOptions(device);
  const at::Tensor q = at::randn({2, 3, 4, 16}, f32), k = at::randn({2, 10, 4, 16}, f32),
                   v = at::randn({2, 10, 4, 8}, f32);
  const auto leaf = [](const at::Tensor& tensor) { return tensor.detach().clone().requires_grad_(); };
  const auto state = [&](int64_t first, int64_t count) {
    const auto [out, lse] = ts::torch::attention_lse(q, k.narrow(1, first, count), v.narrow(1, first, count));
    return ts::torch::TensorState{leaf(out), leaf(lse)};
  };
  // The last has no keys, and anything in its out.
  std::vector<ts::torch::TensorState> states{state(0, 4), state(4, 6), state(0, 1)};
  states[2] = {leaf(at::full({2, 3, 4, 8}, NAN, f32)),
               leaf(at::full({2, 4, 3}, -std::numeric_limits<float>::infinity(), f32))};
  const auto [out, lse] = ts::torch::merge(states);
  const auto [whole, whole_lse] = ts::torch::attention_lse(q, k, v);
  expect(near(out, whole, 1e-5) && near(lse, whole_lse, 1e-5), "the state over all keys");

  std::vector<at::Tensor> inputs;
  for (const auto& [out_i, lse_i] : {states[0], states[1]}) inputs.insert(inputs.end(), {out_i, lse_i});
  const at::Tensor of_out = at::randn({2, 3, 4, 8}, f32), of_lse = at::randn({2, 4, 3}, f32);
  const auto gradients = [&](const at::Tensor& merged, const at::Tensor& merged_lse) {
    return ::torch::autograd::grad({(merged * of_out).sum() + (merged_lse * of_lse).sum()}, inputs);
  };
  const at::Tensor lses = at::stack({inputs[1], inputs[3]}), all = lses.logsumexp(0);
  const at::Tensor weights = (lses - all).exp().transpose(-1, -2).unsqueeze(-1);
  const auto expected = gradients(weights[0] * inputs[0] + weights[1] * inputs[2], all);
  const auto got = gradients(out, lse);
  for (size_t i = 0; i < got.size(); ++i) expect(near(got[i], expected[i], 1e-5), "gradients of merge");

  const at::Tensor given = at::empty({2, 3, 4, 8}, f32);
  expect_error(ts::ErrorCode::unsupported, "merge: a state requires grad, and a call with out or lse given has no",
               [&] { ts::torch::merge(states, {}, given); });
  expect_error(ts::ErrorCode::invalid_argument, "merge: lses is undefined, expected a tensor", [&] {
    ts::torch::merge({states[0], {given, at::Tensor()}});
  });
  const at::NoGradGuard guard;
  expect(ts::torch::merge(states, {}, given).first.is_same(given) && near(given, whole, 1e-5), "out given");
  expect_error(ts::ErrorCode::invalid_argument, "merge: states is empty", [&] { ts::torch::merge({}); });
}

void test(const at::Device& device) {
  test_append(device);
  test_quantize(device);
  test_quantized(device);
  test_merge(device);
}

}  // namespace

int main() {
  test(at::kCPU);
  if (at::hasCUDA()) {
    test(at::Device(at::kCUDA, 0));
  } else {
    std::printf("libtorch finds no GPU here: the CPU alone\n");
  }
  return report();
}
