// What scores and masks of a case read.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cases/call.hpp"
#include "cases/tensor_elements.hpp"
#include "cases/tensor_places.hpp"
#include "portable/band.hpp"

namespace tessella::tests {

template <typename Value>
const tessella_tensor* Call::score_tensor(int32_t dtype, const std::string& axes, int64_t queries, int64_t keys,
                                          Value value) {
  const int64_t full[] = {c_.batch, c_.heads_q, queries, keys};
  tessella_tensor t{};
  t.dtype = dtype;
  t.ndim = 4;
  for (int axis = 0; axis < 4; ++axis) t.shape[axis] = axes.find("bhqk"[axis]) == std::string::npos ? 1 : full[axis];
  const std::string order = c_.score_order.empty() ? "bhqk" : c_.score_order;
  for (int64_t i = 3, stride = 1; i >= 0; --i) {
    const auto axis = std::string("bhqk").find(order[static_cast<size_t>(i)]);
    t.strides[axis] = stride;
    stride *= t.shape[axis];
  }
  memories_.emplace_back(static_cast<size_t>(extent(t) * size_of(dtype)), placement());
  t.data = memories_.back().data();
  for (int64_t b = 0; b < t.shape[0]; ++b) {
    for (int64_t h = 0; h < t.shape[1]; ++h) {
      for (int64_t i = 0; i < t.shape[2]; ++i) {
        for (int64_t j = 0; j < t.shape[3]; ++j) {
          const int64_t at = b * t.strides[0] + h * t.strides[1] + i * t.strides[2] + j * t.strides[3];
          if constexpr (std::is_invocable_v<Value, int64_t, int64_t, int64_t, int64_t>) {
            set(t, at, value(b, h, i, j));
          } else {
            set(t, at, value(b, i, j));
          }
        }
      }
    }
  }
  return own(t);
}

// What element (i, j) of a mask is, if it lies in a region that is hidden or shown whole.
std::optional<bool> Call::of_region(int64_t b, int64_t h, int64_t i, int64_t j) const {
  if (c_.mask_region == 0) return std::nullopt;
  auto state = c_.seed;
  for (const int64_t idx : {b, h, i / c_.mask_region, j / c_.mask_region}) {
    state = Random(state + static_cast<uint64_t>(idx)).bits();
  }
  const double drawn = Random(state).uniform();
  if (drawn < 0.6) return false;
  return drawn < 0.8 ? std::optional(true) : std::nullopt;
}

// Ranges [start, end) below `most` for `rows` rows. Neighbours of mask_region rows have the same.
const tessella_tensor* Call::ranges(const std::string& axes, bool packed, int64_t rows, int64_t most, uint64_t salt) {
  const auto has = [&](char axis) { return axes.find(axis) != std::string::npos; };
  Random random(c_.seed + salt);
  const int64_t count = random.in(1, 8), gap = 2 * random.below(2);
  tessella_tensor t{.dtype = TESSELLA_I32, .ndim = 5};
  const int64_t shape[] = {has('b') && !packed ? c_.batch : 1, has('h') ? c_.heads_q : 1, rows, count, 2};
  std::copy_n(shape, 5, t.shape);
  t.strides[4] = 1;
  t.strides[3] = 2;
  t.strides[2] = 2 * count + gap;
  t.strides[1] = rows * t.strides[2];
  t.strides[0] = t.shape[1] * t.strides[1];
  memories_.emplace_back(static_cast<size_t>(extent(t) * size_of(TESSELLA_I32)), placement());
  t.data = memories_.back().data();
  const double empty = random.one_of({0.0, 0.2, 0.6}), wide = random.one_of({0.0, 0.5});
  for (int64_t i = 0; i < t.shape[0] * t.shape[1] * rows; ++i) {
    const int64_t outer = i / rows, row = i % rows;
    Random of_row(c_.seed + salt + static_cast<uint64_t>(outer * 100003 + row / std::max<int64_t>(c_.mask_region, 1)));
    std::vector<int64_t> ends;
    for (int64_t n = 0; n < 2 * count; ++n) ends.push_back(of_row.in(0, most + 2));
    if (of_row.chance(wide)) ends[0] = 0, ends[1] = most + 5;
    std::sort(ends.begin(), ends.end());
    for (int64_t n = 0; n < count; ++n) {
      const auto at = static_cast<size_t>(2 * n);
      if (of_row.chance(empty)) ends[at] = ends[at + 1] = of_row.in(-5, most + 5);
      const int64_t first = outer * t.strides[1] + row * t.strides[2] + 2 * n;
      set(t, first, static_cast<double>(ends[at]));
      set(t, first + 1, static_cast<double>(ends[at + 1]));
    }
  }
  return own(t);
}

// True if the ranges of a row hold the index. Null: there are none.
bool Call::are_in(const tessella_tensor* ranges, int64_t b, int64_t h, int64_t row, int64_t idx) {
  if (ranges == nullptr) return true;
  const auto* first = static_cast<const int32_t*>(ranges->data) + b % ranges->shape[0] * ranges->strides[0] +
                      h % ranges->shape[1] * ranges->strides[1] + row * ranges->strides[2];
  for (const int32_t* range = first; range < first + 2 * ranges->shape[3]; range += 2) {
    if (range[0] <= idx && idx < range[1]) return true;
  }
  return false;
}

void Call::make_masks(Random& random) {
  if (!c_.dense.empty()) {
    args_.dense_mask = score_tensor(TESSELLA_BOOL, c_.dense, c_.seqlen_q, c_.seqlen_kv,
                                    [&](int64_t b, int64_t h, int64_t i, int64_t j) {
                                      const bool drawn = i % 11 != 5 && random.chance(0.7);
                                      return of_region(b, h, i, j).value_or(drawn);
                                    });
  }
  if (!c_.block_map.empty()) {
    const auto tiles = [](int64_t size, int64_t tile) { return (size + tile - 1) / tile; };
    args_.block_map = score_tensor(TESSELLA_BOOL, c_.block_map, tiles(c_.seqlen_q, c_.block_q),
                                   tiles(c_.seqlen_kv, c_.block_kv), [&](int64_t b, int64_t h, int64_t i, int64_t j) {
                                     const bool drawn = random.chance(0.6);
                                     return of_region(b, h, i * c_.block_q, j * c_.block_kv).value_or(drawn);
                                   });
  }
  if (c_.document) {
    const auto ids = [&](std::vector<int32_t>& values, bool packed, int64_t rows) {
      values.resize(static_cast<size_t>(packed ? rows : c_.batch * rows));
      const int64_t documents = c_.mask_region > 0 ? 1 + rows / c_.mask_region : 3;
      for (int32_t& value : values) value = static_cast<int32_t>(random.below(documents));
      if (c_.seed % 3 != 0) std::sort(values.begin(), values.end());
      return packed ? own(TESSELLA_TENSOR1(values.data(), TESSELLA_I32, rows))
                    : own(TESSELLA_TENSOR2(values.data(), TESSELLA_I32, c_.batch, rows));
    };
    args_.document_ids_q = ids(documents_q_, c_.packed_q, total_q_);
    args_.document_ids_kv = ids(documents_kv_, c_.packed_kv, total_kv_);
  }
  if (!c_.draft_mask.empty()) {
    const int64_t masks = c_.draft_mask == "b" ? c_.batch : 1;
    const int64_t shape[] = {masks, c_.seqlen_q, c_.seqlen_q};
    tessella_tensor t{.dtype = TESSELLA_BOOL, .ndim = 3, .strides = {shape[1] * shape[2], shape[2], 1}};
    std::copy_n(shape, 3, t.shape);
    if (c_.score_order.find('k') < c_.score_order.find('q')) std::swap(t.strides[1], t.strides[2]);
    memories_.emplace_back(static_cast<size_t>(extent(t)), placement());
    t.data = memories_.back().data();
    for (int64_t at = 0; at < extent(t); ++at) set(t, at, at % 7 == 3 ? 0 : random.chance(0.6));
    args_.draft_mask = own(t);
  }
  if (!c_.key_ranges.empty()) {
    args_.key_ranges = ranges(c_.key_ranges, c_.packed_q, c_.packed_q ? total_q_ : c_.seqlen_q, c_.seqlen_kv, 11);
  }
  if (!c_.query_ranges.empty()) {
    args_.query_ranges =
        ranges(c_.query_ranges, c_.packed_kv, c_.packed_kv ? total_kv_ : c_.seqlen_kv, c_.seqlen_q, 13);
  }
  if (c_.prefix) {
    std::vector<int32_t>& lengths = tables_.emplace_back();
    for (int64_t b = 0; b < c_.batch; ++b) lengths.push_back(static_cast<int32_t>(random.in(0, slots_kv(b) + 2)));
    args_.prefix_lengths = table(lengths);
  }
}

bool Call::sees(int64_t b, int64_t h, int64_t i, int64_t slot) const {
  portable::Band of_sequence = band(b);
  if (args_.prefix_lengths != nullptr) {
    of_sequence.prefix = static_cast<const int32_t*>(args_.prefix_lengths->data)[b];
  }
  if (!of_sequence.visible(i, slot - key_begin(b))) return false;
  const auto is_set = [](const tessella_tensor* mask, const auto&... idx) {
    if (mask == nullptr) return true;
    int64_t at = 0;
    int axis = 0;
    ((at += idx % mask->shape[axis] * mask->strides[axis], ++axis), ...);
    return static_cast<const uint8_t*>(mask->data)[at] != 0;
  };
  const auto document = [b](const std::vector<int32_t>& ids, bool packed, int64_t first, int64_t rows, int64_t at) {
    return ids[static_cast<size_t>(packed ? first + at : b * rows + at)];
  };
  const int64_t draft = slot - (key_end(b) - queries(b));
  if (!is_set(args_.dense_mask, b, h, i, slot)) return false;
  if (draft >= 0 && draft < queries(b) && !is_set(args_.draft_mask, b, i, draft)) return false;
  if (c_.document && document(documents_q_, c_.packed_q, first_q(b), c_.seqlen_q, i) !=
                         document(documents_kv_, c_.packed_kv, row_kv(b, 0).row, c_.seqlen_kv, slot)) {
    return false;
  }
  if (!are_in(args_.key_ranges, b, h, first_q(b) + i, slot)) return false;
  if (!are_in(args_.query_ranges, b, h, (c_.packed_kv ? row_kv(b, 0).row : 0) + slot, i)) return false;
  return is_set(args_.block_map, b, h, i / std::max<int64_t>(c_.block_q, 1), slot / std::max<int64_t>(c_.block_kv, 1));
}

// NaN in q of queries from which all masks together hide every key.
void Call::spoil_queries_of_no_key() {
  for (int64_t b = 0; b < c_.batch; ++b) {
    for (int64_t i = 0; i < queries(b); ++i) {
      for (int64_t h = 0; h < c_.heads_q; ++h) {
        int64_t slot = key_begin(b);
        while (slot < key_end(b) && !sees(b, h, i, slot)) ++slot;
        if (slot < key_end(b)) continue;
        const int64_t at = element(q_.tensor, b, first_q(b) + i, h);
        for (int64_t c = 0; c < c_.head_dim_qk; ++c) set(q_.tensor, at + c, std::nan(""));
      }
    }
  }
}

// NaN in keys of a sequence that all masks together hide from every query, by all heads of a KV head.
void Call::spoil_keys_of_no_query() {
  for (int64_t b = 0; b < c_.batch; ++b) {
    for (int64_t slot = key_begin(b); slot < key_end(b); ++slot) {
      if (hidden_from_all(b, slot)) continue;  // these hold NaN, and their pages may be nowhere
      const auto [batch_idx, row] = row_kv(b, slot);
      for (int64_t head = 0; head < c_.heads_kv; ++head) {
        const int64_t group = c_.heads_q / c_.heads_kv;
        bool is_seen = false;
        for (int64_t h = head * group; h < (head + 1) * group; ++h) {
          for (int64_t i = 0; i < queries(b) && !is_seen; ++i) is_seen = sees(b, h, i, slot);
        }
        if (is_seen) continue;
        for (const tessella_tensor* t : {&k_.tensor, &v_.tensor}) {
          const int64_t dim = t->shape[t->ndim - 1];
          for (int64_t c = 0; c < dim; ++c) set(*t, element(*t, batch_idx, row, head) + c, std::nan(""));
        }
        const bool has_own_scale = c_.kv_scale == "th" || c_.kv_scale == "ph";
        if (!has_own_scale) continue;  // other keys have the same, or there is none
        for (const tessella_tensor* t : {args_.k_scale, args_.v_scale}) {
          set(*t, scale_element(*t, batch_idx, row, head), std::nan(""));
        }
      }
    }
  }
}

void Call::make_scores(Random& random) {
  if (!c_.bias.empty()) {
    // Where the tensor tells sequences apart, slots without a key hold NaN.
    const bool own_slots = c_.bias.find('b') != std::string::npos && c_.bias.find('k') != std::string::npos;
    args_.bias = score_tensor(c_.bias_f32 ? int32_t{TESSELLA_F32} : dtype_of(c_.dtype), c_.bias, c_.seqlen_q,
                              c_.seqlen_kv, [&](int64_t b, int64_t, int64_t j) {
                                if (own_slots && (j < key_begin(b) || j >= key_end(b))) return std::nan("");
                                if (random.chance(0.03)) return -std::numeric_limits<double>::infinity();
                                return c_.bias_mean + random.normal();
                              });
  }
  const auto floats = [&](int64_t count, double spread, double mean) {
    memories_.emplace_back(static_cast<size_t>(count) * sizeof(float), placement());
    const tessella_tensor t = TESSELLA_TENSOR1(memories_.back().data(), TESSELLA_F32, count);
    for (int64_t at = 0; at < count; ++at) set(t, at, mean + spread * random.normal());
    return t;
  };
  if (!c_.alibi.empty()) {
    tessella_tensor t = floats(c_.alibi == "bh" ? c_.batch * c_.heads_q : c_.heads_q, 0.2, 0);
    if (c_.alibi == "bh") t = TESSELLA_TENSOR2(t.data, TESSELLA_F32, c_.batch, c_.heads_q);
    args_.alibi_slopes = own(t);
  }
  if (c_.sink) args_.sink = own(floats(c_.heads_q, 2, c_.bias_mean));
  if (c_.memory_seed) {
    for (const auto& [argument, value] : {std::pair{&args_.seed, int64_t{-3}}, std::pair{&args_.offset, int64_t{5}}}) {
      memories_.emplace_back(sizeof(int64_t), placement());
      put(memories_.back().data(), value);
      *argument = own(TESSELLA_TENSOR1(memories_.back().data(), TESSELLA_I64, 1));
    }
  }
}

}  // namespace tessella::tests
