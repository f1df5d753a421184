#include "api/host_copy.hpp"

#include <algorithm>

#include "api/backends.hpp"
#include "core/environment.hpp"

namespace tessella::api {
namespace {

// Copying gaps is cheaper than a copy for every row, up to a point.
constexpr int64_t kWorthwhile = 8;

template <typename Axes>
int64_t extent(const Axes& axes) {
  int64_t last = 0;
  for (const auto& axis : axes) last += (axis.size - 1) * axis.stride;
  return last + 1;
}

template <typename Axes>
int64_t elements(const Axes& axes) {
  int64_t count = 1;
  for (const auto& axis : axes) count *= axis.stride == 0 ? 1 : axis.size;
  return count;
}

}  // namespace

bool checks_values(core::Device device, int32_t option) {
  const bool is_asked = core::environment_check_device_values() || option != 0;
  return is_asked && device.type != core::DeviceType::cpu;
}

template <typename T>
void HostMemory::copy(core::Table<T>& table, int64_t batch, int64_t count) {
  if (!table) return;
  Axis axes[] = {{batch, batch == 1 ? 0 : table.batch_stride}, {count, table.stride}};
  table.data = reinterpret_cast<const T*>(copy(table.data, sizeof(T), axes));
}
template void HostMemory::copy(core::Table<int32_t>&, int64_t, int64_t);
template void HostMemory::copy(core::Table<float>&, int64_t, int64_t);

void HostMemory::copy(core::Operand& operand, int64_t batch, int64_t rows, int64_t heads, int64_t dim) {
  if (operand.data == nullptr) return;
  // Two elements of i4 are a byte, and that is what is copied.
  const int64_t bits = core::size_bits(operand.dtype), in_unit = bits < 8 ? 8 / bits : 1;
  Axis axes[] = {{batch, operand.batch_stride / in_unit},
                 {rows, operand.row_stride / in_unit},
                 {heads, operand.head_stride / in_unit},
                 {(dim + in_unit - 1) / in_unit, 1}};
  operand.data = copy(operand.data, bits * in_unit / 8, axes);
}

template <typename Byte>
void HostMemory::copy(core::ScoreTensor<Byte>& tensor, int64_t batch, int64_t heads, int64_t queries, int64_t keys) {
  if (tensor.data == nullptr) return;
  Axis axes[] = {
      {batch, tensor.batch_stride}, {heads, tensor.head_stride}, {queries, tensor.q_stride}, {keys, tensor.kv_stride}};
  tensor.data = copy(tensor.data, core::size_bytes(tensor.dtype), axes);
}
template void HostMemory::copy(core::ScoreTensor<std::byte>&, int64_t, int64_t, int64_t, int64_t);
template void HostMemory::copy(core::ScoreTensor<const std::byte>&, int64_t, int64_t, int64_t, int64_t);

void HostMemory::copy(core::RangeOperand& ranges, int64_t batch, int64_t heads, int64_t rows) {
  if (ranges.data == nullptr) return;
  Axis axes[] = {
      {batch, ranges.batch_stride}, {heads, ranges.head_stride}, {rows, ranges.row_stride}, {2 * ranges.count, 1}};
  ranges.data = reinterpret_cast<const int32_t*>(copy(ranges.data, sizeof(int32_t), axes));
}

void HostMemory::copy(const int64_t*& value) {
  if (value == nullptr) return;
  Axis axes[] = {{1, 0}};
  value = reinterpret_cast<const int64_t*>(copy(value, sizeof *value, axes));
}

std::byte* HostMemory::copy(const void* data, int64_t element_bytes, std::span<Axis> axes) {
  const bool is_empty = std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.size == 0; });
  const int64_t bytes = is_empty ? 0 : extent(axes) * element_bytes;
  // Left as it comes: pages of a large gap are never touched.
  std::byte* host = blocks_.emplace_back(new std::byte[static_cast<size_t>(bytes)]).get();
  if (is_empty) return host;
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride > b.stride; });
  copy_axes(host, static_cast<const std::byte*>(data), element_bytes, axes);
  return host;
}

void HostMemory::copy_axes(std::byte* to, const std::byte* from, int64_t element_bytes, std::span<const Axis> axes) {
  if (axes.size() <= 1 || extent(axes) <= kWorthwhile * elements(axes)) {
    backend_of(device_).copy_to_host(device_, to, from, static_cast<size_t>(extent(axes) * element_bytes), stream_);
    return;
  }
  const int64_t step = axes[0].stride * element_bytes;
  for (int64_t idx = 0; idx < axes[0].size; ++idx) {
    copy_axes(to + idx * step, from + idx * step, element_bytes, axes.subspan(1));
  }
}

}  // namespace tessella::api
