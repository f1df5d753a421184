// The arguments of quantize and dequantize.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/access.hpp"
#include "core/arguments.hpp"
#include "core/operand.hpp"
#include "operations/quantize/shape.hpp"

namespace tessella::core {

struct QuantizeArguments : QuantizeShape {
  // (batch, seqlen, heads, head_dim). A transposed one has its columns as rows: (batch, head_dim, heads, padded rows).
  Operand from, into;             // x and out
  Operand scale;                  // (batch, ceil(rows / scale_block), heads, 1), f32; without data all are 1
  Operand mean;                   // (batch, 1, heads, head_dim), f32: of x; quantize writes it, dequantize adds it
  Operand k_mean;                 // (batch, 1, mean_heads, head_dim), f32
  Operand lse_shift;              // (batch, seqlen, heads, 1), f32
  Operand cos, sin;               // (1, positions, 1, rotary_dim / 2), f32 or the dtype of x
  int64_t positions = 0;          // that have an angle
  Table<int32_t> cu_seqlens;      // (batch + 1) first row of each sequence in the packed tensors
  Table<int32_t> rotary_offsets;  // (batch) added to positions
  uint64_t hadamard_seed = 0;
  const int32_t* cancel = nullptr;

  int64_t tensor_batch() const { return is_packed ? 1 : batch; }
  // The tensor of 8 bits, and its axes where it is transposed.
  const Operand& quantized() const { return operation == Operation::quantize ? into : from; }
  int64_t padded() const { return whole_tiles(total); }
  // Axes of the scales, of which stride 0 means one entry.
  struct Entries {
    int64_t batch, blocks, heads;
  };
  Entries scale_axes() const {
    const int64_t blocks = scale_block == 0 ? 1 : total / scale_block + (total % scale_block != 0);
    return {is_packed && blocks != 1 ? 1 : batch, blocks, heads};
  }
  // Entries of the scales that differ.
  Entries entries() const {
    const Entries axes = scale_axes();
    return {scale.batch_stride == 0 ? std::min<int64_t>(axes.batch, 1) : axes.batch,
            scale.row_stride == 0 ? std::min<int64_t>(axes.blocks, 1) : axes.blocks,
            scale.head_stride == 0 ? std::min<int64_t>(axes.heads, 1) : axes.heads};
  }
  // The scale of a row of the tensor; null: it is 1.
  float* scale_of(int64_t batch_idx, int64_t row, int64_t head) const {
    if (scale.data == nullptr) return nullptr;
    return reinterpret_cast<float*>(scale.row(batch_idx, scale_block == 0 ? 0 : row / scale_block, head));
  }

  // Fills the members of the call's shape that follow from its operands.
  void derive_shape();

  // All that the arguments point to (core/call_memory.hpp); what is absent may be left out.
  template <typename A, typename F>
  static void memory(A& a, F&& f) {
    const bool is_quantize = a.operation == Operation::quantize;
    const auto rows = [&](const char* name, auto& t, Access access, bool is_transposed) {
      if (is_transposed) {
        f(FieldName{name}, t, access, a.batch, a.head_dim, a.heads, a.padded());
      } else {
        f(FieldName{name}, t, access, a.tensor_batch(), a.total, a.heads, a.head_dim);
      }
    };
    rows("x", a.from, Access::read, a.is_transposed && !is_quantize);
    rows("out", a.into, Access::written, a.is_transposed && is_quantize);
    if (a.scale.data != nullptr) {
      const auto entries = a.entries();
      f(FieldName{"scale"}, a.scale, a.computes_scales ? Access::written : Access::read, entries.batch, entries.blocks,
        entries.heads, int64_t{1});
    }
    if (a.mean.data != nullptr) {
      f(FieldName{"mean"}, a.mean, is_quantize ? Access::written : Access::read, a.batch, int64_t{1}, a.heads,
        a.head_dim);
    }
    if (a.k_mean.data != nullptr) {
      f(FieldName{"k_mean"}, a.k_mean, Access::read, a.batch, int64_t{1}, a.mean_heads, a.head_dim);
    }
    if (a.lse_shift.data != nullptr) {
      f(FieldName{"lse_shift"}, a.lse_shift, Access::written, a.tensor_batch(), a.total, a.heads, int64_t{1});
    }
    if (a.rotary_dim > 0) {
      f(FieldName{"rotary_cos"}, a.cos, Access::read, int64_t{1}, a.positions, int64_t{1}, a.rotary_dim / 2);
      f(FieldName{"rotary_sin"}, a.sin, Access::read, int64_t{1}, a.positions, int64_t{1}, a.rotary_dim / 2);
    }
    if (a.cu_seqlens) f(FieldName{"cu_seqlens"}, a.cu_seqlens, Access::table, int64_t{1}, a.batch + 1);
    if (a.rotary_offsets) f(FieldName{"rotary_offsets"}, a.rotary_offsets, Access::table, a.batch, int64_t{1});
    f(FieldName{"cancel"}, Bytes::of(a.cancel), Access::read);
  }
};

inline const QuantizeArguments& quantize(const Arguments& arguments) { return arguments.as<QuantizeArguments>(); }

}  // namespace tessella::core
