// Reads tessella_tensor into the operands of a call; checks shape, dtype, strides, device and alignment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/access.hpp"
#include "core/operand.hpp"
#include "operations/reading.hpp"
#include "tessella/tessella.h"

namespace tessella::core {

// Axes of a tensor of attention: (batch, rows, heads, head_dim); packed tensors have batch 1.
struct TensorAxes {
  int64_t batch = 1;
  int64_t rows = 0;
  int64_t heads = 1;
  int64_t head_dim = 0;
};

struct MatrixAxes {
  int64_t rows = 0;
  int64_t columns = 0;
};

// The sizes that each axis of a tensor over scores, (batch, heads_q, queries, keys), may have other than 1.
struct ScoreAxes {
  int64_t least[4];
  int64_t most[4];
  bool is_packed = false;  // queries or keys count from the first of each sequence
};

// The axes of ranges before the last two. meaning: of rows, for a message.
struct RangeAxes {
  int64_t batch, heads, rows;
  const char* meaning;
};
inline constexpr int64_t kMostRanges = 8;

// All tensors of a call lie on one device: that of the first one read that says or shows where it is.
class TensorReader {
 public:
  explicit TensorReader(const Reading& reading) : reading_(reading) {}

  const char* function() const { return function_; }

  // The device of the tensors read so far.
  Device device() const { return device_.value_or(Device{}); }

  TensorAxes attention(const char* name, const tessella_tensor* tensor, bool packed, Operand& operand);

  // (rows, columns), the last one contiguous. columns: what they count, for a message.
  MatrixAxes matrix(const char* name, const tessella_tensor* tensor, const char* columns, Operand& operand);

  // (size), contiguous: a row of one matrix.
  Operand vector(const char* name, const tessella_tensor& tensor, int64_t size, const char* meaning);

  // (batch, heads, head_dim, rows), the last one contiguous, with the flag TESSELLA_TRANSPOSED, as an operand whose
  // rows are its columns.
  Operand transposed(const char* name, const tessella_tensor& tensor, const int64_t (&shape)[4]);

  // (batch, heads, rows) with as many axes as q, or out, less one. meaning: how users know these axes.
  Operand lse(const char* name, const tessella_tensor& tensor, int32_t ndim_q, const TensorAxes& axes,
              const char* meaning);

  // Axes aligned at the right; each is 1 or within `axes`.
  ScoreOperand broadcast(const char* name, const tessella_tensor& tensor, const ScoreAxes& axes);

  // (batch or 1, queries, queries), or (queries, queries) for all.
  ScoreOperand draft_mask(const tessella_tensor& tensor, const ScoreAxes& axes);

  // One axis of `size` values of type T: int32_t, int64_t or float.
  template <typename T>
  Table<T> table(const char* name, const tessella_tensor* tensor, int64_t size, const char* meaning);

  // (batch, blocks, heads), where each axis may be 1 and leading ones may be absent. Stride 0 on axes of 1.
  Operand scale(const char* name, const tessella_tensor& tensor, const int64_t (&shape)[3]);

  // The gradient of a tensor that broadcast(), alibi() or table() has read. is_bias: its axes are (batch, heads,
  // queries, keys) aligned at the right, else (batch, heads) or (heads).
  ScoreGradient score_gradient(const char* name, const tessella_tensor& tensor, bool is_bias);

  Table<float> alibi(const tessella_tensor& tensor, int64_t batch, int64_t heads);
  // (batch, rows), or (rows) where batch is 1; packed (total). axis: what rows counts, for a message.
  Table<int32_t> per_row(const char* name, const tessella_tensor& tensor, bool packed, int64_t batch, int64_t rows,
                         const char* axis = "seqlen");

  // (batch or 1, heads or 1, rows, n, 2), of which the first two axes may be absent, n at most kMostRanges.
  RangeOperand ranges(const char* name, const tessella_tensor& tensor, const RangeAxes& axes);

  // (n, 2): n pairs of i32.
  Table<int32_t> pairs(const char* name, const tessella_tensor& tensor);

  // Any shape, dense.
  UserArray array(const char* name, const tessella_tensor& tensor);

  // (n) i32, dense.
  Bytes words(const char* name, const tessella_tensor& tensor, bool has_memory);

  // Throws if one of two is given alone.
  void together(const char* name, const tessella_tensor* tensor, const char* beside,
                const tessella_tensor* other) const;

  // Throws if the call is to write a tensor that is read-only. Null: it is absent.
  void writable(const char* name, const tessella_tensor* tensor) const;

  int64_t length(const char* name, const tessella_tensor& tensor);

  // Throws: axis `axis` (of batch, seqlen, heads, head_dim) of the tensor is `got`.
  [[noreturn]] void mismatch(const char* name, const tessella_tensor& tensor, int axes, int axis, int64_t got,
                             int64_t expected, const char* expected_name) const;
  // "; is the memory (batch, heads, seqlen, head_dim)?" where that would fit, else "".
  std::string swap_hint(const TensorAxes& q, const TensorAxes& k) const;

 private:
  struct View {
    std::byte* data = nullptr;
    DType dtype = DType::none;
    int ndim = 0;
    int64_t shape[8] = {};
    int64_t strides[8] = {};
  };
  // flags: that it may have.
  View view(const char* name, const tessella_tensor& tensor, bool has_memory = true,
            uint64_t flags = TESSELLA_READ_ONLY);
  // Holds the tensor's device against the call's. shows: its pointer tells where it is.
  void locate(const char* name, const tessella_tensor& tensor, bool shows);

  Reading reading_;
  const char* function_ = reading_.function;
  bool has_memory_ = has_operands(reading_.memory);  // false where q, k, v, out, lse and gradients need none
  bool may_be_on_a_gpu_ = reading_.devices.have_memory();
  std::optional<Device> device_;
  std::string first_;  // the tensor that decided
};

}  // namespace tessella::core
