#include "files/array.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "files/input_error.hpp"

namespace tessella::cli {
namespace {

// Pages straight from the kernel: zero without being written, so a view that nobody fills costs nothing.
std::shared_ptr<void> allocate(int64_t bytes) {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) throw MemoryError(fmt::format("cannot allocate {} bytes", bytes));
  ::madvise(data, size, MADV_HUGEPAGE);
  return {data, [size](void* memory) { ::munmap(memory, size); }};
}

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

}  // namespace

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
      throw InputError(fmt::format("{}: shape ({}) is larger than memory can be", source, fmt::join(shape, ", ")));
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

Array make_array(std::string source, std::string name, std::string file_type, const ElementType* type,
                 int64_t element_bytes, std::span<const int64_t> shape, bool column_major,
                 std::span<const std::byte> bytes, std::shared_ptr<const void> storage) {
  Array array{std::move(source), std::move(name), std::move(file_type), element_bytes, {}, std::move(storage)};
  array.tensor.dtype = type ? type->dtype : TESSELLA_DTYPE_DEFAULT;
  array.tensor.device_type = TESSELLA_CPU;
  set_shape(array.tensor, shape, column_major);
  const std::byte* data = bytes.data();
  const bool aligned = reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(element_bytes) == 0;
  if (!aligned) {
    auto copy = allocate(static_cast<int64_t>(bytes.size()));
    std::memcpy(copy.get(), data, bytes.size());
    data = static_cast<const std::byte*>(copy.get());
    array.storage = copy;
  }
  array.tensor.data = const_cast<std::byte*>(data);
  array.tensor.flags = TESSELLA_READ_ONLY;
  return array;
}

Array allocate_array(std::string name, tessella_dtype dtype, std::span<const int64_t> shape) {
  const ElementType& type = *find_element_type(dtype);
  const int64_t bytes = checked_num_elements(name, shape, type.bytes) * type.bytes;
  auto storage = allocate(bytes);
  Array array{name, name, type.name, type.bytes, {}, storage};
  array.tensor.data = storage.get();
  array.tensor.dtype = dtype;
  array.tensor.device_type = TESSELLA_CPU;
  set_shape(array.tensor, shape, false);
  return array;
}

Array array_of_numbers(std::string name, tessella_dtype dtype, std::span<const double> numbers) {
  const int64_t shape[] = {static_cast<int64_t>(numbers.size())};
  Array doubles = allocate_array(std::move(name), TESSELLA_F64, shape);
  if (!numbers.empty()) std::memcpy(doubles.tensor.data, numbers.data(), numbers.size_bytes());
  return converted(doubles, dtype);
}

void resolve_dtype(Array& array, tessella_dtype dtype) {
  const ElementType& type = *find_element_type(dtype);
  if (array.tensor.dtype == dtype) return;
  if (array.tensor.dtype != TESSELLA_DTYPE_DEFAULT || array.element_bytes != type.bytes) {
    throw InputError(fmt::format("{}: elements are {} ({} bytes), --dtype says {} ({} bytes)", array.source,
                                 array.file_type, array.element_bytes, type.name, type.bytes));
  }
  array.tensor.dtype = dtype;
}

void resolve_cache_dtype(Array& array, tessella_dtype dtype) {
  tessella_tensor& tensor = array.tensor;
  if (tensor.dtype == dtype) return;
  const bool is_raw = tensor.dtype == TESSELLA_DTYPE_DEFAULT && array.element_bytes == 1;
  if (tensor.dtype != TESSELLA_U8 && !is_raw) {
    throw InputError(fmt::format("{}: elements are {} ({} bytes), expected bytes, which --kv-dtype {} names",
                                 array.source, array.file_type, array.element_bytes, dtype_name(dtype)));
  }
  tensor.dtype = dtype;
  if (dtype != TESSELLA_I4 || tensor.ndim == 0) return;
  const int last = tensor.ndim - 1;  // two elements a byte
  for (int axis = 0; axis < last; ++axis) tensor.strides[axis] *= 2;
  tensor.shape[last] *= 2;
}

Array converted(const Array& array, tessella_dtype dtype) {
  if (array.tensor.dtype == dtype) return array;
  if (array.tensor.dtype == TESSELLA_DTYPE_DEFAULT) {
    throw InputError(fmt::format("{}: elements are {}, expected {}", array.source, array.file_type, dtype_name(dtype)));
  }
  const std::span shape(array.tensor.shape, static_cast<size_t>(array.tensor.ndim));
  Array result = allocate_array(array.name, dtype, shape);
  result.source = array.source;
  result.file = array.file;
  const bool to_integer = dtype == TESSELLA_I32 || dtype == TESSELLA_I64;
  const double limit = dtype == TESSELLA_I32 ? 0x1p31 : 0x1p63;
  for (int64_t i = 0; i < num_elements(array.tensor); ++i) {
    const double value = load_element(array.tensor.data, array.tensor.dtype, element_index(array.tensor, i));
    if (!to_integer) {
      if (std::isfinite(value) && !std::isfinite(static_cast<float>(value))) {
        throw InputError(fmt::format("{}: element {} is {}, beyond the largest f32", array.source, i, value));
      }
      store_element(result.tensor.data, dtype, i, static_cast<float>(value));
      continue;
    }
    if (!(value >= -limit && value < limit) || value != std::floor(value)) {
      throw InputError(fmt::format("{}: element {} is {}, expected a whole number that fits {}", array.source, i, value,
                                   dtype_name(dtype)));
    }
    if (dtype == TESSELLA_I32) static_cast<int32_t*>(result.tensor.data)[i] = static_cast<int32_t>(value);
    if (dtype == TESSELLA_I64) static_cast<int64_t*>(result.tensor.data)[i] = static_cast<int64_t>(value);
  }
  return result;
}

std::string shape_string(const tessella_tensor& tensor) {
  const std::span shape(tensor.shape, static_cast<size_t>(tensor.ndim));
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
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
