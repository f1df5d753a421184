#include "api/host_copy.hpp"

#include <algorithm>

#include "cuda/driver/memory.hpp"

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

HostCopy::HostCopy(const core::Problem& problem, Copied copied, void* stream)
    : host_(problem), device_(problem.device), stream_(stream) {
  host_.device = {};
  copy_tables();
  if (copied == Copied::tables) return;
  copy_operands();
  copy_scores();
  copy_seed();
}

void HostCopy::copy_tables() {
  core::Problem& p = host_;
  for (auto* table : {&p.seqlens_q, &p.seqlens_kv, &p.leftpad_kv, &p.prefix}) copy(*table, p.batch, 1);
  for (auto* table : {&p.cu_seqlens_q, &p.cu_seqlens_kv}) copy(*table, 1, p.batch + 1);
  if (p.page_table) copy(p.page_table, p.batch, p.seqlen_kv / p.page_size);
}

void HostCopy::copy_operands() {
  core::Problem& p = host_;
  const auto [batch_q, rows_q] = p.axes_q();
  const auto [batch_kv, rows_kv] = p.axes_kv();
  copy(p.q, batch_q, rows_q, p.heads_q, p.head_dim_qk);
  copy(p.k, batch_kv, rows_kv, p.heads_kv, p.head_dim_qk);
  copy(p.v, batch_kv, rows_kv, p.heads_kv, p.head_dim_v);
  copy(p.out, batch_q, rows_q, p.heads_q, p.head_dim_v);
  copy(p.lse, batch_q, rows_q, p.heads_q, 1);
  copy(p.document_q, batch_q, p.total_q);
  copy(p.document_kv, p.features.has(core::Feature::packed_kv) ? 1 : p.batch, p.total_kv);
}

void HostCopy::copy_scores() {
  core::Problem& p = host_;
  copy(p.bias, p.seqlen_q, p.seqlen_kv);
  copy(p.dense_mask, p.seqlen_q, p.seqlen_kv);
  if (p.block_map.data != nullptr) {
    const auto tiles = [](int64_t n, int64_t tile) { return n / tile + (n % tile != 0); };
    copy(p.block_map, tiles(p.seqlen_q, p.block_q), tiles(p.seqlen_kv, p.block_kv));
  }
  copy(p.alibi_slopes, p.batch, p.heads_q);
  copy(p.sink, 1, p.heads_q);
}

void HostCopy::copy_seed() {
  for (const auto& [data, value] : {std::pair{&host_.seed_data, &host_.seed}, {&host_.offset_data, &host_.offset}}) {
    if (*data != nullptr) cuda::copy_to_host(device_, value, *data, sizeof *value, stream_);
    *data = nullptr;
  }
}

template <typename T>
void HostCopy::copy(core::Table<T>& table, int64_t batch, int64_t count) {
  if (!table) return;
  Axis axes[] = {{batch, batch == 1 ? 0 : table.batch_stride}, {count, table.stride}};
  table.data = reinterpret_cast<const T*>(copy(table.data, sizeof(T), axes));
}

void HostCopy::copy(core::Operand& operand, int64_t batch, int64_t rows, int64_t heads, int64_t dim) {
  if (operand.data == nullptr) return;
  Axis axes[] = {{batch, operand.batch_stride}, {rows, operand.row_stride}, {heads, operand.head_stride}, {dim, 1}};
  operand.data = copy(operand.data, core::size_bytes(operand.dtype), axes);
}

void HostCopy::copy(core::ScoreOperand& operand, int64_t queries, int64_t keys) {
  if (operand.data == nullptr) return;
  Axis axes[] = {{host_.batch, operand.batch_stride},
                 {host_.heads_q, operand.head_stride},
                 {queries, operand.q_stride},
                 {keys, operand.kv_stride}};
  operand.data = copy(operand.data, core::size_bytes(operand.dtype), axes);
}

std::byte* HostCopy::copy(const void* data, int64_t element_bytes, std::span<Axis> axes) {
  const bool is_empty = std::any_of(axes.begin(), axes.end(), [](const Axis& axis) { return axis.size == 0; });
  const int64_t bytes = is_empty ? 0 : extent(axes) * element_bytes;
  // Left as it comes: pages of a large gap are never touched.
  std::byte* host = blocks_.emplace_back(new std::byte[static_cast<size_t>(bytes)]).get();
  if (is_empty) return host;
  std::sort(axes.begin(), axes.end(), [](const Axis& a, const Axis& b) { return a.stride > b.stride; });
  copy_axes(host, static_cast<const std::byte*>(data), element_bytes, axes);
  return host;
}

void HostCopy::copy_axes(std::byte* to, const std::byte* from, int64_t element_bytes, std::span<const Axis> axes) {
  if (axes.size() <= 1 || extent(axes) <= kWorthwhile * elements(axes)) {
    cuda::copy_to_host(device_, to, from, static_cast<size_t>(extent(axes) * element_bytes), stream_);
    return;
  }
  const int64_t step = axes[0].stride * element_bytes;
  for (int64_t idx = 0; idx < axes[0].size; ++idx) {
    copy_axes(to + idx * step, from + idx * step, element_bytes, axes.subspan(1));
  }
}

}  // namespace tessella::api
