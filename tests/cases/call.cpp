#include "cases/call.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string_view>

#include "cases/tensor_elements.hpp"
#include "cases/tensor_places.hpp"
#include "portable/band.hpp"
#include "portable/sequence_rows.hpp"

namespace tessella::tests {
namespace {

bool runs_on_gpu(const Case& c) {
  if (c.kernel.empty()) return c.device == "cuda";
  for (int32_t idx = 0; idx < tessella_kernel_count(); ++idx) {
    tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
    if (tessella_kernel_describe(idx, &info) == TESSELLA_OK && c.kernel == info.name) {
      return std::string_view(info.device) == "cuda";
    }
  }
  return false;
}

}  // namespace

Call::Call(const Case& c) : c_(c), is_on_gpu_(runs_on_gpu(c)) {
  Random random(c.seed);
  if (c_.page_size > 0) c_.seqlen_kv = (c_.seqlen_kv + c_.page_size - 1) / c_.page_size * c_.page_size;
  make_lengths(random);
  if (c_.page_size > 0) make_pages(random);
  if (c_.cache_batch_idx) make_slots(random);
  make_operands(random);
  make_masks(random);
  const bool has_element_masks =
      c_.document || !(c_.dense + c_.block_map + c_.draft_mask + c_.key_ranges + c_.query_ranges).empty();
  if (c_.masked_nan) spoil_queries_of_no_key();
  if (c_.masked_nan && has_element_masks) spoil_keys_of_no_query();
  make_scores(random);
  make_options();
  if (c_.transposed_v) transpose_v();
}

Placement Call::placement() const { return c_.guard ? Placement::guarded : Placement::aligned; }

int64_t Call::rows_q(int64_t b) const {
  return c_.packed_q ? lengths_.cu_q[static_cast<size_t>(b) + 1] - lengths_.cu_q[static_cast<size_t>(b)] : c_.seqlen_q;
}
int64_t Call::slots_kv(int64_t b) const {
  return c_.packed_kv ? lengths_.cu_kv[static_cast<size_t>(b) + 1] - lengths_.cu_kv[static_cast<size_t>(b)]
                      : c_.seqlen_kv;
}
int64_t Call::first_q(int64_t b) const { return c_.packed_q ? lengths_.cu_q[static_cast<size_t>(b)] : 0; }
Call::Row Call::row_kv(int64_t b, int64_t slot) const {
  if (c_.packed_kv) return {0, lengths_.cu_kv[static_cast<size_t>(b)] + slot};
  if (c_.cache_batch_idx) return {lengths_.slots[static_cast<size_t>(b)], slot};
  if (c_.page_size == 0) return {b, slot};
  const int64_t pages = c_.seqlen_kv / c_.page_size;
  return {lengths_.pages[static_cast<size_t>(b * pages + slot / c_.page_size)], slot % c_.page_size};
}
int64_t Call::key_begin(int64_t b) const { return c_.leftpad_kv ? lengths_.leftpad[static_cast<size_t>(b)] : 0; }
int64_t Call::key_end(int64_t b) const {
  return c_.seqlens_kv ? lengths_.used_kv[static_cast<size_t>(b)] : slots_kv(b);
}

int64_t Call::queries(int64_t b) const { return c_.seqlens_q ? lengths_.used_q[static_cast<size_t>(b)] : rows_q(b); }

portable::Band Call::band(int64_t b) const {
  return {.seqlen_q = queries(b),
          .seqlen_kv = key_end(b) - key_begin(b),
          .window_left = c_.window_left,
          .window_right = c_.window_right,
          .chunk = c_.chunk,
          .keep_first = c_.keep_first,
          .causal_top_left = c_.causal_top_left};
}

bool Call::hidden_from_all(int64_t b, int64_t slot) const {
  if (slot < key_begin(b) || slot >= key_end(b)) return true;
  if (!c_.masked_nan || c_.prefix) return false;
  const portable::Band of_sequence = band(b);
  for (int64_t i = 0; i < queries(b); ++i) {
    if (of_sequence.visible(i, slot - key_begin(b))) return false;
  }
  return true;
}

void Call::make_lengths(Random& random) {
  const auto batch = static_cast<size_t>(c_.batch);
  const auto cumulative = [&](std::vector<int32_t>& cu, int64_t longest) {
    cu.assign(batch + 1, 0);
    const int64_t full = c_.batch > 0 ? random.below(c_.batch) : 0;
    for (size_t b = 0; b < batch; ++b) {
      cu[b + 1] = cu[b] + static_cast<int32_t>(static_cast<int64_t>(b) == full ? longest : random.in(0, longest));
    }
    const int64_t rest = random.in(0, 2);  // rows of no sequence
    // No bound says "none" to a GPU: a score tensor without rows then fits a tensor without rows only.
    return cu.back() + (is_on_gpu_ && longest == 0 ? 0 : rest);
  };
  total_q_ = c_.packed_q ? cumulative(lengths_.cu_q, c_.seqlen_q) : c_.seqlen_q;
  total_kv_ = c_.packed_kv ? cumulative(lengths_.cu_kv, c_.seqlen_kv) : c_.seqlen_kv;
  for (int64_t b = 0; b < c_.batch; ++b) {
    lengths_.used_q.push_back(static_cast<int32_t>(random.in(0, rows_q(b))));
    lengths_.used_kv.push_back(static_cast<int32_t>(random.in(0, slots_kv(b))));
    const int64_t end = c_.seqlens_kv ? lengths_.used_kv.back() : slots_kv(b);
    lengths_.leftpad.push_back(static_cast<int32_t>(random.chance(0.1) ? end : random.in(0, end) / 2));
  }
  if (c_.packed_q) args_.cu_seqlens_q = table(lengths_.cu_q);
  if (c_.packed_kv) args_.cu_seqlens_kv = table(lengths_.cu_kv);
  if (c_.seqlens_q) args_.seqlens_q = table(lengths_.used_q);
  if (c_.seqlens_kv) args_.seqlens_kv = table(lengths_.used_kv);
  if (c_.leftpad_kv) args_.leftpad_kv = table(lengths_.leftpad);
}

namespace {

// What tables say of sequences and pages without a valid key.
constexpr int32_t kNonsense[] = {-1, INT32_MIN, INT32_MAX, 1 << 20};

std::vector<int32_t> random_order(Random& random, int64_t count) {
  std::vector<int32_t> order(static_cast<size_t>(count));
  for (size_t at = 0; at < order.size(); ++at) {
    order[at] = static_cast<int32_t>(at);
    std::swap(order[at], order[static_cast<size_t>(random.below(static_cast<int64_t>(at) + 1))]);
  }
  return order;
}

}  // namespace

// Slots in random order, and two that are nobody's. Some sequences read the slot of the one before.
void Call::make_slots(Random& random) {
  num_slots_ = c_.batch + 2;
  const std::vector<int32_t> order = random_order(random, num_slots_);
  for (int64_t b = 0; b < c_.batch; ++b) {
    const bool has_keys = key_begin(b) < key_end(b);
    const bool shares = b > 0 && !c_.masked_nan && random.chance(0.2);
    const int32_t own = order[static_cast<size_t>(b)];
    lengths_.slots.push_back(!has_keys ? random.one_of(kNonsense) : own);
    if (const int32_t before = b > 0 ? lengths_.slots[static_cast<size_t>(b) - 1] : -1; has_keys && shares) {
      if (before >= 0 && before < num_slots_) lengths_.slots.back() = before;
    }
  }
  args_.cache_batch_idx = table(lengths_.slots);
}

// Pages in random order, and one that is nobody's. What the table says of pages without a valid key is nonsense. Those
// that the band hides from all queries are evicted, and page 0 is then nobody's.
void Call::make_pages(Random& random) {
  const int64_t pages = c_.seqlen_kv / c_.page_size;
  num_pages_ = c_.batch * pages + 1;
  const std::vector<int32_t> order = random_order(random, num_pages_);
  std::vector<int32_t> evicted;
  const auto is_hidden = [&](int64_t b, int64_t page) {
    for (int64_t slot = page * c_.page_size; slot < (page + 1) * c_.page_size; ++slot) {
      if (!hidden_from_all(b, slot)) return false;
    }
    return true;
  };
  for (int64_t b = 0; b < c_.batch; ++b) {
    for (int64_t page = 0; page < pages; ++page) {
      const bool is_used =
          key_begin(b) < key_end(b) && (page + 1) * c_.page_size > key_begin(b) && page * c_.page_size < key_end(b);
      const int32_t own = order[static_cast<size_t>(b * pages + page)];
      lengths_.pages.push_back(!is_used ? random.one_of(kNonsense) : is_hidden(b, page) ? -1 : own);
      if (lengths_.pages.back() == -1 && is_used) evicted.push_back(own);
    }
  }
  if (!evicted.empty()) std::replace(lengths_.pages.begin(), lengths_.pages.end(), 0, evicted[0]);
  args_.page_table = own(TESSELLA_TENSOR2(lengths_.pages.data(), TESSELLA_I32, c_.batch, pages));
}

const tessella_tensor* Call::own(const tessella_tensor& tensor) {
  return tensors_.emplace_back(std::make_unique<tessella_tensor>(tensor)).get();
}

const tessella_tensor* Call::table(std::vector<int32_t>& values) {
  return own(TESSELLA_TENSOR1(values.data(), TESSELLA_I32, static_cast<int64_t>(values.size())));
}

void Call::make_view(View& view, int32_t dtype, int64_t batch, int64_t rows, int64_t heads, int64_t dim,
                     bool has_gaps) {
  int64_t head = dim;
  int64_t row = heads * dim;
  int64_t sequence = rows * row;
  if (has_gaps) {
    const int64_t step = dtype == TESSELLA_I4 ? 32 : 16 / size_of(dtype);  // elements of 16 bytes
    head = (dim + step - 1) / step * step + step;
    row = heads * head;
    sequence = rows * row;
  } else if (c_.layout == "bhsd") {
    row = dim;
    head = rows * dim;
    sequence = heads * head;
  } else if (c_.layout == "sliced" || c_.layout == "qkv") {
    const int64_t gap = dtype == TESSELLA_I4 ? 2 : 1;
    head = dim + 3 * gap;
    row = heads * head + 5 * gap;
    sequence = rows * row + 7 * gap;
  } else if (c_.layout == "gaps") {
    const int64_t gap = dtype == TESSELLA_I4 ? 32 : 16;
    head = dim + gap;
    row = heads * head + gap;
    sequence = rows * row + gap;
  } else if (c_.layout == "huge") {
    row += int64_t{1} << 28;
    sequence = rows * row;
  }
  tessella_tensor& t = view.tensor;
  t.dtype = dtype;
  if (batch < 0) {
    t.ndim = 3;
    const int64_t shape[] = {rows, heads, dim}, strides[] = {row, head, 1};
    std::copy_n(shape, 3, t.shape);
    std::copy_n(strides, 3, t.strides);
  } else {
    t.ndim = 4;
    const int64_t shape[] = {batch, rows, heads, dim}, strides[] = {sequence, row, head, 1};
    std::copy_n(shape, 4, t.shape);
    std::copy_n(strides, 4, t.strides);
  }
  const bool huge = c_.layout == "huge";
  view.memory = Memory(static_cast<size_t>(bytes_of(dtype, c_.shift + extent(t) + (has_gaps ? head - dim : 0))),
                       huge ? Placement::reserved : placement());
  if (!huge) std::memset(view.memory.data(), kPoison, view.memory.size());
  t.data = view.memory.data() + bytes_of(dtype, c_.shift);
}

namespace {
constexpr double kFloat8Step = 1.0 / 16;  // numbers of fp8 beside scales have a standard deviation of its inverse
}

double Call::drawn(double mean, double spread, Random& random) const {
  const double value = mean + spread * random.normal();
  if (!c_.outliers) return value;
  return random.chance(0.02) ? std::copysign(1e6, value) : random.chance(0.05) ? 0 : value;
}

void Call::make_operands(Random& random) {
  const int32_t dtype = dtype_of(c_.dtype);
  const bool one_buffer = c_.layout == "qkv" && c_.page_size == 0 && !c_.cache_batch_idx &&
                          c_.packed_q == c_.packed_kv && total_q_ == total_kv_ && c_.head_dim_qk == c_.head_dim_v;
  const int64_t batch_q = c_.packed_q ? -1 : c_.batch;
  if (one_buffer) {
    // (rows, heads_q + 2 heads_kv, head_dim): k and v are views of q's memory.
    make_view(q_, dtype, batch_q, total_q_, c_.heads_q + 2 * c_.heads_kv, c_.head_dim_qk);
    k_.tensor = v_.tensor = q_.tensor;
    const int axis = q_.tensor.ndim - 2;
    const int64_t head_bytes = q_.tensor.strides[axis] * size_of(dtype);
    k_.tensor.data = static_cast<std::byte*>(q_.tensor.data) + c_.heads_q * head_bytes;
    v_.tensor.data = static_cast<std::byte*>(k_.tensor.data) + c_.heads_kv * head_bytes;
    q_.tensor.shape[axis] = c_.heads_q;
    k_.tensor.shape[axis] = v_.tensor.shape[axis] = c_.heads_kv;
  } else {
    const bool paged = c_.page_size > 0;
    const int64_t batch_kv = paged ? num_pages_ : c_.packed_kv ? -1 : c_.cache_batch_idx ? num_slots_ : c_.batch;
    const int64_t rows_kv = paged ? c_.page_size : total_kv_;
    make_view(q_, dtype, batch_q, total_q_, c_.heads_q, c_.head_dim_qk);
    const int32_t kv_dtype = c_.kv_dtype.empty() ? dtype : dtype_of(c_.kv_dtype);
    const bool has_gaps = c_.kv_scale == "ph";
    make_view(k_, kv_dtype, batch_kv, rows_kv, c_.heads_kv, c_.head_dim_qk, has_gaps);
    if (c_.v_in_k) {
      v_.tensor = k_.tensor;
      v_.tensor.shape[v_.tensor.ndim - 1] = c_.head_dim_v;
    } else {
      make_view(v_, kv_dtype, batch_kv, rows_kv, c_.heads_kv, c_.head_dim_v, has_gaps);
    }
  }
  const bool is_float8 = c_.dtype.starts_with("f8");
  make_view(out_, c_.out_dtype.empty() ? dtype : dtype_of(c_.out_dtype), batch_q, total_q_, c_.heads_q, c_.head_dim_v);
  const auto fill = [&](const tessella_tensor& t, int64_t b, int64_t row, int64_t heads, int64_t dim, double spread,
                        double mean) {
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t c = 0; c < dim; ++c) set(t, element(t, b, row, head) + c, drawn(mean, spread, random));
    }
  };
  const double step_q = is_float8 && !c_.q_scale.empty() ? kFloat8Step : 1;
  const double mean_q = std::sqrt(std::fabs(c_.mean) / std::sqrt(static_cast<double>(c_.head_dim_qk)));
  for (int64_t b = 0; b < c_.batch; ++b) {
    const int64_t queries = c_.seqlens_q ? lengths_.used_q[static_cast<size_t>(b)] : rows_q(b);
    for (int64_t i = 0; i < queries; ++i) {
      fill(q_.tensor, b, first_q(b) + i, c_.heads_q, c_.head_dim_qk, c_.spread / step_q, mean_q / step_q);
    }
    if (!c_.kv_dtype.empty()) continue;
    for (int64_t slot = 0; slot < slots_kv(b); ++slot) {
      if (hidden_from_all(b, slot)) continue;
      const auto [batch_idx, row] = row_kv(b, slot);
      fill(k_.tensor, batch_idx, row, c_.heads_kv, c_.head_dim_qk, 1, std::copysign(mean_q, c_.mean));
      if (!c_.v_in_k) fill(v_.tensor, batch_idx, row, c_.heads_kv, c_.head_dim_v, 1, 0);
    }
  }
  if (!c_.kv_dtype.empty()) make_keys(random);
  make_scales_of_queries(random);
  args_.q = &q_.tensor;
  args_.k = &k_.tensor;
  args_.v = &v_.tensor;
  args_.out = &out_.tensor;
  if (!c_.lse) return;

  tessella_tensor& lse = lse_.tensor;
  lse.dtype = c_.dtype == "f64" && c_.seed % 2 == 0 ? TESSELLA_F64 : TESSELLA_F32;
  const int64_t step = c_.layout == "sliced" ? 2 : 1;
  const int64_t head = total_q_ * step;
  if (c_.packed_q) {
    lse.ndim = 2;
    const int64_t shape[] = {c_.heads_q, total_q_}, strides[] = {head, step};
    std::copy_n(shape, 2, lse.shape);
    std::copy_n(strides, 2, lse.strides);
  } else {
    lse.ndim = 3;
    const int64_t shape[] = {c_.batch, c_.heads_q, total_q_}, strides[] = {c_.heads_q * head, head, step};
    std::copy_n(shape, 3, lse.shape);
    std::copy_n(strides, 3, lse.strides);
  }
  lse_.memory = Memory(static_cast<size_t>(extent(lse) * size_of(lse.dtype)), placement());
  std::memset(lse_.memory.data(), kPoison, lse_.memory.size());
  lse.data = lse_.memory.data();
  args_.lse = &lse;
}

