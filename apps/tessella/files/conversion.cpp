#include "files/conversion.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "files/input_error.hpp"

namespace tessella::cli {
namespace {

bool is_integer(tessella_dtype dtype) {
  return dtype == TESSELLA_I32 || dtype == TESSELLA_I64 || dtype == TESSELLA_U8 || dtype == TESSELLA_I8;
}

bool is_row_major(const tessella_tensor& tensor) {
  int64_t stride = 1;
  for (int axis = tensor.ndim - 1; axis >= 0; --axis) {
    if (tensor.shape[axis] > 1 && tensor.strides[axis] != stride) return false;
    stride *= std::max<int64_t>(tensor.shape[axis], 1);
  }
  return true;
}

// Calls use(idx, first, stride, count) for runs of elements in row-major order: `count` of them from the idx-th on lie
// at first, first + stride, ...
template <typename Use>
void for_each_run(const tessella_tensor& tensor, int64_t most, Use use) {
  const int64_t size = num_elements(tensor);
  const bool is_one_run = tensor.ndim == 0 || is_row_major(tensor);
  const int64_t row = is_one_run ? size : tensor.shape[tensor.ndim - 1];
  const int64_t stride = is_one_run ? 1 : tensor.strides[tensor.ndim - 1];
  for (int64_t begin = 0; begin < size; begin += row) {
    const int64_t first = is_one_run ? 0 : element_index(tensor, begin);
    for (int64_t i = 0; i < row; i += most) use(begin + i, first + i * stride, stride, std::min(most, row - i));
  }
}

template <typename T>
void copy_elements(const tessella_tensor& tensor, std::byte* to) {
  const auto* from = static_cast<const std::byte*>(tensor.data);
  constexpr auto kBytes = static_cast<int64_t>(sizeof(T));
  for_each_run(tensor, INT64_MAX, [&](int64_t idx, int64_t first, int64_t stride, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(to + (idx + i) * kBytes, from + (first + i * stride) * kBytes, sizeof(T));
    }
  });
}

[[noreturn]] void fail(const Array& array, int64_t idx, double value, std::string_view expected) {
  throw InputError(fmt::format("{}: element {} is {}, {}", array.source, idx, value, expected));
}

// Stores one value of the array as an element of the result; idx: in row-major order.
void store(const Array& array, int64_t idx, double value, const Array& result) {
  void* data = result.tensor.data;
  const tessella_dtype dtype = result.tensor.dtype;
  if (dtype == TESSELLA_BOOL) {
    if (value != 0 && value != 1) fail(array, idx, value, "expected 0 or 1");
    static_cast<uint8_t*>(data)[idx] = value != 0;
  } else if (dtype == TESSELLA_I32 || dtype == TESSELLA_I64) {
    const double limit = dtype == TESSELLA_I32 ? 0x1p31 : 0x1p63;
    if (!(value >= -limit && value < limit) || value != std::floor(value)) {
      fail(array, idx, value, fmt::format("expected a whole number that fits {}", dtype_name(dtype)));
    }
    if (dtype == TESSELLA_I32) static_cast<int32_t*>(data)[idx] = static_cast<int32_t>(value);
    if (dtype == TESSELLA_I64) static_cast<int64_t*>(data)[idx] = static_cast<int64_t>(value);
  } else if (dtype == TESSELLA_F64) {
    static_cast<double*>(data)[idx] = value;
  } else {
    const auto rounded = static_cast<float>(value);
    if (std::isfinite(value) && !std::isfinite(rounded)) fail(array, idx, value, "beyond the largest f32");
    if (dtype == TESSELLA_F32) {
      static_cast<float*>(data)[idx] = rounded;
      return;
    }
    store_element(data, dtype, idx, rounded);
    if (!std::isnan(value) && load_element(data, dtype, idx) != value) {
      fail(array, idx, value, fmt::format("which {} does not hold", dtype_name(dtype)));
    }
  }
}

}  // namespace

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

