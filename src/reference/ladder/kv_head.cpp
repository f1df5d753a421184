#include "reference/ladder/kv_head.hpp"

#include <cmath>
#include <limits>

#include "core/cancel.hpp"
#include "reference/backward.hpp"
#include "reference/element.hpp"
#include "reference/ladder/vector.hpp"
#include "reference/threads.hpp"

namespace tessella::reference {

using core::AttentionArguments;
using core::Feature;
using core::Gradient;
using core::Name;
using core::Sequence;

KvHead::KvHead(const AttentionArguments& arguments, const Sequence& sequence, int64_t kv_head, Traffic* traffic)
    : p_(arguments), s_(sequence), kv_head_(kv_head) {
  for (int64_t g = 0; g < p_.group(); ++g) heads_.emplace_back(p_, s_, kv_head * p_.group() + g, traffic);
}

double KvHead::row_bytes(Name name) const {
  const core::Operand& of = p_.tensors[name];
  const bool is_of_v = name == Name::v || name == Name::out || name == Name::d_out || name == Name::dv;
  const bool is_written = name == Name::dq || name == Name::dk || name == Name::dv;
  const bool is_added = (name == Name::dq && p_.accumulates(Gradient::dq)) ||
                        (name == Name::dk && p_.accumulates(Gradient::dk)) ||
                        (name == Name::dv && p_.accumulates(Gradient::dv));
  if (is_written && of.data == nullptr) return 0;
  return static_cast<double>((is_of_v ? p_.head_dim_v : p_.head_dim_qk) * core::size_bytes(of.dtype)) *
         (is_added ? 2 : 1);
}

float KvHead::load_lse(int64_t r) const {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  moved(lse_bytes());
  const float lse = load<float>(row_of(Name::lse, r), p_.lse().dtype, 0);
  if (lse == -kInfinity) return kInfinity;
  return lse == kInfinity ? std::numeric_limits<float>::quiet_NaN() : lse;
}

void KvHead::load_k(int64_t j, float* row) const {
  load_row(p_.row_of(p_.k(), s_.batch_idx, s_.row_kv + j, kv_head_), p_.dtype(), p_.head_dim_qk, row);
  moved(row_bytes(Name::k));
}

void KvHead::load_d_out(int64_t r, float* row) const {
  core::end_if_cancelled(p_.cancel);
  moved(row_bytes(Name::d_out));
  const bool sees_none = load<float>(row_of(Name::lse, r), p_.lse().dtype, 0) == kHidden<float>;
  if (sees_none) return std::fill(row, row + p_.head_dim_v, 0.0F);
  load_row(row_of(Name::d_out, r), p_.tensors[Name::d_out].dtype, p_.head_dim_v, row);
}

float KvHead::load_delta(int64_t r, const float* d_out, float* row) const {
  load_row(row_of(Name::out, r), p_.out_dtype(), p_.head_dim_v, row);
  moved(row_bytes(Name::out) + d_lse_bytes());
  const bool has_d_lse = p_.features.has(Feature::d_lse);
  return dot(d_out, row, p_.head_dim_v) -
         (has_d_lse ? load<float>(row_of(Name::d_lse, r), p_.tensors[Name::d_lse].dtype, 0) : 0.0F);
}

void KvHead::probs(int64_t r, int64_t key_begin, int64_t key_end, float lse, float* products) const {
  heads_[in_group(r)].scores(query(r), key_begin, key_end, products);
  for (int64_t j = 0; j < key_end - key_begin; ++j) {
    products[j] = products[j] == kHidden<float> ? 0.0F : std::exp(products[j] - lse);
  }
}

void KvHead::d_scores(int64_t r, int64_t key_begin, int64_t key_end, float delta, const float* probs,
                      const float* products, float* d_probs) const {
  dropout_row(r, key_begin, key_end, d_probs);
  for (int64_t j = 0; j < key_end - key_begin; ++j) {
    if (probs[j] == 0) {
      d_probs[j] = 0;  // a hidden key may hold NaN
    } else {
      d_probs[j] = probs[j] * (d_probs[j] - delta);
      if (has_softcap()) d_probs[j] *= score_derivative(p_, products[j]);
    }
  }
}

void KvHead::store(Name name, Gradient gradient, int64_t row, int64_t head, float factor, float* values) const {
  const core::Operand& to = p_.tensors[name];
  const int64_t dim = name == Name::dv ? p_.head_dim_v : p_.head_dim_qk;
  std::byte* data = to.row(s_.batch_idx, row, head);
  const bool adds = p_.accumulates(gradient);
  for (int64_t c = 0; c < dim; ++c) values[c] = factor * values[c] + (adds ? load<float>(data, to.dtype, c) : 0.0F);
  store_row(data, to.dtype, dim, values);
  moved(row_bytes(name));
}

void KvHead::store_dq(int64_t r, float* row) const {
  store(Name::dq, Gradient::dq, s_.row_q + query(r), head(r), p_.scale, row);
}
void KvHead::store_dk(int64_t j, float* row) const {
  store(Name::dk, Gradient::dk, s_.row_kv + j, kv_head_, p_.scale, row);
}
void KvHead::store_dv(int64_t j, float* row) const { store(Name::dv, Gradient::dv, s_.row_kv + j, kv_head_, 1, row); }

core::WorkspaceSize ladder_workspace(const BackwardAlgorithm& algorithm, const core::AttentionShape& p,
                                     int num_threads) {
  return {.scratch_bytes = num_threads * algorithm.scratch_floats(p) * static_cast<int64_t>(sizeof(float))};
}

core::Cost ladder_cost(const BackwardAlgorithm& algorithm, const AttentionArguments& p) {
  core::Cost cost{.score_passes = algorithm.score_passes};
  for (int64_t b = 0; b < p.batch; ++b) {
    const Sequence s = core::sequence(p, b);  // its band is the same for all heads
    cost.bytes_moved += algorithm.bytes_moved(KvHead(p, s, 0, nullptr)) * static_cast<double>(p.heads_kv);
  }
  // Bytes for one head: every thread works on one.
  cost.extra_bytes = static_cast<double>(ladder_workspace(algorithm, p, 1).scratch_bytes);
  return cost;
}

void ladder_run(const BackwardAlgorithm& algorithm, const AttentionArguments& p, int num_threads, void* scratch,
                Traffic* traffic) {
  const int64_t floats = algorithm.scratch_floats(p);
  zero_operands(p);
  for_each(p.batch * p.heads_kv, num_threads, p.cancel, [&](int64_t task, int worker) {
    const Sequence s = core::sequence(p, task / p.heads_kv);
    algorithm.run(KvHead(p, s, task % p.heads_kv, traffic), static_cast<float*>(scratch) + worker * floats);
  });
  write_score_gradients(p, num_threads);
}

}  // namespace tessella::reference
