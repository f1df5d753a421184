// What <tessella/torch/linear.hpp> does, beside torch's own layer, on the CPU and, where there is one, a GPU.
#include <cstdio>
#include <tessella/torch.hpp>
#include "expect.hpp"

namespace {

namespace ts = tessella;

bool near(const at::Tensor& got, const at::Tensor& expected, double tolerance) {
  return got.sizes() == expected.sizes() &&
         (got.numel() == 0 || (got.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>() <= tolerance);
}

void test_layer(const at::Device& device) {
  const auto f32 = at::TensorOptions(device);
  const at::Tensor w = at::randn({48, 64}, f32), bias = at::randn({48}, f32);
  for (const std::vector<int64_t>& leading :
       {std::vector<int64_t>{}, {3}, {2, 1, 4}, {2, 3}, {0}, {2, 0, 3}, {1, 1, 2}}) {
    auto shape = leading;
    shape.push_back(64);
    const at::Tensor x = at::randn(shape, f32), sums = at::linear(x, w, bias);
    expect(near(ts::torch::linear(x, w, {}, {.bias = bias}), sums, 1e-4), "leading axes");
    const auto parts = sums.chunk(2, -1);
    const at::Tensor residual = at::randn_like(parts[0]), want = at::silu(parts[0]) * parts[1] + residual;
    const ts::LinearOptions options{.activation = ts::Activation::swiglu};
    expect(near(ts::torch::linear(x, w, options, {.bias = bias, .residual = residual}), want, 1e-3), "SwiGLU");
    const auto version = residual._version();
    const at::Tensor out = ts::torch::linear(x, w, options, {.bias = bias, .residual = residual, .out = residual});
    expect(out.is_same(residual) && near(out, want, 1e-3) && out._version() > version, "in place");
  }
}

void test_weights_of_8_bits(const at::Device& device) {
  const auto f32 = at::TensorOptions(device);
  const at::Tensor x = at::randn({2, 64}, f32).to(at::kBFloat16), scale = at::rand({32}, f32) / 30;
  for (const at::ScalarType stored : {at::kChar, ts::torch::detail::type_named("Float8_e4m3fn")}) {
    if (stored == at::ScalarType::Undefined) continue;  // libtorch before 2.1
    const at::Tensor w = (at::randn({32, 64}, f32) * 30).to(stored);
    const at::Tensor out = at::empty({2, 32}, f32);
    ts::torch::linear(x, w, {}, {.w_scale = scale, .out = out});
    expect(near(out, at::linear(x.to(at::kFloat), w.to(at::kFloat) * scale.unsqueeze(-1)), 1e-4), "8 bits");
  }
}

void test_errors(const at::Device& device) {
  const auto f32 = at::TensorOptions(device);
  const at::Tensor x = at::randn({2, 3, 16}, f32), w = at::randn({8, 16}, f32);
  constexpr auto kInvalid = ts::ErrorCode::invalid_argument, kUnsupported = ts::ErrorCode::unsupported;
  expect_error(kInvalid, "linear: x is undefined, expected a tensor", [&] { ts::torch::linear({}, w); });
  expect_error(kInvalid, "linear: w is undefined, expected a tensor", [&] { ts::torch::linear(x, {}); });
  expect_error(kInvalid, "linear: w.shape[1] is 8, expected 16 = x.shape[1]", [&] {
    ts::torch::linear(x, at::randn({16, 8}, f32));
  });
  expect_error(kInvalid, "linear: x.strides[0] is 16, expected 96: the rows of the leading axes must lie at one", [&] {
    ts::torch::linear(at::randn({2, 3, 16}, f32).transpose(0, 1), w);
  });
  expect_error(kInvalid, "linear: out has other leading axes than x, expected (..., out_features) beside x", [&] {
    ts::torch::linear(x, w, {}, {.out = at::empty({3, 2, 8}, f32)});
  });
  expect_error(kInvalid, "linear: residual.shape[1] is 7, expected 8 = w.shape[0]", [&] {
    ts::torch::linear(x, w, {}, {.residual = at::empty({2, 3, 7}, f32)});
  });
  expect_error(kInvalid, "linear: out.shape[0] is 3, expected 2 = x.shape[0]", [&] {
    ts::torch::linear(x.select(1, 0), w, {}, {.out = at::empty({3, 8}, f32)});
  });
  expect_error(kUnsupported, "linear: w requires grad, and has no gradient, expected detach() of it",
               [&] { ts::torch::linear(x, w.clone().requires_grad_()); });
  const at::NoGradGuard guard;
  expect(near(ts::torch::linear(x, w.clone().requires_grad_()), at::linear(x, w), 1e-4), "without gradients");
}

void test(const at::Device& device) {
  test_layer(device);
  test_weights_of_8_bits(device);
  test_errors(device);
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