template <typename F>
void Call::for_each_key(F&& f) const {
  for (int64_t b = 0; b < c_.batch; ++b) {
    for (int64_t slot = 0; slot < slots_kv(b); ++slot) {
      if (!hidden_from_all(b, slot)) f(b, slot);
    }
  }
}

// Of 8 or 4 bits, times scales that make them about as large as those of other dtypes.
void Call::make_keys(Random& random) {
  // Stored values of standard deviation 1 / step: those of i4 reach 7 at two of them, and a few are beyond.
  const double step = c_.kv_dtype == "i8" ? 4.0 / 127 : c_.kv_dtype == "i4" ? 2.0 / 7 : kFloat8Step;
  const auto fill = [&](const tessella_tensor& t) {
    const int64_t dim = t.shape[t.ndim - 1];
    for_each_key([&](int64_t b, int64_t slot) {
      const auto [batch_idx, row] = row_kv(b, slot);
      for (int64_t head = 0; head < c_.heads_kv; ++head) {
        for (int64_t c = 0; c < dim; ++c) set(t, element(t, batch_idx, row, head) + c, drawn(0, 1 / step, random));
      }
    });
  };
  fill(k_.tensor);
  if (!c_.v_in_k) fill(v_.tensor);
  if (c_.kv_scale.empty()) return;
  make_scales(k_, k_scale_, c_.kv_scale, step, random);
  args_.k_scale = &k_scale_.tensor;
  if (!c_.v_in_k) make_scales(v_, v_scale_, c_.kv_scale, step, random);
  args_.v_scale = c_.v_in_k ? &k_scale_.tensor : &v_scale_.tensor;
}

