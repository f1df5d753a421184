#include "files/array.hpp"

#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "files/input_error.hpp"

namespace tessella::cli {
namespace {

void set_shape(tessella_tensor& tensor, std::span<const int64_t> shape, bool column_major) {
  tensor.ndim = static_cast<int32_t>(shape.size());
  int64_t stride = 1;
  for (size_t step = 0; step < shape.size(); ++step) {
    const size_t axis = column_major ? step : shape.size() - 1 - step;
    tensor.shape[axis] = shape[axis];
    tensor.strides[axis] = stride;
    stride *= std::max<int64_t>(shape[axis], 1);
  }
}

// From the other byte order.
void swap_bytes(std::byte* elements, int64_t count, int64_t size) {
  for (int64_t i = 0; i < count; ++i, elements += size) std::reverse(elements, elements + size);
}

}  // namespace

Array::Array() = default;
Array::Array(const Array& other) = default;
Array::Array(Array&& other) noexcept = default;
Array& Array::operator=(const Array& other) = default;
Array& Array::operator=(Array&& other) noexcept = default;
Array::~Array() = default;

std::shared_ptr<void> allocate(int64_t bytes) {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw MemoryError(fmt::format("cannot allocate {} bytes", bytes));
  ::madvise(data, size, MADV_HUGEPAGE);
  return {data, [size](void* memory) { ::munmap(memory, size); }};
}

int64_t checked_num_elements(const std::string& source, std::span<const int64_t> shape, int64_t element_bytes) {
  if (shape.size() > 8)
    throw InputError(fmt::format("{}: array has {} axes, expected at most 8", source, shape.size()));
  // Empty axes do not excuse absurd ones: strides are products of all extents.
  const int64_t limit = std::numeric_limits<int64_t>::max() / 2 / std::max<int64_t>(element_bytes, 1);
  int64_t size = 1;
  bool empty = false;
  for (const int64_t extent : shape) {
    if (extent < 0) throw InputError(fmt::format("{}: shape has an extent of {}, expected 0 or more", source, extent));
    empty |= extent == 0;
    if (extent > 0 && size > limit / extent) {
      throw InputError(fmt::format("{}: shape ({}) is larger than memory can be", source, extents_string(shape)));
    }
    size *= std::max<int64_t>(extent, 1);
  }
  return empty ? 0 : size;
}

int64_t num_elements(const tessella_tensor& tensor) {
  int64_t size = 1;
  for (int axis = 0; axis < tensor.ndim; ++axis) size *= tensor.shape[axis];
  return size;
}

Array described_array(std::string source, std::string name, const StoredType& type, std::span<const int64_t> shape,
                      bool column_major) {
  const ElementType* element = find_element_type(type.dtype);
  const int64_t bytes = element ? element->bytes : type.bytes;
  checked_num_elements(source, shape, std::max(bytes, type.bytes));
  Array array;
  array.source = std::move(source);
  array.name = std::move(name);
  array.file_type = type.name;
  array.element_bytes = bytes;
  array.tensor.dtype = type.dtype;
  array.tensor.device_type = TESSELLA_CPU;
  set_shape(array.tensor, shape, column_major);
  return array;
}

void set_elements(Array& array, const StoredType& type, SharedBytes elements) {
  const int64_t count = num_elements(array.tensor);
  const std::byte* data = elements.bytes.data();
  const bool is_aligned = reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(type.bytes) == 0;
  if (!is_aligned || type.is_big_endian) {
    auto copy = allocate(count * type.bytes);
    if (!elements.bytes.empty()) std::memcpy(copy.get(), data, elements.bytes.size());
    if (type.is_big_endian) swap_bytes(static_cast<std::byte*>(copy.get()), count, type.bytes);
    data = static_cast<const std::byte*>(copy.get());
    elements.storage = std::move(copy);
  }
  if (type.widen != nullptr) {
    auto wide = allocate(count * array.element_bytes);
    type.widen(array.source, data, count, wide.get());
    data = static_cast<const std::byte*>(wide.get());
    elements.storage = std::move(wide);
  }
  array.tensor.data = const_cast<std::byte*>(data);
  array.tensor.flags = TESSELLA_READ_ONLY;
  array.storage = std::move(elements.storage);
}

Array allocate_array(std::string name, tessella_dtype dtype, std::span<const int64_t> shape) {
  const ElementType& type = *find_element_type(dtype);
  const int64_t bytes = checked_num_elements(name, shape, type.bytes) * type.bytes;
  auto storage = allocate(bytes);
  Array array;
  array.source = name;
  array.name = std::move(name);
  array.file_type = type.name;
  array.element_bytes = type.bytes;
  array.tensor.data = storage.get();
  array.tensor.dtype = dtype;
  array.tensor.device_type = TESSELLA_CPU;
  set_shape(array.tensor, shape, false);
  array.storage = std::move(storage);
  return array;
}

std::string extents_string(std::span<const int64_t> shape) {
  std::string string;
  for (const int64_t extent : shape) string += fmt::format("{}{}", string.empty() ? "" : ", ", extent);
  return string;
}

std::string shape_string(const tessella_tensor& tensor) {
  const std::span shape(tensor.shape, static_cast<size_t>(tensor.ndim));
  return fmt::format("({}{})", extents_string(shape), shape.size() == 1 ? "," : "");
}

int64_t element_index(const tessella_tensor& tensor, int64_t i) {
  int64_t index = 0;
  for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
    index += i % tensor.shape[axis] * tensor.strides[axis];
    i /= tensor.shape[axis];
  }
  return index;
}

}  // namespace tessella::cli
