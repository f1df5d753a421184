// The architecture of GPT-2 with ALiBi for its positions, and AdamW.
#pragma once

#include <algorithm>

#include "attention.hpp"
#include "layers.hpp"

constexpr int kContext = 128, kLayers = 4, kHeads = 4, kWidth = 128;

inline void add(Floats& sum, const Floats& a, const Floats& b) {
  sum.resize(a.size());
  for (size_t i = 0; i < a.size(); ++i) sum[i] = a[i] + b[i];
}

struct Block {
  LayerNorm norm_1, norm_2;
  Linear qkv, projection, up, down;
  Attention attention;
  Gelu gelu;
  Floats middle, out, d_middle, d_x;

  Block(bool standard, Parameters& parameters)
      : norm_1(kWidth, parameters),
        norm_2(kWidth, parameters),
        qkv(kWidth, 3 * kWidth, parameters),
        projection(kWidth, kWidth, parameters),
        up(kWidth, 4 * kWidth, parameters),
        down(4 * kWidth, kWidth, parameters),
        attention(standard, kHeads, kWidth / kHeads) {}
  const Floats& forward(const Floats& x, int seqlen) {
    add(middle, x, projection.forward(attention.forward(qkv.forward(norm_1.forward(x)), seqlen)));
    add(out, middle, down.forward(gelu.forward(up.forward(norm_2.forward(middle)))));
    return out;
  }
  const Floats& backward(const Floats& d_out) {
    add(d_middle, d_out, norm_2.backward(up.backward(gelu.backward(down.backward(d_out)))));
    add(d_x, d_middle, norm_1.backward(qkv.backward(attention.backward(projection.backward(d_middle)))));
    return d_x;
  }
};

class Gpt {
 public:
  Gpt(int vocabulary, bool standard_attention, unsigned seed)
      : parameters_{std::mt19937(seed), {}},
        embedding_(vocabulary, kWidth, parameters_),
        norm_(kWidth, parameters_),
        head_(kWidth, vocabulary, parameters_) {
    for (int i = 0; i < kLayers; ++i) blocks_.emplace_back(standard_attention, parameters_);
  }

  // Logits (tokens, vocabulary) of sequences of seqlen tokens, one behind the other.
  const Floats& forward(const std::vector<int>& tokens, int seqlen) {
    const Floats* x = &embedding_.forward(tokens);
    for (Block& block : blocks_) x = &block.forward(*x, seqlen);
    return head_.forward(norm_.forward(*x));
  }

  // The mean cross-entropy of the last forward; its gradient by the logits is kept.
  float loss(const std::vector<int>& targets) {
    const Floats& logits = head_.out;
    const float rows = static_cast<float>(targets.size());
    const int width = head_.width;
    float loss = 0;
    d_logits_.resize(logits.size());
    for (size_t i = 0; i < targets.size(); ++i) {
      const float* x = &logits[i * width];
      float* d = &d_logits_[i * width];
      const float max = *std::max_element(x, x + width);
      float sum = 0;
      for (int j = 0; j < width; ++j) sum += d[j] = std::exp(x[j] - max);
      for (int j = 0; j < width; ++j) d[j] /= sum * rows;
      d[targets[i]] -= 1 / rows;
      loss += (std::log(sum) + max - x[targets[i]]) / rows;
    }
    return loss;
  }

  // The gradient of every parameter, after loss.
  void backward(const std::vector<int>& tokens) {
    const Floats* d = &norm_.backward(head_.backward(d_logits_));
    for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) d = &block->backward(*d);
    embedding_.backward(*d, tokens);
  }

  // A step of AdamW.
  void update(float learning_rate) {
    constexpr float beta_1 = 0.9f, beta_2 = 0.99f, decay = 0.1f;
    const float num_steps = static_cast<float>(++num_steps_);
    const float mean_weight = 1 - std::pow(beta_1, num_steps), square_weight = 1 - std::pow(beta_2, num_steps);
    for (auto& [value, gradient, mean, square] : parameters_.all) {
      for (size_t i = 0; i < value.size(); ++i) {
        mean[i] = beta_1 * mean[i] + (1 - beta_1) * gradient[i];
        square[i] = beta_2 * square[i] + (1 - beta_2) * gradient[i] * gradient[i];
        const float direction = mean[i] / mean_weight / (std::sqrt(square[i] / square_weight) + 1e-8f);
        value[i] -= learning_rate * (direction + decay * value[i]);
      }
    }
  }

 private:
  Parameters parameters_;
  Embedding embedding_;
  std::vector<Block> blocks_;
  LayerNorm norm_;
  Linear head_;
  Floats d_logits_;
  int num_steps_ = 0;
};