// Behind the last key and between columns there is poison, which is NaN.
void Call::transpose_v() {
  View rows = std::move(v_);
  const tessella_tensor& from = rows.tensor;
  const int64_t padded = (c_.seqlen_kv + 127) / 128 * 128;
  tessella_tensor& t = v_.tensor;
  t = TESSELLA_TENSOR4(nullptr, from.dtype, c_.batch, c_.heads_kv, c_.head_dim_v, padded);
  const int64_t gap = c_.layout == "gaps" ? 16 : c_.layout == "sliced" ? 3 : 0;
  t.strides[2] = padded + gap;
  t.strides[1] = c_.head_dim_v * t.strides[2] + gap;
  t.strides[0] = c_.heads_kv * t.strides[1] + gap;
  t.flags = TESSELLA_TRANSPOSED;
  v_.memory = Memory(static_cast<size_t>(c_.shift + extent(t)), placement());
  std::memset(v_.memory.data(), kPoison, v_.memory.size());
  auto* to = v_.memory.data() + c_.shift;
  t.data = to;
  for (int64_t b = 0; b < c_.batch; ++b) {
    for (int64_t row = 0; row < c_.seqlen_kv; ++row) {
      for (int64_t head = 0; head < c_.heads_kv; ++head) {
        for (int64_t c = 0; c < c_.head_dim_v; ++c) {
          to[b * t.strides[0] + head * t.strides[1] + c * t.strides[2] + portable::key_place(row)] =
              static_cast<const std::byte*>(from.data)[element(from, b, row, head) + c];
        }
      }
    }
  }
}

