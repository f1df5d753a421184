// core::Problem for tests of the inside: dense ones, of which a test changes what it is about.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "cases/random.hpp"
#include "core/problem.hpp"
#include "core/sequence.hpp"
#include "reference/attention.hpp"

namespace tessella::tests {

struct Sizes {
  int64_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 1, seqlen_kv = 1, head_dim_qk = 1, head_dim_v = 1;
};

// Without memory.
inline core::Problem dense_problem(const Sizes& s, core::DType dtype) {
  core::Problem p{.dtype = dtype,
                  .out_dtype = dtype,
                  .batch = s.batch,
                  .heads_q = s.heads_q,
                  .heads_kv = s.heads_kv,
                  .head_dim_qk = s.head_dim_qk,
                  .head_dim_v = s.head_dim_v,
                  .seqlen_q = s.seqlen_q,
                  .seqlen_kv = s.seqlen_kv,
                  .total_q = s.seqlen_q,
                  .total_kv = s.seqlen_kv};
  const auto operand = [&](int64_t rows, int64_t heads, int64_t dim) {
    return core::Operand{nullptr, dtype, rows * heads * dim, heads * dim, dim};
  };
  p.q = operand(s.seqlen_q, s.heads_q, s.head_dim_qk);
  p.k = operand(s.seqlen_kv, s.heads_kv, s.head_dim_qk);
  p.v = operand(s.seqlen_kv, s.heads_kv, s.head_dim_v);
  p.out = operand(s.seqlen_q, s.heads_q, s.head_dim_v);
  p.scale = 1;
  return p;
}

// The same on a GPU, where rows start at multiples of 16 bytes.
inline core::Problem gpu_problem(const Sizes& s, core::DType dtype = core::DType::bf16) {
  core::Problem p = dense_problem(s, dtype);
  p.device = {core::DeviceType::cuda, 0};
  p.alignment = 16;
  return p;
}

// On the CPU in fp32, with random values in memory of its own.
struct OwnedProblem {
  std::vector<float> q, k, v, out, lse, bias, slopes, sinks;
  core::Problem problem;

  explicit OwnedProblem(const Sizes& s, uint64_t seed = 1) : problem(dense_problem(s, core::DType::f32)) {
    Random random(seed);
    const auto fill = [&](core::Operand& operand, std::vector<float>& values) {
      values.resize(static_cast<size_t>(s.batch * operand.batch_stride));
      for (float& value : values) value = static_cast<float>(random.normal());
      operand.data = reinterpret_cast<std::byte*>(values.data());
    };
    fill(problem.q, q);
    fill(problem.k, k);
    fill(problem.v, v);
    out.assign(static_cast<size_t>(s.batch * problem.out.batch_stride), NAN);
    lse.assign(static_cast<size_t>(s.batch * s.heads_q * s.seqlen_q), NAN);
    problem.out.data = reinterpret_cast<std::byte*>(out.data());
    problem.features = core::Feature::lse;
    problem.lse = {reinterpret_cast<std::byte*>(lse.data()), core::DType::f32, s.heads_q * s.seqlen_q, 1, s.seqlen_q};
  }
  OwnedProblem(const OwnedProblem&) = delete;
  OwnedProblem& operator=(const OwnedProblem&) = delete;

  void set_bias(const std::vector<float>& values, int64_t q_stride) {
    bias = values;
    problem.features |= core::Feature::bias;
    problem.bias = {reinterpret_cast<const std::byte*>(bias.data()), core::DType::f32, 0, 0, q_stride, 1};
  }
  void set_sink(float value) {
    sinks.assign(static_cast<size_t>(problem.heads_q), value);
    problem.features |= core::Feature::sink;
    problem.sink = {sinks.data(), 0, 1};
  }
  void set_causal() {
    problem.features |= core::Feature::window;
    problem.window_right = 0;
  }
};

struct Row {
  std::vector<double> out;
  double lse = 0;
};

inline Row reference_row(const core::Problem& p, int64_t i = 0, int64_t head = 0, int64_t batch_idx = 0) {
  Row row;
  row.out.resize(static_cast<size_t>(p.head_dim_v));
  std::vector<double> scratch(static_cast<size_t>(reference::row_scratch(p)));
  row.lse = reference::attention_row(p, core::sequence(p, batch_idx), head, i, scratch.data(), row.out.data()).lse;
  return row;
}

}  // namespace tessella::tests
