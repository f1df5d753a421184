// core::AttentionArguments for tests of the inside: dense ones, of which a test changes what it is about.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "cases/random.hpp"
#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"
#include "reference/attention.hpp"

namespace tessella::tests {

struct Sizes {
  int64_t batch = 1, heads_q = 1, heads_kv = 1, seqlen_q = 1, seqlen_kv = 1, head_dim_qk = 1, head_dim_v = 1;
};

// Without memory.
inline core::AttentionArguments dense_arguments(const Sizes& s, core::DType dtype) {
  core::AttentionArguments a;
  a.batch = s.batch;
  a.heads_q = s.heads_q;
  a.heads_kv = s.heads_kv;
  a.head_dim_qk = s.head_dim_qk;
  a.head_dim_v = s.head_dim_v;
  a.seqlen_q = a.total_q = s.seqlen_q;
  a.seqlen_kv = a.total_kv = s.seqlen_kv;
  a.scale = 1;
  const auto operand = [&](core::Name name, int64_t rows, int64_t heads, int64_t dim) {
    a.tensors[name] = {nullptr, dtype, rows * heads * dim, heads * dim, dim};
    a.operands[name].dtype = dtype;
  };
  operand(core::Name::q, s.seqlen_q, s.heads_q, s.head_dim_qk);
  operand(core::Name::k, s.seqlen_kv, s.heads_kv, s.head_dim_qk);
  operand(core::Name::v, s.seqlen_kv, s.heads_kv, s.head_dim_v);
  operand(core::Name::out, s.seqlen_q, s.heads_q, s.head_dim_v);
  return a;
}

inline void set_alignment(core::AttentionShape& shape, int32_t alignment) {
  for (const core::Name name : {core::Name::q, core::Name::k, core::Name::v})
    shape.operands[name].alignment = alignment;
}

// The same on a GPU, where rows start at multiples of 16 bytes.
inline core::AttentionArguments gpu_arguments(const Sizes& s, core::DType dtype = core::DType::bf16) {
  core::AttentionArguments a = dense_arguments(s, dtype);
  a.device = {core::DeviceType::cuda, 0};
  set_alignment(a, 16);
  return a;
}

// On the CPU in fp32, with random values in memory of its own.
struct OwnedArguments {
  std::vector<float> q, k, v, out, lse, bias, slopes, sinks;
  core::AttentionArguments arguments;

  explicit OwnedArguments(const Sizes& s, uint64_t seed = 1) : arguments(dense_arguments(s, core::DType::f32)) {
    Random random(seed);
    const auto fill = [&](core::Operand& operand, std::vector<float>& values) {
      values.resize(static_cast<size_t>(s.batch * operand.batch_stride));
      for (float& value : values) value = static_cast<float>(random.normal());
      operand.data = reinterpret_cast<std::byte*>(values.data());
    };
    fill(arguments.q(), q);
    fill(arguments.k(), k);
    fill(arguments.v(), v);
    out.assign(static_cast<size_t>(s.batch * arguments.out().batch_stride), NAN);
    lse.assign(static_cast<size_t>(s.batch * s.heads_q * s.seqlen_q), NAN);
    arguments.out().data = reinterpret_cast<std::byte*>(out.data());
    arguments.features = core::Feature::lse;
    arguments.lse() = {reinterpret_cast<std::byte*>(lse.data()), core::DType::f32, s.heads_q * s.seqlen_q, 1,
                       s.seqlen_q};
  }
  OwnedArguments(const OwnedArguments&) = delete;
  OwnedArguments& operator=(const OwnedArguments&) = delete;

  void set_bias(const std::vector<float>& values, int64_t q_stride) {
    bias = values;
    arguments.features |= core::Feature::bias;
    arguments.bias = {reinterpret_cast<const std::byte*>(bias.data()), core::DType::f32, 0, 0, q_stride, 1};
  }
  void set_sink(float value) {
    sinks.assign(static_cast<size_t>(arguments.heads_q), value);
    arguments.features |= core::Feature::sink;
    arguments.sink = {sinks.data(), 0, 1};
  }
  void set_causal() {
    arguments.features |= core::Feature::window;
    arguments.window_right = 0;
  }
};

struct Row {
  std::vector<double> out;
  double lse = 0;
};

inline Row reference_row(const core::AttentionArguments& p, int64_t i = 0, int64_t head = 0, int64_t batch_idx = 0) {
  Row row;
  row.out.resize(static_cast<size_t>(p.head_dim_v));
  std::vector<double> scratch(static_cast<size_t>(reference::row_scratch(p)));
  row.lse = reference::attention_row(p, core::sequence(p, batch_idx), head, i, scratch.data(), row.out.data()).lse;
  return row;
}

}  // namespace tessella::tests
