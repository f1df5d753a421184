#include "reference/ladder/ladder.hpp"

#include <algorithm>
#include <cmath>

#include "reference/element.hpp"
#include "reference/ladder/vector.hpp"
#include "reference/rest.hpp"
#include "reference/threads.hpp"

namespace tessella::reference {

using core::AttentionArguments;
using core::Feature;
using core::Sequence;

void Head::load_q(int64_t i, float* row) const {
  end_if_cancelled();
  load_row(p_.q().row(s_.batch_idx, s_.row_q + i, head_), p_.dtype(), p_.head_dim_qk, row);
  moved(row_bytes_qk());
}

void Head::load_v(int64_t j, float* row) const {
  end_if_cancelled();
  load_row(p_.row_of(p_.v(), s_.batch_idx, s_.row_kv + j, kv_head_), p_.dtype(), p_.head_dim_v, row);
  moved(row_bytes_v());
}

void Head::load_k_transposed(int64_t begin, int64_t end, float* row, float* tile) const {
  end_if_cancelled();
  for (int64_t j = begin; j < end; ++j) {
    load_row(p_.row_of(p_.k(), s_.batch_idx, s_.row_kv + j, kv_head_), p_.dtype(), p_.head_dim_qk, row);
    for (int64_t c = 0; c < p_.head_dim_qk; ++c) tile[c * (end - begin) + j - begin] = row[c];
  }
  moved(static_cast<double>(end - begin) * row_bytes_qk());
}

void Head::store(int64_t i, const float* out, float lse) const {
  store_row(p_.out().row(s_.batch_idx, s_.row_q + i, head_), p_.out_dtype(), p_.head_dim_v, out);
  if (p_.lse().data != nullptr) store_row(p_.lse().row(s_.batch_idx, s_.row_q + i, head_), p_.lse().dtype, 1, &lse);
  moved(row_bytes_out());
}

int64_t Head::visible_pairs() const {
  int64_t pairs = 0;
  for (int64_t i = 0; i < s_.len_q; ++i) {
    if (p_.features.has_any(core::kElementMasks)) {
      for (int64_t j = 0; j < s_.len_kv; ++j) pairs += visible(i, j) ? 1 : 0;
    } else {
      const int64_t begin = s_.band.begin(i);
      pairs += s_.band.end(i) - begin + std::min(begin, p_.keep_first);
    }
  }
  return pairs;
}

bool Head::meets_band(int64_t row_begin, int64_t row_end, int64_t key_begin, int64_t key_end) const {
  return key_begin < s_.band.end(row_end - 1) && (key_end > s_.band.begin(row_begin) || key_begin < p_.keep_first);
}

float Head::score(int64_t i, int64_t j, const float* q, float* k) const {
  load_row(p_.row_of(p_.k(), s_.batch_idx, s_.row_kv + j, kv_head_), p_.dtype(), p_.head_dim_qk, k);
  moved(row_bytes_qk());
  touched(1);
  return reference::score(p_, s_, head_, i, j, dot(q, k, p_.head_dim_qk));
}

void Head::scores(int64_t i, int64_t key_begin, int64_t key_end, float* products) const {
  const int64_t begin = s_.band.begin(i);
  const int64_t end = s_.band.end(i);
  const auto in_band = [&](int64_t j) { return j < end && (j >= begin || j < p_.keep_first); };
  touched(key_end - key_begin);
  if (!p_.features.has_any(core::kElementMasks | Feature::softcap | Feature::bias | Feature::alibi)) {
    for (int64_t j = key_begin; j < key_end; ++j) {
      float& product = products[j - key_begin];
      product = in_band(j) ? static_cast<float>(p_.scale) * product : kHidden<float>;
    }
    return;
  }
  for (int64_t j = key_begin; j < key_end; ++j) {
    float& product = products[j - key_begin];
    const bool seen = in_band(j) && core::element_visible(s_, head_, i, j);
    product = seen ? reference::score(p_, s_, head_, i, j, product) : kHidden<float>;
  }
}

void Head::dropout_row(int64_t i, int64_t key_begin, int64_t key_end, float* probs) const {
  if (!p_.features.has(Feature::dropout)) return;
  for (int64_t j = key_begin; j < key_end; ++j) probs[j - key_begin] *= dropout(i, j);
}

namespace {

constexpr int64_t kFastMemory = 16384;  // M: 64 KiB of fp32, about a core's first cache
constexpr int64_t kMostKeys = 128;      // small head dims would ask for tiles longer than most sequences

Tiles tiles_for(int64_t head_dim) {
  const int64_t kv = std::min((kFastMemory + 4 * head_dim - 1) / (4 * head_dim), kMostKeys);
  return {.q = std::min(kv, head_dim), .kv = kv};
}

}  // namespace

Tiles tiles(const core::AttentionShape& p) { return tiles_for(std::max(p.head_dim_qk, p.head_dim_v)); }
Tiles tiles(const Head& head) { return tiles_for(std::max(head.head_dim_qk(), head.head_dim_v())); }

core::WorkspaceSize ladder_workspace(const Algorithm& algorithm, const core::AttentionShape& p, int num_threads) {
  return {.scratch_bytes = num_threads * algorithm.scratch_floats(p) * static_cast<int64_t>(sizeof(float))};
}

core::Cost ladder_cost(const Algorithm& algorithm, const AttentionArguments& p) {
  core::Cost cost{.score_passes = algorithm.score_passes};
  const bool same_for_all_heads = !portable::may_differ_by_head(core::element_mask_set(p.features));
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = core::sequence(p, b);
    for (int64_t head = 0; head < (same_for_all_heads ? 1 : p.heads_q); ++head) {
      const double bytes = algorithm.bytes_moved(Head(p, s, head, nullptr));
      cost.bytes_moved += bytes * static_cast<double>(same_for_all_heads ? p.heads_q : 1);
    }
  }
  // Bytes for one head: every thread works on one.
  cost.extra_bytes = static_cast<double>(ladder_workspace(algorithm, p, 1).scratch_bytes);
  return cost;
}

void ladder_run(const Algorithm& algorithm, const AttentionArguments& p, int num_threads, void* scratch,
                Traffic* traffic) {
  const int64_t floats = algorithm.scratch_floats(p);
  for_each(p.batch * p.heads_q, num_threads, p.cancel, [&](int64_t task, int worker) {
    const Sequence s = core::sequence(p, task / p.heads_q);
    const int64_t head = task % p.heads_q;
    float* own = static_cast<float*>(scratch) + worker * floats;
    algorithm.run(Head(p, s, head, traffic), own);
    // Every algorithm's scratch holds at least one row of out.
    std::fill(own, own + p.head_dim_v, 0.0F);
    store_unused(p, s, head, s.len_q, s.slots_q, own);
  });
  auto* zeros = static_cast<float*>(scratch);
  const Sequence unused = rest(p);
  for (int64_t head = 0; head < p.heads_q && unused.slots_q > 0; ++head) {
    std::fill(zeros, zeros + p.head_dim_v, 0.0F);
    store_unused(p, unused, head, 0, unused.slots_q, zeros);
  }
}

}  // namespace tessella::reference