void resolve_bytes(Array& array, tessella_dtype dtype, std::string_view option) {
  tessella_tensor& tensor = array.tensor;
  if (tensor.dtype == dtype) return;
  const bool is_raw = tensor.dtype == TESSELLA_DTYPE_DEFAULT && array.element_bytes == 1;
  if (tensor.dtype != TESSELLA_U8 && !is_raw) {
    throw InputError(fmt::format("{}: elements are {} ({} bytes), expected bytes, which {} {} names", array.source,
                                 array.file_type, array.element_bytes, option, dtype_name(dtype)));
  }
  tensor.dtype = dtype;
  if (dtype != TESSELLA_I4 || tensor.ndim == 0) return;
  const int last = tensor.ndim - 1;  // two elements a byte
  for (int axis = 0; axis < last; ++axis) tensor.strides[axis] *= 2;
  tensor.shape[last] *= 2;
}

void check_convertible(const Array& array, tessella_dtype dtype) {
  const tessella_dtype from = array.tensor.dtype;
  if (from == dtype) return;
  const auto expect = [&](bool is_meant, std::string_view expected) {
    if (is_meant) return;
    const bool is_raw = from == TESSELLA_DTYPE_DEFAULT && array.element_bytes == 2;
    throw InputError(fmt::format("{}: elements are {}, expected {}{}", array.source, array.file_type, expected,
                                 is_raw ? "; raw bf16 wants --dtype bf16" : ""));
  };
  if (dtype == TESSELLA_BOOL) {
    expect(is_integer(from), is_float(from) ? "bool, or integers 0 and 1; what is added to the scores is a --bias"
                                            : "bool, or integers 0 and 1");
  } else if (dtype == TESSELLA_I32 || dtype == TESSELLA_I64) {
    expect(is_integer(from) || is_float(from) || from == TESSELLA_BOOL, "whole numbers");
  } else {
    expect(is_integer(from) || is_float(from) || is_float8(from),
           from == TESSELLA_BOOL ? "numbers such as f32; true and false are a mask" : "numbers such as f32");
  }
}

Array converted(const Array& array, tessella_dtype dtype) {
  check_convertible(array, dtype);
  if (array.tensor.dtype == dtype) return array;
  const std::span shape(array.tensor.shape, static_cast<size_t>(array.tensor.ndim));
  Array result = allocate_array(array.name, dtype, shape);
  result.source = array.source;
  result.file = array.file;
  std::array<double, 1024> values;
  for_each_run(array.tensor, std::ssize(values), [&](int64_t idx, int64_t first, int64_t stride, int64_t count) {
    load_elements(array.tensor.data, array.tensor.dtype, first, stride, count, values.data());
    for (int64_t i = 0; i < count; ++i) store(array, idx + i, values[static_cast<size_t>(i)], result);
  });
  return result;
}

void copy_row_major(const Array& array, std::byte* to) {
  const tessella_tensor& tensor = array.tensor;
  if (num_elements(tensor) == 0) return;
  if (is_row_major(tensor)) {
    std::memcpy(to, tensor.data, static_cast<size_t>(num_elements(tensor) * array.element_bytes));
    return;
  }
  switch (array.element_bytes) {
    case 1: return copy_elements<uint8_t>(tensor, to);
    case 2: return copy_elements<uint16_t>(tensor, to);
    case 4: return copy_elements<uint32_t>(tensor, to);
    case 8: return copy_elements<uint64_t>(tensor, to);
    default: throw InputError(fmt::format("{}: elements are {}, expected numbers", array.source, array.file_type));
  }
}

Array with_contiguous_rows(const Array& array) {
  const int last = array.tensor.ndim - 1;
  if (last < 0 || array.tensor.strides[last] == 1 || array.tensor.shape[last] <= 1) return array;
  const auto storage = allocate(num_elements(array.tensor) * array.element_bytes);
  copy_row_major(array, static_cast<std::byte*>(storage.get()));
  Array result = array;
  result.storage = storage;
  result.tensor.data = storage.get();
  for (int64_t axis = last, stride = 1; axis >= 0; --axis) {
    result.tensor.strides[axis] = stride;
    stride *= std::max<int64_t>(result.tensor.shape[axis], 1);
  }
  return result;
}

}  // namespace tessella::cli
