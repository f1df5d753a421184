#include "api/dlpack.hpp"

#include <algorithm>

#include "api/backends.hpp"
#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/message.hpp"

namespace tessella::api {
namespace {

using core::invalid;
using core::message;
using core::unsupported;

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};
struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
  bool operator==(const DLDataType&) const = default;
};
struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // elements; null = dense row-major
  uint64_t byte_offset;
};
struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor*);
};
struct DLPackVersion {
  uint32_t major;
  uint32_t minor;
};
struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned*);
  uint64_t flags;
  DLTensor dl_tensor;
};
constexpr uint64_t kReadOnlyFlag = 1;
constexpr uint64_t kPaddedFlag = 4;  // DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED

struct DTypePair {
  tessella_dtype dtype;
  DLDataType dlpack;
};
constexpr DTypePair kDTypes[] = {
    {TESSELLA_F64, {2, 64, 1}}, {TESSELLA_F32, {2, 32, 1}},      {TESSELLA_BF16, {4, 16, 1}},
    {TESSELLA_F16, {2, 16, 1}}, {TESSELLA_BOOL, {6, 8, 1}},      {TESSELLA_I32, {0, 32, 1}},
    {TESSELLA_I64, {0, 64, 1}}, {TESSELLA_U8, {1, 8, 1}},        {TESSELLA_I8, {0, 8, 1}},
    {TESSELLA_I4, {0, 4, 1}},   {TESSELLA_F8E4M3FN, {10, 8, 1}}, {TESSELLA_F8E5M2, {12, 8, 1}},
};

// A managed tensor with the memory of its own shape and strides.
template <typename Managed>
struct Exported {
  Managed managed{};
  int64_t shape[8];
  int64_t strides[8];
};

template <typename Managed>
Managed* exported(const tessella_tensor& tensor, const DLDataType& dtype) {
  auto* made = new Exported<Managed>;
  std::copy_n(tensor.shape, 8, made->shape);
  std::copy_n(tensor.strides, 8, made->strides);
  const core::Device device = tensor.device_type != TESSELLA_DEVICE_DEFAULT
                                  ? core::Device{static_cast<core::DeviceType>(tensor.device_type), tensor.device_id}
                                  : devices().at(tensor.data);
  made->managed.dl_tensor = {
      tensor.data, {static_cast<int32_t>(device.type), device.id}, tensor.ndim, dtype, made->shape, made->strides, 0};
  made->managed.manager_ctx = made;
  made->managed.deleter = [](Managed* self) { delete static_cast<Exported<Managed>*>(self->manager_ctx); };
  return &made->managed;
}

}  // namespace

tessella_tensor from_dlpack(const void* managed, bool versioned) {
  const DLTensor* t;
  tessella_tensor tensor{};
  bool is_padded = false;
  if (versioned) {
    const auto* m = static_cast<const DLManagedTensorVersioned*>(managed);
    if (m->version.major != 1) {
      unsupported(message("from_dlpack: the tensor has DLPack version ", m->version.major, ".", m->version.minor,
                          ", expected 1.x"));
    }
    t = &m->dl_tensor;
    if ((m->flags & kReadOnlyFlag) != 0) tensor.flags = TESSELLA_READ_ONLY;
    is_padded = (m->flags & kPaddedFlag) != 0;
  } else {
    t = &static_cast<const DLManagedTensor*>(managed)->dl_tensor;
  }
  if (t->ndim < 0 || t->ndim > 8) invalid(message("from_dlpack: ndim is ", t->ndim, ", expected 0 to 8"));
  // kDLCUDAHost (3), pinned memory, is the CPU's; kDLCUDAManaged (13), reachable from both, the GPU's it names.
  const int32_t device = t->device.device_type == 3    ? TESSELLA_CPU
                         : t->device.device_type == 13 ? TESSELLA_CUDA
                                                       : t->device.device_type;
  if (device != TESSELLA_CPU && device != TESSELLA_CUDA) {
    unsupported(message("from_dlpack: device type is ", t->device.device_type, ", expected CPU (1) or CUDA (2)"));
  }
  for (const DTypePair& pair : kDTypes) {
    if (pair.dlpack == t->dtype) tensor.dtype = pair.dtype;
  }
  if (tensor.dtype == TESSELLA_DTYPE_DEFAULT) {
    unsupported(message("from_dlpack: dtype has code ", int{t->dtype.code}, ", ", int{t->dtype.bits}, " bits, ",
                        t->dtype.lanes,
                        " lanes, expected f64, f32, bf16, f16, bool, i32, i64, u8, i8, i4, f8e4m3fn or f8e5m2"));
  }
  if (is_padded && tensor.dtype == TESSELLA_I4) {
    unsupported("from_dlpack: the i4 elements are padded to a byte each, expected two a byte");
  }
  tensor.data = t->data == nullptr ? nullptr : static_cast<char*>(t->data) + t->byte_offset;
  tensor.ndim = t->ndim;
  tensor.device_type = device;
  tensor.device_id = t->device.device_id;
  int64_t step = 1;
  for (int i = t->ndim - 1; i >= 0; --i) {
    tensor.shape[i] = t->shape[i];
    tensor.strides[i] = t->strides != nullptr ? t->strides[i] : step;
    step *= t->shape[i];
  }
  return tensor;
}

void* to_dlpack(const tessella_tensor& tensor, bool versioned) {
  if (tensor.ndim < 0 || tensor.ndim > 8) invalid(message("to_dlpack: ndim is ", tensor.ndim, ", expected 0 to 8"));
  const bool is_read_only = (tensor.flags & TESSELLA_READ_ONLY) != 0;
  for (const DTypePair& pair : kDTypes) {
    if (pair.dtype != tensor.dtype) continue;
    if (versioned) {
      auto* managed = exported<DLManagedTensorVersioned>(tensor, pair.dlpack);
      managed->version = {1, 1};
      managed->flags = is_read_only ? kReadOnlyFlag : 0;
      return managed;
    }
    if (is_read_only)
      invalid("to_dlpack: the tensor is read-only, expected versioned = 1: the older form cannot say so");
    return exported<DLManagedTensor>(tensor, pair.dlpack);
  }
  invalid(message("to_dlpack: dtype is ", tensor.dtype, ", expected a tessella_dtype"));
}

}  // namespace tessella::api
