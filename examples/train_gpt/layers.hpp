// The layers of a GPT beside attention, without biases. Each keeps of its forward what its backward needs; backward
// writes the gradients of its parameters. Activations are dense, (tokens, width); what a layer returns lives until its
// next call.
#pragma once

#include <cmath>
#include <deque>
#include <random>
#include <vector>

#include "matmul.hpp"

using Floats = std::vector<float>;

struct Parameter {
  Floats value, gradient, mean, square;  // the last two: AdamW's moments
};

// All of a model; layers keep references.
struct Parameters {
  std::mt19937 random;
  std::deque<Parameter> all;

  Parameter& add(int size, float mean, float deviation) {
    std::normal_distribution<float> normal(mean, deviation);
    Parameter& parameter = all.emplace_back(Parameter{Floats(size), Floats(size), Floats(size), Floats(size)});
    for (float& x : parameter.value) x = normal(random);
    return parameter;
  }
};

struct Embedding {
  size_t width;
  Parameter& weight;
  Floats out;

  Embedding(int vocabulary, int columns, Parameters& parameters)
      : width(columns), weight(parameters.add(vocabulary * columns, 0, 0.05f)) {}
  const Floats& forward(const std::vector<int>& tokens) {
    out.resize(tokens.size() * width);
    for (size_t i = 0; i < out.size(); ++i) out[i] = weight.value[tokens[i / width] * width + i % width];
    return out;
  }
  void backward(const Floats& d_out, const std::vector<int>& tokens) {
    weight.gradient.assign(weight.value.size(), 0);
    for (size_t i = 0; i < d_out.size(); ++i) weight.gradient[tokens[i / width] * width + i % width] += d_out[i];
  }
};

// out = x weight
struct Linear {
  int in, width;
  Parameter& weight;
  const Floats* x = nullptr;
  Floats out, d_x;

  Linear(int rows, int columns, Parameters& parameters)
      : in(rows),
        width(columns),
        weight(parameters.add(rows * columns, 0, 0.5f / std::sqrt(static_cast<float>(rows)))) {}
  const Floats& forward(const Floats& input) {
    x = &input;
    const int rows = static_cast<int>(x->size()) / in;
    out.resize(static_cast<size_t>(rows) * width);
    parallel_multiply(out.data(), width, {x->data(), in}, {weight.value.data(), width}, rows, width, in);
    return out;
  }
  const Floats& backward(const Floats& d_out) {
    const int rows = static_cast<int>(x->size()) / in;
    const Matrix d{d_out.data(), width};
    d_x.resize(x->size());
    parallel_multiply(d_x.data(), in, d, transposed({weight.value.data(), width}), rows, in, width);
    parallel_multiply(weight.gradient.data(), width, transposed({x->data(), in}), d, in, width, rows);
    return d_x;
  }
};

struct LayerNorm {
  int width;
  Parameter& gain;
  Floats normal, inverse_deviation, out, d_x;

  LayerNorm(int columns, Parameters& parameters) : width(columns), gain(parameters.add(columns, 1, 0)) {}
  const Floats& forward(const Floats& x) {
    normal.resize(x.size());
    out.resize(x.size());
    inverse_deviation.clear();
    for (size_t first = 0; first < x.size(); first += width) {
      float mean = 0, variance = 0;
      for (int j = 0; j < width; ++j) mean += x[first + j] / width;
      for (int j = 0; j < width; ++j) variance += (x[first + j] - mean) * (x[first + j] - mean) / width;
      inverse_deviation.push_back(1 / std::sqrt(variance + 1e-5f));
      for (int j = 0; j < width; ++j) {
        normal[first + j] = (x[first + j] - mean) * inverse_deviation.back();
        out[first + j] = normal[first + j] * gain.value[j];
      }
    }
    return out;
  }
  const Floats& backward(const Floats& d_out) {
    d_x.resize(d_out.size());
    gain.gradient.assign(width, 0);
    for (size_t first = 0; first < d_out.size(); first += width) {
      float mean = 0, projection = 0;  // of the normal row's gradient: its mean, its mean product with that row
      for (int j = 0; j < width; ++j) {
        mean += d_out[first + j] * gain.value[j] / width;
        projection += d_out[first + j] * gain.value[j] * normal[first + j] / width;
        gain.gradient[j] += d_out[first + j] * normal[first + j];
      }
      for (int j = 0; j < width; ++j) {
        const float centred = d_out[first + j] * gain.value[j] - mean - normal[first + j] * projection;
        d_x[first + j] = centred * inverse_deviation[first / width];
      }
    }
    return d_x;
  }
};

// GPT-2's: 0.5 x (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct Gelu {
  const Floats* x = nullptr;
  Floats sigmoid, out, d_x;

  const Floats& forward(const Floats& input) {
    x = &input;
    sigmoid.resize(x->size());
    out.resize(x->size());
    parallel(static_cast<int>(x->size()), [&](int begin, int end) {
      for (int i = begin; i < end; ++i) {
        const float at = (*x)[i];
        sigmoid[i] = 1 / (1 + std::exp(-1.5957691f * (at + 0.044715f * at * at * at)));
        out[i] = at * sigmoid[i];
      }
    });
    return out;
  }
  const Floats& backward(const Floats& d_out) {
    d_x.resize(d_out.size());
    for (size_t i = 0; i < d_out.size(); ++i) {
      const float at = (*x)[i], slope = 1.5957691f * (1 + 3 * 0.044715f * at * at);  // of 2 u
      d_x[i] = d_out[i] * sigmoid[i] * (1 + at * (1 - sigmoid[i]) * slope);
    }
    return d_x;
  }
};
