// A gated MLP of a decode step: hidden += down(swiglu(gate_and_up(hidden))), with a plan for each layer, and the same
// by plain loops.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

#include <tessella/linear.hpp>

namespace ts = tessella;

constexpr int64_t kRows = 3, kHidden = 96, kInner = 256;

struct Matrix {
  int64_t rows, columns;
  std::vector<float> data;
  Matrix(int64_t r, int64_t c, float size) : rows(r), columns(c), data(static_cast<size_t>(r * c)) {
    for (size_t i = 0; i < data.size(); ++i) data[i] = size * std::sin(0.37F * static_cast<float>(i));
  }
  ts::TensorView view() { return ts::view(data.data(), ts::f32, {rows, columns}); }
  const float* row(int64_t i) const { return data.data() + i * columns; }
};

// The sum that an element of x w^T is.
double product(const Matrix& x, int64_t x_row, const Matrix& w, int64_t w_row) {
  double sum = 0;
  for (int64_t k = 0; k < x.columns; ++k) sum += static_cast<double>(x.row(x_row)[k]) * w.row(w_row)[k];
  return sum;
}

int main() try {
  Matrix hidden(kRows, kHidden, 1), inner(kRows, kInner, 0), expected = hidden, plain_inner = inner;
  Matrix gate_and_up(2 * kInner, kHidden, 0.1F), down(kHidden, kInner, 0.1F);

  const ts::LinearArgs up{.x = hidden.view(), .w = gate_and_up.view(), .out = inner.view()};
  const ts::LinearArgs back{.x = inner.view(), .w = down.view(), .residual = hidden.view(), .out = hidden.view()};
  const ts::LinearPlan first = ts::plan_linear(up, {.activation = ts::Activation::swiglu, .weights_ready = true});
  const ts::LinearPlan second = ts::plan_linear(back, {.weights_ready = true});
  std::puts(first.explain().c_str());
  first.run(up);
  second.run(back);

  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kInner; ++j) {
      const double a = product(expected, i, gate_and_up, j), b = product(expected, i, gate_and_up, kInner + j);
      plain_inner.data[static_cast<size_t>(i * kInner + j)] = static_cast<float>(a / (1 + std::exp(-a)) * b);
    }
  }
  double error = 0;
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kHidden; ++j) {
      const double value = product(plain_inner, i, down, j) + expected.row(i)[j];
      error = std::max(error, std::fabs(hidden.row(i)[j] - value) / std::max(1.0, std::fabs(value)));
    }
  }
  std::printf("largest difference to plain loops: %.1e\n", error);
  return error < 1e-5 ? 0 : 1;
} catch (const ts::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
