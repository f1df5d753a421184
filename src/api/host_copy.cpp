#include "api/host_copy.hpp"

#include <algorithm>
#include <type_traits>

#include "api/backends.hpp"
#include "core/environment.hpp"
#include "core/tensors.hpp"

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

void HostMemory::copy(core::ScoreOperand& operand, int64_t batch, int64_t heads, int64_t queries, int64_t keys) {
  if (operand.data == nullptr) return;
  Axis axes[] = {{batch, operand.batch_stride},
                 {heads, operand.head_stride},
                 {queries, operand.q_stride},
                 {keys, operand.kv_stride}};
  operand.data = copy(operand.data, core::size_bytes(operand.dtype), axes);
}

void HostMemory::copy(int64_t& value, const int64_t* data) {
  backend_of(device_).copy_to_host(device_, &value, data, sizeof value, stream_);
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

template <>
void HostCopy<core::AttentionArguments>::copy(Copied copied) {
  const auto copy_one = [&](auto, auto& member, auto... sizes) {
    if constexpr (std::is_same_v<decltype(member), core::ScoreOperand&>) {
      memory_.copy(member, host_.batch, host_.heads_q, sizes...);
    } else {
      memory_.copy(member, sizes...);
    }
  };
  core::length_tables(host_, copy_one);
  if (copied == Copied::tables) return;
  core::operands(host_, copy_one);
  core::score_tensors(host_, copy_one);
  for (const auto& [data, value] : {std::pair{&host_.seed_data, &host_.seed}, {&host_.offset_data, &host_.offset}}) {
    int64_t copied_value;
    if (*data == nullptr) continue;
    memory_.copy(copied_value, *data);
    *value = static_cast<uint64_t>(copied_value);
    *data = nullptr;
  }
}

template <>
void HostCopy<core::MergeArguments>::copy(Copied) {
  const auto copy_one = [&](core::Operand& operand, int64_t dim) {
    memory_.copy(operand, host_.batch, host_.seqlen, host_.heads, dim);
  };
  core::merge_inputs(host_,
                     [&](const core::FieldName&, core::Operand& operand, int64_t dim) { copy_one(operand, dim); });
  copy_one(host_.result.out, host_.head_dim);
  copy_one(host_.result.lse, 1);
}

template <>
void HostCopy<core::AppendArguments>::copy(Copied copied) {
  core::append_tables(host_, [&](const char*, core::Table<int32_t>& table, int64_t batch, int64_t count) {
    memory_.copy(table, batch, count);
  });
  if (copied == Copied::tables) return;
  core::append_operands(host_, [&](const char*, core::Operand& operand, bool, int64_t batch, int64_t rows,
                                   int64_t heads, int64_t dim) { memory_.copy(operand, batch, rows, heads, dim); });
}

template <>
void HostCopy<core::QuantizeArguments>::copy(Copied copied) {
  core::quantize_tables(host_, [&](const char*, core::Table<int32_t>& table, int64_t batch, int64_t count) {
    memory_.copy(table, batch, count);
  });
  if (copied == Copied::tables) return;
  core::quantize_operands(host_, [&](const char*, core::Operand& operand, bool, int64_t batch, int64_t rows,
                                     int64_t heads, int64_t dim) { memory_.copy(operand, batch, rows, heads, dim); });
}

template <>
void HostCopy<core::CopyPagesArguments>::copy(Copied) {
  memory_.copy(host_.pairs, host_.num_pairs, 2);
  core::copied_pools(host_, [&](const core::FieldName&, core::CopyPagesArguments::Pool& pool) {
    memory_.copy(pool.pages, host_.num_pages, pool.rows, pool.heads, pool.head_dim);
  });
}

}  // namespace tessella::api
