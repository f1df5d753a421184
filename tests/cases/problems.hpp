// A dense fp32 problem with its memory, for tests of the inside that build core::Problem themselves.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "cases/random.hpp"
#include "core/problem.hpp"
#include "core/sequence.hpp"
#include "reference/attention.hpp"

namespace tessella::tests {

struct Shape {
  int64_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 1, seqlen_kv = 1, head_dim_qk = 1, head_dim_v = 1;
};

struct OwnedProblem {
  std::vector<float> q, k, v, out, lse, bias, slopes, sinks;
  core::Problem problem;

  explicit OwnedProblem(const Shape& s, uint64_t seed = 1) {
    Random random(seed);
    const auto fill = [&](std::vector<float>& values, int64_t count) {
      values.resize(static_cast<size_t>(count));
      for (float& value : values) value = static_cast<float>(random.normal());
    };
    fill(q, s.batch * s.seqlen_q * s.heads_q * s.head_dim_qk);
    fill(k, s.batch * s.seqlen_kv * s.heads_kv * s.head_dim_qk);
    fill(v, s.batch * s.seqlen_kv * s.heads_kv * s.head_dim_v);
    out.assign(static_cast<size_t>(s.batch * s.seqlen_q * s.heads_q * s.head_dim_v), NAN);
    lse.assign(static_cast<size_t>(s.batch * s.heads_q * s.seqlen_q), NAN);
    core::Problem& p = problem;
    p.dtype = p.out_dtype = core::DType::f32;
    p.batch = s.batch;
    p.heads_q = s.heads_q;
    p.heads_kv = s.heads_kv;
    p.head_dim_qk = s.head_dim_qk;
    p.head_dim_v = s.head_dim_v;
    p.seqlen_q = p.total_q = s.seqlen_q;
    p.seqlen_kv = p.total_kv = s.seqlen_kv;
    p.features = core::Feature::lse;
    p.scale = 1;
    const auto operand = [](std::vector<float>& values, int64_t rows, int64_t heads, int64_t dim) {
      return core::Operand{reinterpret_cast<std::byte*>(values.data()), core::DType::f32, rows * heads * dim,
                           heads * dim, dim};
    };
    p.q = operand(q, s.seqlen_q, s.heads_q, s.head_dim_qk);
    p.k = operand(k, s.seqlen_kv, s.heads_kv, s.head_dim_qk);
    p.v = operand(v, s.seqlen_kv, s.heads_kv, s.head_dim_v);
    p.out = operand(out, s.seqlen_q, s.heads_q, s.head_dim_v);
    p.lse = {reinterpret_cast<std::byte*>(lse.data()), core::DType::f32, s.heads_q * s.seqlen_q, 1, s.seqlen_q};
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
