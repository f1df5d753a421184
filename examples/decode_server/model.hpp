// A language model of random weights, in fp32: an embedding, layers of attention, and the likeliest next token.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory_resource>
#include <numeric>
#include <random>
#include <vector>

using Floats = std::pmr::vector<float>;
constexpr size_t kVocabulary = 256, kLayers = 3, kWidth = 128, kHeads = 4, kHeadsKv = 2, kDim = 32, kPositions = 256;

// What attention of a layer reads and writes: rows (tokens, heads, kDim).
struct Rows {
  Floats q, k, v, out;
  explicit Rows(size_t count, std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : q(count * kHeads * kDim, memory),
        k(count * kHeadsKv * kDim, memory),
        v(count * kHeadsKv * kDim, memory),
        out(count * kHeads * kDim, memory) {}
};

// Angles of rotary embeddings: (kPositions, kDim / 2) of cosines and sines.
struct Rotary {
  Floats cos, sin;
  explicit Rotary(std::pmr::memory_resource* memory = std::pmr::get_default_resource()) : cos(memory), sin(memory) {
    for (size_t i = 0; i < kPositions * kDim / 2; ++i) {
      const double column = static_cast<double>(i % (kDim / 2)), position = static_cast<double>(i / (kDim / 2));
      const double angle = position * std::pow(10000., -2 * column / kDim);
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
};

// y = x w of so many rows; w is (inputs, outputs).
inline void multiply(const float* x, size_t rows, size_t inputs, const Floats& w, float* y) {
  const size_t outputs = w.size() / inputs;
  std::fill(y, y + rows * outputs, 0.f);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t i = 0; i < inputs; ++i) {
      const float factor = x[row * inputs + i];
      for (size_t j = 0; j < outputs; ++j) y[row * outputs + j] += factor * w[i * outputs + j];
    }
  }
}

// Rows of kWidth, each divided by its root mean square.
inline Floats normalized(Floats x) {
  for (size_t row = 0; row < x.size(); row += kWidth) {
    const float* values = &x[row];
    const float factor = 1 / std::sqrt(std::inner_product(values, values + kWidth, values, 1e-6f) / kWidth);
    for (size_t i = 0; i < kWidth; ++i) x[row + i] *= factor;
  }
  return x;
}

class Model {
 public:
  Model() {
    std::mt19937 rng(1);
    const auto random = [&](size_t inputs, size_t outputs, double std) {
      std::normal_distribution<float> normal(0, static_cast<float>(std / std::sqrt(inputs)));
      Floats w(inputs * outputs);
      for (float& value : w) value = normal(rng);
      return w;
    };
    embedding_ = random(kVocabulary, kWidth, std::sqrt(kVocabulary));
    for (Layer& layer : layers_) {
      layer.q = random(kWidth, kHeads * kDim, 2);  // sharp enough that a token depends on which keys there are
      layer.k = random(kWidth, kHeadsKv * kDim, 1);
      layer.v = random(kWidth, kHeadsKv * kDim, 1);
      layer.out = random(kHeads * kDim, kWidth, 2);
    }
    head_ = random(kWidth, kVocabulary, 1);
  }

  // The last hidden row of each token. attend(layer) makes rows.out of rows.q, k and v, which begin with these tokens'.
  template <typename Attend>
  Floats forward(const std::vector<int>& tokens, Rows& rows, const Attend& attend) const {
    Floats x, y(tokens.size() * kWidth);
    for (const int token : tokens) {
      const float* row = &embedding_[static_cast<size_t>(token) * kWidth];
      x.insert(x.end(), row, row + kWidth);
    }
    for (size_t layer = 0; layer < kLayers; ++layer) {
      const Floats normal = normalized(x);
      multiply(normal.data(), tokens.size(), kWidth, layers_[layer].q, rows.q.data());
      multiply(normal.data(), tokens.size(), kWidth, layers_[layer].k, rows.k.data());
      multiply(normal.data(), tokens.size(), kWidth, layers_[layer].v, rows.v.data());
      attend(layer);
      multiply(rows.out.data(), tokens.size(), kHeads * kDim, layers_[layer].out, y.data());
      for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
    }
    return normalized(x);
  }

  // The token that is likeliest behind a hidden row, the next likeliest, and so on.
  int next_token(const float* row, size_t rank) const {
    Floats logits(kVocabulary);
    multiply(row, 1, kWidth, head_, logits.data());
    std::vector<int> order(kVocabulary);
    std::iota(order.begin(), order.end(), 0);
    const auto logit = [&](int token) { return logits[static_cast<size_t>(token)]; };
    std::nth_element(order.begin(), order.begin() + static_cast<int>(rank), order.end(),
                     [&](int a, int b) { return logit(a) > logit(b); });
    return order[rank];
  }

 private:
  struct Layer {
    Floats q, k, v, out;
  };
  Floats embedding_, head_;
  Layer layers_[kLayers];
};
