#include "operations/tensor_reader.hpp"

#include <algorithm>
#include <type_traits>

#include "core/error.hpp"
#include "core/message.hpp"

namespace tessella::core {

namespace {

template <typename T>
constexpr DType kDTypeOf = std::is_same_v<T, int32_t>   ? DType::i32
                           : std::is_same_v<T, int64_t> ? DType::i64
                                                        : DType::f32;

std::string shape_string(const int64_t* shape, int ndim) {
  std::string string = "(";
  for (int i = 0; i < ndim; ++i) string += message(i == 0 ? "" : ", ", shape[i]);
  return string + ")";
}

}  // namespace

void TensorReader::locate(const char* name, const tessella_tensor& tensor, bool shows) {
  Device found;
  if (tensor.device_type == TESSELLA_CUDA) {
    found = {DeviceType::cuda, tensor.device_id};
  } else if (tensor.device_type == TESSELLA_DEVICE_DEFAULT) {
    if (!shows) return;
    if (may_be_on_a_gpu_) found = reading_.devices.at(tensor.data);
  } else if (tensor.device_type != TESSELLA_CPU) {
    invalid(message(function_, ": ", name, ".device_type is ", tensor.device_type,
                    ", expected TESSELLA_CPU, TESSELLA_CUDA or the default"));
  }
  if (device_) {
    if (found == *device_) return;
    invalid(message(function_, ": ", name, " is on ", location(found), ", expected ", location(*device_),
                    " = the device of ", first_));
  }
  if (found.type != DeviceType::cpu) {
    if (const std::string problem = reading_.devices.problem(found); !problem.empty()) {
      unsupported(message(function_, ": ", name, " is on ", location(found), ", and ", problem));
    }
  }
  device_ = found;
  first_ = name;
}

TensorReader::View TensorReader::view(const char* name, const tessella_tensor& tensor, bool has_memory,
                                      uint64_t flags) {
  View view;
  if (tensor.ndim < 1 || tensor.ndim > 8) {
    invalid(message(function_, ": ", name, ".ndim is ", tensor.ndim, ", expected 1 to 8"));
  }
  if (tensor.dtype < TESSELLA_F64 || tensor.dtype > static_cast<int32_t>(core::kLastDType)) {
    invalid(message(function_, ": ", name, ".dtype is ", tensor.dtype, ", expected one of tessella_dtype: f64, f32, ",
                    "bf16, f16, bool, i32, i64, u8, i8, i4, f8e4m3fn, f8e5m2"));
  }
  if ((tensor.flags & TESSELLA_TRANSPOSED & ~flags) != 0) {
    invalid(message(function_, ": ", name, " has the flag TESSELLA_TRANSPOSED, expected it only for what quantize ",
                    "writes, dequantize reads, and attention reads as v"));
  }
  if ((tensor.flags & ~flags) != 0) {
    invalid(message(function_, ": ", name, ".flags is ", tensor.flags, ", expected 0 or TESSELLA_READ_ONLY",
                    (flags & TESSELLA_TRANSPOSED) != 0 ? ", with TESSELLA_TRANSPOSED or without" : ""));
  }
  for (const uint64_t word : tensor.reserved) {
    if (word != 0) invalid(message(function_, ": ", name, ".reserved is ", word, ", expected zeros"));
  }
  view.data = static_cast<std::byte*>(tensor.data);
  view.dtype = static_cast<DType>(tensor.dtype);
  view.ndim = tensor.ndim;
  const int64_t bits = core::size_bits(view.dtype);
  bool empty = false;
  int64_t step = 1;   // elements of the axes to the right, for a dense tensor
  double extent = 1;  // elements from the first to one past the last; in double, which cannot overflow
  for (int i = view.ndim - 1; i >= 0; --i) {
    const int64_t length = tensor.shape[i];
    if (length < 0) {
      invalid(message(function_, ": ", name, ".shape[", i, "] is ", length, ", expected at least 0"));
    }
    const int64_t stride = tensor.strides[i];
    if (stride < 0) {
      invalid(message(function_, ": ", name, ".strides[", i, "] is ", tensor.strides[i], ", expected at least 0"));
    }
    if (length > 1 && (stride % 8) * bits % 8 != 0 && !(i == view.ndim - 1 && stride == 1)) {
      invalid(message(function_, ": ", name, ".strides[", i, "] is ", stride, ", expected an even one for ",
                      core::name(view.dtype), ", which has two elements a byte"));
    }
    view.shape[i] = length;
    view.strides[i] = length > 1 ? stride : 0;
    empty = empty || length == 0;
    const double steps = static_cast<double>(step) * static_cast<double>(std::max<int64_t>(length, 1));
    if (length > 1) extent += static_cast<double>(stride) * static_cast<double>(length - 1);
    if (std::max(extent, steps) * static_cast<double>(bits) > 0x1p65) {
      invalid(message(function_, ": ", name, " has shape ", shape_string(tensor.shape, view.ndim),
                      ", expected one whose bytes fit in 62 bits"));
    }
    step *= std::max<int64_t>(length, 1);
  }
  if (!empty && has_memory && view.data == nullptr) {
    invalid(message(function_, ": ", name, ".data is NULL, expected memory"));
  }
  locate(name, tensor, !empty && view.data != nullptr);
  const int64_t size = bytes_of(view.dtype, 1);
  if (reinterpret_cast<uintptr_t>(view.data) % static_cast<uintptr_t>(size) != 0) {
    invalid(message(function_, ": ", name, ".data is not aligned, expected a multiple of ", size, " bytes for ",
                    core::name(view.dtype)));
  }
  return view;
}

TensorAxes TensorReader::attention(const char* name, const tessella_tensor* tensor, bool packed, Operand& operand) {
  if (tensor == nullptr) invalid(message(function_, ": ", name, " is NULL, expected a tensor"));
  const View t = view(name, *tensor, has_memory_);
  if (t.ndim < 2 || t.ndim > (packed ? 3 : 4)) {
    invalid(message(function_, ": ", name, " has shape ", shape_string(t.shape, t.ndim), ", expected ",
                    packed ? "(total, heads, head_dim) beside cu_seqlens"
                           : "(batch, seqlen, heads, head_dim), (seqlen, heads, head_dim) or (seqlen, head_dim)"));
  }
  const int last = t.ndim - 1;
  if (t.shape[last] > 1 && t.strides[last] != 1) {
    invalid(message(function_, ": ", name, ".strides[", last, "] is ", t.strides[last],
                    ", expected 1: head_dim must be contiguous"));
  }
  TensorAxes shape;
  operand = {.data = t.data, .dtype = t.dtype};
  shape.head_dim = t.shape[last];
  if (t.ndim >= 3) {
    shape.heads = t.shape[last - 1];
    operand.head_stride = t.strides[last - 1];
  }
  const int row_axis = t.ndim == 4 ? 1 : 0;
  shape.rows = t.shape[row_axis];
  operand.row_stride = t.strides[row_axis];
  if (t.ndim == 4) {
    shape.batch = t.shape[0];
    operand.batch_stride = t.strides[0];
  }
  return shape;
}

MatrixAxes TensorReader::matrix(const char* name, const tessella_tensor* tensor, const char* columns,
                                Operand& operand) {
  if (tensor == nullptr) invalid(message(function_, ": ", name, " is NULL, expected a tensor"));
  const View t = view(name, *tensor, has_memory_);
  if (t.ndim != 2) {
    invalid(message(function_, ": ", name, " has shape ", shape_string(t.shape, t.ndim), ", expected two axes, ",
                    columns, " the last"));
  }
  if (t.shape[1] > 1 && t.strides[1] != 1) {
    invalid(message(function_, ": ", name, ".strides[1] is ", t.strides[1], ", expected 1: ", columns,
                    " must be contiguous"));
  }
  operand = {.data = t.data, .dtype = t.dtype, .row_stride = t.strides[0]};
  return {t.shape[0], t.shape[1]};
}

Operand TensorReader::vector(const char* name, const tessella_tensor& tensor, int64_t size, const char* meaning) {
  const View t = view(name, tensor, has_memory_);
  if (t.ndim != 1 || t.shape[0] != size) {
    invalid(message(function_, ": ", name, " has shape ", shape_string(t.shape, t.ndim), ", expected (", size, ") = (",
                    meaning, ")"));
  }
  if (t.shape[0] > 1 && t.strides[0] != 1) {
    invalid(message(function_, ": ", name, ".strides[0] is ", t.strides[0], ", expected 1: it must be contiguous"));
  }
  return {.data = t.data, .dtype = t.dtype};
}

Operand TensorReader::transposed(const char* name, const tessella_tensor& tensor, const int64_t (&shape)[4]) {
  const View t = view(name, tensor, has_memory_, TESSELLA_READ_ONLY | TESSELLA_TRANSPOSED);
  if (t.ndim != 4 || !std::equal(shape, shape + 4, t.shape)) {
    invalid(message(function_, ": ", name, " has shape ", shape_string(t.shape, t.ndim), ", expected ",
                    shape_string(shape, 4), " = (batch, heads, head_dim, seqlen in whole tiles of 128)"));
  }
  if (t.shape[3] > 1 && t.strides[3] != 1) {
    invalid(message(function_, ": ", name, ".strides[3] is ", t.strides[3], ", expected 1: rows must be contiguous"));
  }
  return {.data = t.data,
          .dtype = t.dtype,
          .batch_stride = t.strides[0],
          .row_stride = t.strides[2],
          .head_stride = t.strides[1]};
}

Operand TensorReader::lse(const char* name, const tessella_tensor& tensor, int32_t ndim_q, const TensorAxes& axes,
                          const char* meaning) {
  const View t = view(name, tensor, has_memory_);
  const int64_t full[3] = {axes.batch, axes.heads, axes.rows};
  const int ndim = ndim_q - 1;
  const int64_t* expected = full + 3 - ndim;
  if (t.ndim != ndim || !std::equal(expected, expected + ndim, t.shape)) {
    invalid(message(function_, ": ", name, " has shape ", shape_string(t.shape, t.ndim), ", expected ",
                    shape_string(expected, ndim), " = ", meaning));
  }
  Operand operand{.data = t.data, .dtype = t.dtype};
  operand.row_stride = t.strides[ndim - 1];
  if (ndim >= 2) operand.head_stride = t.strides[ndim - 2];
  if (ndim == 3) operand.batch_stride = t.strides[0];
  return operand;
}

ScoreOperand TensorReader::broadcast(const char* name, const tessella_tensor& tensor, const ScoreAxes& axes) {
  const View t = view(name, tensor);
  bool fits = t.ndim <= 4;
  int64_t strides[4] = {};
  for (int i = 0; fits && i < t.ndim; ++i) {
    const int axis = 4 - t.ndim + i;
    fits = t.shape[i] == 1 || (t.shape[i] >= axes.least[axis] && t.shape[i] <= axes.most[axis]);
    strides[axis] = t.strides[i];
  }
  if (!fits) {
    const bool has_range = !std::equal(axes.least, axes.least + 4, axes.most);
    invalid(message(function_, ": ", name, " has shape ", shape_string(t.shape, t.ndim),
                    ", expected one that broadcasts to ", shape_string(axes.least, 4),
                    has_range ? " up to " + shape_string(axes.most, 4) : "", " = (batch, heads_q, queries, keys)",
                    axes.is_packed ? ", beside cu_seqlens those of the longest sequence up to max_seqlen" : ""));
  }
  return {t.data, t.dtype, strides[0], strides[1], strides[2], strides[3]};
}

ScoreOperand TensorReader::draft_mask(const tessella_tensor& tensor, const ScoreAxes& axes) {
  const View t = view("draft_mask", tensor);
  const int last = t.ndim - 1;
  const bool has_batch = t.ndim == 3;
  const int64_t batch = axes.most[0], least = axes.least[2], most = axes.most[2];
  const bool fits = (has_batch || t.ndim == 2) && t.shape[last] == t.shape[last - 1] && t.shape[last] >= least &&
                    t.shape[last] <= most && (!has_batch || t.shape[0] == batch || t.shape[0] == 1);
  if (!fits) {
    invalid(message(function_, ": draft_mask has shape ", shape_string(t.shape, t.ndim), ", expected (", batch,
                    " or 1, ", least, ", ", least, ") = (batch, seqlen_q, seqlen_q)",
                    axes.is_packed ? ", beside cu_seqlens that of the longest sequence up to max_seqlen_q" : ""));
  }
  return {t.data, t.dtype, has_batch ? t.strides[0] : 0, 0, t.strides[last - 1], t.strides[last]};
}

template <typename T>
Table<T> TensorReader::table(const char* name, const tessella_tensor* tensor, int64_t size, const char* meaning) {
  const View t = view(name, *tensor);
  if (t.dtype != kDTypeOf<T>) {
    invalid(message(function_, ": ", name, ".dtype is ", core::name(t.dtype), ", expected ", core::name(kDTypeOf<T>)));
  }
  if (t.ndim != 1 || t.shape[0] != size) {
    invalid(message(function_, ": ", name, " has shape ", shape_string(t.shape, t.ndim), ", expected (", size, ") = (",
                    meaning, ")"));
  }
  // An empty table still counts as given.
  static constexpr T kNone{};
  return {t.data == nullptr ? &kNone : reinterpret_cast<const T*>(t.data), t.strides[0], t.strides[0]};
}

template Table<int32_t> TensorReader::table(const char*, const tessella_tensor*, int64_t, const char*);
template Table<int64_t> TensorReader::table(const char*, const tessella_tensor*, int64_t, const char*);
template Table<float> TensorReader::table(const char*, const tessella_tensor*, int64_t, const char*);

Operand TensorReader::scale(const char* name, const tessella_tensor& tensor, const int64_t (&shape)[3]) {
  const View t = view(name, tensor);
  if (t.dtype != DType::f32) {
    invalid(message(function_, ": ", name, ".dtype is ", core::name(t.dtype), ", expected f32"));
  }
  bool fits = t.ndim <= 3;
  int64_t strides[3] = {};
  for (int i = 0; fits && i < t.ndim; ++i) {
    const int axis = 3 - t.ndim + i;
    fits = t.shape[i] == 1 || t.shape[i] == shape[axis];
    strides[axis] = t.strides[i];
  }
  if (!fits) {
    invalid(message(function_, ": ", name, " has shape ", shape_string(t.shape, t.ndim),
                    ", expected one that broadcasts to ", shape_string(shape, 3), " = (batch, blocks, heads)"));
  }
  return {t.data, t.dtype, strides[0], strides[1], strides[2]};
}

Table<float> TensorReader::alibi(const tessella_tensor& tensor, int64_t batch, int64_t heads) {
  const View t = view("alibi_slopes", tensor);
  if (t.dtype != DType::f32) {
    invalid(message(function_, ": alibi_slopes.dtype is ", core::name(t.dtype), ", expected f32"));
  }
  const bool per_head = t.ndim == 1 && t.shape[0] == heads;
  const bool per_batch = t.ndim == 2 && t.shape[0] == batch && t.shape[1] == heads;
  if (!per_head && !per_batch) {
    invalid(message(function_, ": alibi_slopes has shape ", shape_string(t.shape, t.ndim), ", expected (", heads,
                    ") or (", batch, ", ", heads, ")"));
  }
  return {reinterpret_cast<const float*>(t.data), per_batch ? t.strides[0] : 0, t.strides[t.ndim - 1]};
}

ScoreGradient TensorReader::score_gradient(const char* name, const tessella_tensor& tensor, bool is_bias) {
  const View t = view(name, tensor, has_memory_);
  int64_t strides[4] = {};
  bool is_empty = false;
  const int last = is_bias ? 3 : 1;
  for (int i = 0; i < t.ndim; ++i) {
    strides[last - (t.ndim - 1) + i] = t.strides[i];
    is_empty = is_empty || t.shape[i] == 0;
  }
  for (int i = 0; i < t.ndim && !is_empty; ++i) {
    if (t.shape[i] > 1 && t.strides[i] == 0) {
      invalid(message(function_, ": ", name, ".strides[", i, "] is 0, expected an axis of its own"));
    }
  }
  ScoreGradient gradient{{is_empty ? nullptr : t.data, t.dtype, strides[0], strides[1], strides[2], strides[3]}};
  if (is_bias) gradient.keys = t.shape[t.ndim - 1];
  if (is_bias && t.ndim > 1) gradient.queries = t.shape[t.ndim - 2];
  return gradient;
}

Table<int32_t> TensorReader::per_row(const char* name, const tessella_tensor& tensor, bool packed, int64_t batch,
                                     int64_t rows, const char* axis) {
  const View t = view(name, tensor);
  if (t.dtype != DType::i32) {
    invalid(message(function_, ": ", name, ".dtype is ", core::name(t.dtype), ", expected i32"));
  }
  const bool single = (packed || batch == 1) && t.ndim == 1 && t.shape[0] == rows;
  const bool batched = !packed && t.ndim == 2 && t.shape[0] == batch && t.shape[1] == rows;
  if (!single && !batched) {
    invalid(message(
        function_, ": ", name, " has shape ", shape_string(t.shape, t.ndim), ", expected ",
        packed ? message("(", rows, ") = (total)") : message("(", batch, ", ", rows, ") = (batch, ", axis, ")")));
  }
  return {reinterpret_cast<const int32_t*>(t.data), batched ? t.strides[0] : 0, t.strides[t.ndim - 1]};
}

RangeOperand TensorReader::ranges(const char* name, const tessella_tensor& tensor, const RangeAxes& axes) {
  const View t = view(name, tensor);
  if (t.dtype != DType::i32) {
    invalid(message(function_, ": ", name, ".dtype is ", core::name(t.dtype), ", expected i32"));
  }
  const int64_t full[] = {axes.batch, axes.heads, axes.rows};
  bool fits = t.ndim >= 3 && t.ndim <= 5 && t.shape[t.ndim - 1] == 2 && t.shape[t.ndim - 2] >= 1 &&
              t.shape[t.ndim - 2] <= kMostRanges;
  int64_t strides[3] = {};
  for (int i = 0; fits && i + 2 < t.ndim; ++i) {
    const int axis = 5 - t.ndim + i;
    fits = t.shape[i] == full[axis] || (axis < 2 && t.shape[i] == 1);
    strides[axis] = t.strides[i];
  }
  if (!fits) {
    invalid(message(function_, ": ", name, " has shape ", shape_string(t.shape, t.ndim), ", expected (", axes.batch,
                    " or 1, ", axes.heads, " or 1, ", axes.rows, ", n, 2) = (batch, heads_q, ", axes.meaning,
                    ", ranges, start and end), n from 1 to ", kMostRanges));
  }
  const int64_t count = t.shape[t.ndim - 2];
  if (t.strides[t.ndim - 1] != 1 || (count > 1 && t.strides[t.ndim - 2] != 2)) {
    invalid(message(function_, ": ", name, " has strides ", t.strides[t.ndim - 2], " and ", t.strides[t.ndim - 1],
                    " on its last two axes, expected 2 and 1: they must be dense"));
  }
  return {reinterpret_cast<const int32_t*>(t.data), strides[0], strides[1], strides[2], count};
}

Table<int32_t> TensorReader::pairs(const char* name, const tessella_tensor& tensor) {
  const View t = view(name, tensor);
  if (t.dtype != DType::i32) {
    invalid(message(function_, ": ", name, ".dtype is ", core::name(t.dtype), ", expected i32"));
  }
  if (t.ndim != 2 || t.shape[1] != 2) {
    invalid(message(function_, ": ", name, " has shape ", shape_string(t.shape, t.ndim),
                    ", expected (n, 2) = (pairs, source and target)"));
  }
  return {reinterpret_cast<const int32_t*>(t.data), t.strides[0], t.strides[1]};
}

UserArray TensorReader::array(const char* name, const tessella_tensor& tensor) {
  const View t = view(name, tensor);
  const bool is_read = t.dtype == DType::f32 || t.dtype == DType::bf16 || t.dtype == DType::f16 ||
                       t.dtype == DType::i32 || t.dtype == DType::boolean;
  if (!is_read) {
    invalid(
        message(function_, ": ", name, ".dtype is ", core::name(t.dtype), ", expected f32, bf16, f16, i32 or bool"));
  }
  UserArray array{t.data, t.dtype, 1};
  for (int i = t.ndim - 1; i >= 0; --i) {
    if (t.shape[i] > 1 && t.strides[i] != array.count) {
      invalid(message(function_, ": ", name, ".strides[", i, "] is ", t.strides[i], ", expected ", array.count,
                      ": the array must be dense"));
    }
    array.count *= t.shape[i];
  }
  return array;
}

void TensorReader::together(const char* name, const tessella_tensor* tensor, const char* beside,
                            const tessella_tensor* other) const {
  if ((tensor == nullptr) == (other == nullptr)) return;
  invalid(message(function_, ": ", tensor == nullptr ? name : beside, " is NULL, expected it beside ",
                  tensor == nullptr ? beside : name));
}

void TensorReader::writable(const char* name, const tessella_tensor* tensor) const {
  if (tensor == nullptr || reading_.memory != Memory::written || (tensor->flags & TESSELLA_READ_ONLY) == 0) return;
  invalid(message(function_, ": ", name, " is read-only, expected memory that may be written"));
}

Bytes TensorReader::words(const char* name, const tessella_tensor& tensor, bool has_memory) {
  const View t = view(name, tensor, has_memory);
  if (t.dtype != DType::i32) {
    invalid(message(function_, ": ", name, ".dtype is ", core::name(t.dtype), ", expected i32"));
  }
  if (t.ndim != 1) {
    invalid(message(function_, ": ", name, " has shape ", shape_string(t.shape, t.ndim), ", expected (n)"));
  }
  if (t.shape[0] > 1 && t.strides[0] != 1) {
    invalid(message(function_, ": ", name, ".strides[0] is ", t.strides[0], ", expected 1: it must be dense"));
  }
  return {t.data, bytes_of(t.dtype, t.shape[0])};
}

int64_t TensorReader::length(const char* name, const tessella_tensor& tensor) {
  const View t = view(name, tensor);
  if (t.ndim != 1 || t.shape[0] < 1) {
    invalid(message(function_, ": ", name, " has shape ", shape_string(t.shape, t.ndim), ", expected (batch + 1)"));
  }
  return t.shape[0];
}

void TensorReader::mismatch(const char* name, const tessella_tensor& tensor, int axes, int axis, int64_t got,
                            int64_t expected, const char* expected_name) const {
  const int own_axis = tensor.ndim == axes ? axis : axis - (axes - tensor.ndim);
  invalid(message(function_, ": ", name, ".shape[", std::max(own_axis, 0), "] is ", got, ", expected ", expected, " = ",
                  expected_name, " (layout batch, seqlen, heads, head_dim)"));
}

std::string TensorReader::swap_hint(const TensorAxes& q, const TensorAxes& k) const {
  const bool would_fit = q.rows >= 1 && k.rows >= 1 && q.rows % k.rows == 0;
  return would_fit ? "; with axes 1 and 2 swapped they would fit: is the memory (batch, heads, seqlen, head_dim)?" : "";
}

}  // namespace tessella::core