// A tensor of factors, or of amax, over rows of q, k, v or out, with poison in it.
void Call::make_scale_tensor(const View& rows, View& scales, const std::string& kind) {
  const tessella_tensor& of = rows.tensor;
  const int64_t heads = of.shape[of.ndim - 2];
  tessella_tensor& t = scales.tensor;
  t.dtype = TESSELLA_F32;
  if (kind == "1" || kind == "h") {
    t.ndim = 1;
    t.shape[0] = kind == "1" ? 1 : heads;
  } else if (kind == "sh") {
    t.ndim = 3;
    const int64_t shape[] = {of.ndim == 3 ? c_.batch : of.shape[0], 1, heads};
    std::copy_n(shape, 3, t.shape);
  } else {
    options_.scale_block = kind != "bh" ? 1 : c_.scale_block == 0 ? 4 : c_.scale_block;
    t.ndim = of.ndim - 1;
    std::copy_n(of.shape, t.ndim, t.shape);
    int64_t& num_rows = t.shape[t.ndim - 2];
    num_rows = (num_rows + options_.scale_block - 1) / options_.scale_block;
  }
  for (int64_t axis = t.ndim - 1, stride = 1; axis >= 0; --axis) {
    t.strides[axis] = stride;
    stride *= t.shape[axis];
  }
  if (kind == "ph") {  // behind the row that they are of, where the next one's 16 bytes begin
    const int64_t gap = of.strides[t.ndim - 1] - (of.dtype == TESSELLA_I4 ? 32 : 16 / size_of(of.dtype));
    t.data = static_cast<std::byte*>(of.data) + bytes_of(of.dtype, gap);
    for (int axis = 0; axis < t.ndim; ++axis) {
      t.strides[axis] = bytes_of(of.dtype, of.strides[axis]) / static_cast<int64_t>(sizeof(float));
    }
    return;
  }
  scales.memory = Memory(static_cast<size_t>(extent(t)) * sizeof(float), placement());
  std::memset(scales.memory.data(), kPoison, scales.memory.size());
  t.data = scales.memory.data();
}

