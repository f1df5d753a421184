// TensorView: pointer, dtype, shape, strides, device. It owns nothing; the memory must outlive its use.
#pragma once

#include <cstdint>
#include <initializer_list>

#include <tessella/error.hpp>

namespace tessella {

enum class DType : int32_t {
  none = TESSELLA_DTYPE_DEFAULT,
  f64 = TESSELLA_F64,
  f32 = TESSELLA_F32,
  bf16 = TESSELLA_BF16,
  f16 = TESSELLA_F16,
  boolean = TESSELLA_BOOL,
  i32 = TESSELLA_I32,
  i64 = TESSELLA_I64,
  u8 = TESSELLA_U8,
  i8 = TESSELLA_I8,
  i4 = TESSELLA_I4,
  f8e4m3fn = TESSELLA_F8E4M3FN,
  f8e5m2 = TESSELLA_F8E5M2,
};
inline constexpr DType f64 = DType::f64;
inline constexpr DType f32 = DType::f32;
inline constexpr DType bf16 = DType::bf16;
inline constexpr DType f16 = DType::f16;
inline constexpr DType boolean = DType::boolean;
inline constexpr DType i32 = DType::i32;
inline constexpr DType i64 = DType::i64;
inline constexpr DType u8 = DType::u8;
inline constexpr DType i8 = DType::i8;
inline constexpr DType i4 = DType::i4;
inline constexpr DType f8e4m3fn = DType::f8e4m3fn;
inline constexpr DType f8e5m2 = DType::f8e5m2;

// "f32".
constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case f64: return "f64";
    case f32: return "f32";
    case bf16: return "bf16";
    case f16: return "f16";
    case boolean: return "bool";
    case i32: return "i32";
    case i64: return "i64";
    case u8: return "u8";
    case i8: return "i8";
    case i4: return "i4";
    case f8e4m3fn: return "f8e4m3fn";
    case f8e5m2: return "f8e5m2";
    case DType::none: break;
  }
  return "none";
}

// Of an element; 0 for none.
constexpr int64_t size_bits(DType dtype) {
  switch (dtype) {
    case f64:
    case i64: return 64;
    case f32:
    case i32: return 32;
    case bf16:
    case f16: return 16;
    case boolean:
    case u8:
    case i8:
    case f8e4m3fn:
    case f8e5m2: return 8;
    case i4: return 4;
    case DType::none: break;
  }
  return 0;
}

struct Device {
  tessella_device_type type = TESSELLA_DEVICE_DEFAULT;  // found out from the pointer
  int32_t id = 0;
};

class TensorView {
 public:
  TensorView() : tensor_{} {}  // absent
  explicit TensorView(const tessella_tensor& tensor) : tensor_(tensor) {}

  bool is_present() const { return tensor_.ndim != 0; }
  bool is_read_only() const { return (tensor_.flags & TESSELLA_READ_ONLY) != 0; }
  void* data() const { return tensor_.data; }
  DType dtype() const { return static_cast<DType>(tensor_.dtype); }
  int ndim() const { return tensor_.ndim; }
  int64_t shape(int axis) const { return tensor_.shape[axis]; }
  int64_t stride(int axis) const { return tensor_.strides[axis]; }
  const tessella_tensor& c_tensor() const { return tensor_; }

 private:
  tessella_tensor tensor_;
};

// Memory in row-major order, or with strides in elements (0 repeats an axis; head_dim must have stride 1).
// 1 to 8 axes, else Error(invalid_argument).
inline TensorView view(void* data, DType dtype, std::initializer_list<int64_t> shape,
                       std::initializer_list<int64_t> strides = {}, Device device = {}) {
  if (shape.size() == 0 || shape.size() > 8 || (strides.size() != 0 && strides.size() != shape.size())) {
    throw Error(ErrorCode::invalid_argument, "view: expected 1 to 8 axes, and strides for all or none of them");
  }
  tessella_tensor tensor{};
  tensor.data = data;
  tensor.dtype = static_cast<tessella_dtype>(dtype);
  tensor.ndim = static_cast<int32_t>(shape.size());
  tensor.device_type = device.type;
  tensor.device_id = device.id;
  int64_t step = 1;
  for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
    tensor.shape[axis] = shape.begin()[axis];
    tensor.strides[axis] = strides.size() != 0 ? strides.begin()[axis] : step;
    step *= tensor.shape[axis];
  }
  return TensorView(tensor);
}

// Read-only memory: an input, never an output.
inline TensorView view(const void* data, DType dtype, std::initializer_list<int64_t> shape,
                       std::initializer_list<int64_t> strides = {}, Device device = {}) {
  tessella_tensor tensor = view(const_cast<void*>(data), dtype, shape, strides, device).c_tensor();
  tensor.flags = TESSELLA_READ_ONLY;
  return TensorView(tensor);
}

// (batch, heads, seqlen, head_dim) memory seen as (batch, seqlen, heads, head_dim).
// data is void* or const void*; the shape is that of the memory.
template <typename Data>
TensorView view_bhsd(Data* data, DType dtype, std::initializer_list<int64_t> shape, Device device = {}) {
  if (shape.size() != 4) {
    throw Error(ErrorCode::invalid_argument, "view_bhsd: expected 4 axes (batch, heads, seqlen, head_dim)");
  }
  const int64_t* n = shape.begin();
  return view(data, dtype, {n[0], n[2], n[1], n[3]}, {n[1] * n[2] * n[3], n[3], n[2] * n[3], 1}, device);
}

struct PackedQkv {
  TensorView q, k, v;
};
// (batch, seqlen, 3, heads, head_dim) memory as three views.
template <typename Data>
PackedQkv view_packed_qkv(Data* data, DType dtype, int64_t batch, int64_t seqlen, int64_t heads, int64_t head_dim,
                          Device device = {}) {
  const int64_t plane = heads * head_dim;
  const tessella_tensor q =
      view(data, dtype, {batch, seqlen, heads, head_dim}, {3 * seqlen * plane, 3 * plane, head_dim, 1}, device)
          .c_tensor();
  tessella_tensor k = q;
  tessella_tensor v = q;
  k.data = static_cast<char*>(q.data) + plane * size_bits(dtype) / 8;
  v.data = static_cast<char*>(q.data) + 2 * plane * size_bits(dtype) / 8;
  return {TensorView(q), TensorView(k), TensorView(v)};
}

// A view of a DLManagedTensor (versioned: DLManagedTensorVersioned); it never calls the deleter.
inline TensorView from_dlpack(const void* managed, bool versioned) {
  tessella_tensor tensor;
  detail::check(tessella_from_dlpack(managed, versioned ? 1 : 0, &tensor));
  return TensorView(tensor);
}
// The other way; the receiver calls the deleter, which leaves the memory alone.
inline void* to_dlpack(const TensorView& tensor, bool versioned) {
  void* managed = nullptr;
  detail::check(tessella_to_dlpack(&tensor.c_tensor(), versioned ? 1 : 0, &managed));
  return managed;
}

}  // namespace tessella
