// The shape of quantize and dequantize.
#pragma once

#include <cstdint>

#include "core/fields.hpp"
#include "core/shape.hpp"

namespace tessella::core {

// The shape of quantize and dequantize: rows become elements of 8 bits beside scales, and rows again.
struct QuantizeShape {
  using Self = QuantizeShape;
  static const OperationType& type();  // of quantize and dequantize

  Operation operation = Operation::quantize;
  Device device;
  OperandShape x;    // what is read
  OperandShape out;  // what is written
  int64_t batch = 0;
  int64_t seqlen = 0;  // rows of a sequence; packed: 0
  int64_t total = 0;   // rows of packed tensors; otherwise seqlen
  int64_t heads = 0;
  int64_t head_dim = 0;
  bool is_packed = false;
  bool is_transposed = false;    // the tensor of 8 bits is (batch, heads, head_dim, rows padded to whole tiles)
  int64_t scale_block = 0;       // rows of one entry of the scales; 0: all of a sequence
  bool computes_scales = false;  // else they are given
  bool batches_share = false;    // one entry of the scales for all sequences
  bool heads_share = false;      // one for all heads
  bool hadamard = false;
  int64_t mean_heads = 0;  // of the means that are written, subtracted and added, or that the shift of the LSE takes
  bool has_shift = false;  // lse_shift is written
  DType rotary = DType::none;  // of cos and sin
  int64_t rotary_dim = 0;      // columns that are rotated; 0: none
  bool rotary_interleaved = false;
  int32_t num_threads = 0;
  int32_t num_sms = 0;
  bool operator==(const QuantizeShape&) const = default;

  DType dtype() const { return x.dtype; }
  int64_t tokens() const { return is_packed ? total : batch * seqlen; }

  // f(FieldName, get, Fit) of every member; std::invoke(get, shape) is the member of a shape.
  template <typename F>
  static void fields(F&& f) {
    f(FieldName{"operation"}, &QuantizeShape::operation, Fit::equal);
    f(FieldName{"device"}, &QuantizeShape::device, Fit::equal);
    f(FieldName{"batch"}, &QuantizeShape::batch, Fit::equal);
    f(FieldName{"seqlen"}, &QuantizeShape::seqlen, Fit::at_most);
    f(FieldName{"total"}, &QuantizeShape::total, Fit::at_most);
    f(FieldName{"heads"}, &QuantizeShape::heads, Fit::equal);
    f(FieldName{"head_dim"}, &QuantizeShape::head_dim, Fit::equal);
    f(
        FieldName{"x", "dtype"}, [](auto& shape) -> auto& { return shape.x.dtype; }, Fit::equal);
    f(
        FieldName{"x", "alignment"}, [](auto& shape) -> auto& { return shape.x.alignment; }, Fit::at_least);
    f(
        FieldName{"out", "dtype"}, [](auto& shape) -> auto& { return shape.out.dtype; }, Fit::equal);
    f(
        FieldName{"out", "alignment"}, [](auto& shape) -> auto& { return shape.out.alignment; }, Fit::at_least);
    f(FieldName{"is_packed"}, &QuantizeShape::is_packed, Fit::equal);
    f(FieldName{"is_transposed"}, &QuantizeShape::is_transposed, Fit::equal);
    f(FieldName{"scale_block"}, &QuantizeShape::scale_block, Fit::equal);
    f(FieldName{"computes_scales"}, &QuantizeShape::computes_scales, Fit::equal);
    f(FieldName{"batches_share"}, &QuantizeShape::batches_share, Fit::equal);
    f(FieldName{"heads_share"}, &QuantizeShape::heads_share, Fit::equal);
    f(FieldName{"hadamard"}, &QuantizeShape::hadamard, Fit::equal);
    f(FieldName{"mean_heads"}, &QuantizeShape::mean_heads, Fit::equal);
    f(FieldName{"has_shift"}, &QuantizeShape::has_shift, Fit::equal);
    f(FieldName{"rotary_cos", "dtype"}, &QuantizeShape::rotary, Fit::equal);
    f(FieldName{"rotary_dim"}, &QuantizeShape::rotary_dim, Fit::equal);
    f(FieldName{"rotary_interleaved"}, &QuantizeShape::rotary_interleaved, Fit::equal);
    f(FieldName{"num_threads"}, &QuantizeShape::num_threads, Fit::if_given);
    f(FieldName{"num_sms"}, &QuantizeShape::num_sms, Fit::equal);
  }
};

inline const QuantizeShape& quantize(const Shape& shape) { return shape.as<QuantizeShape>(); }

}  // namespace tessella::core