void Call::make_scales(View& rows, View& scales, const std::string& kind, double step, Random& random) {
  make_scale_tensor(rows, scales, kind);
  const auto value = [&] { return step * (0.5 + random.uniform()); };
  tessella_tensor& t = scales.tensor;
  if (t.ndim == 1) {
    for (int64_t at = 0; at < t.shape[0]; ++at) set(t, at, value());
    return;
  }
  for_each_key([&](int64_t b, int64_t slot) {
    const auto [batch_idx, row] = row_kv(b, slot);
    for (int64_t head = 0; head < c_.heads_kv; ++head) {
      if (kind == "sh") {
        set(t, scale_element(t, c_.packed_kv ? b : batch_idx, 0, head), value());
      } else {
        set(t, scale_element(t, batch_idx, row / options_.scale_block, head), value());
      }
    }
  });
}

// Of q, of which the numbers are so many times larger; of out, where some results go beyond the largest number.
void Call::make_scales_of_queries(Random& random) {
  const auto make = [&](const View& rows, View& scales, const std::string& kind, auto value) {
    make_scale_tensor(rows, scales, kind);
    tessella_tensor& t = scales.tensor;
    if (t.ndim == 1) {
      for (int64_t at = 0; at < t.shape[0]; ++at) set(t, at, value());
      return &t;
    }
    for (int64_t b = 0; b < c_.batch; ++b) {
      for (int64_t i = 0; i < queries(b); ++i) {
        const int64_t block = kind == "sh" ? 0 : (first_q(b) + i) / options_.scale_block;
        for (int64_t head = 0; head < c_.heads_q; ++head) set(t, scale_element(t, b, block, head), value());
      }
    }
    return &t;
  };
  if (!c_.q_scale.empty()) {
    args_.q_scale = make(q_, q_scale_, c_.q_scale, [&] { return kFloat8Step * (0.5 + random.uniform()); });
  }
  if (!c_.out_scale.empty()) {
    args_.out_scale = make(out_, out_scale_, c_.out_scale, [&] { return std::exp2(10 * random.uniform() - 9); });
  }
  if (c_.amax.empty()) return;
  make_scale_tensor(out_, amax_, c_.amax);
  args_.amax = &amax_.tensor;
}

void Call::make_options() {
  options_.kernel = c_.kernel.empty() ? nullptr : c_.kernel.c_str();
  if (c_.scale != 0) options_.scale = static_cast<float>(c_.scale);
  options_.softcap = static_cast<float>(c_.softcap);
  options_.dropout = static_cast<float>(c_.dropout);
  options_.seed = c_.seed * 0x9E3779B97F4A7C15;
  options_.offset = c_.seed << 20;
  options_.max_seqlen_q = options_.max_seqlen_kv = c_.max_seqlen;
  options_.batch_invariant = c_.batch_invariant ? 1 : 0;
  options_.query_class = c_.few ? 1 : 0;
  options_.num_splits = static_cast<int32_t>(c_.num_splits);
  if (c_.need_not_be_deterministic) options_.deterministic = 2;
  options_.causal_top_left = c_.causal_top_left ? 1 : 0;
  options_.window_left = c_.window_left;
  options_.window_right = c_.window_right;
  options_.chunk = c_.chunk;
  options_.keep_first = c_.keep_first;
  options_.block_map_q = c_.block_q;
  options_.block_map_kv = c_.block_kv;
  options_.num_threads = static_cast<int32_t>(c_.threads);
  // The API layer cannot read lengths on a GPU: without a bound, score tensors must reach as far as the packed rows,
  // and the queries of a sequence are not few.
  const bool wants_bound = !c_.bias.empty() || !c_.dense.empty() || !c_.block_map.empty() || !c_.draft_mask.empty() ||
                           c_.kernel.starts_with("cuda.decode");
  if (!is_on_gpu_ || (!wants_bound && c_.seed % 3 == 0)) return;
  if (c_.packed_q) options_.max_seqlen_q = std::max(c_.seqlen_q, c_.max_seqlen);
  if (c_.packed_kv) options_.max_seqlen_kv = std::max(c_.seqlen_kv, c_.max_seqlen);
}

}  // namespace tessella::tests
