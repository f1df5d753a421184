// FlashAttention-2's backward (arXiv 2307.08691, algorithm 2). delta = rowsum(dO O) - dLSE and dQ = 0 in memory; tiles
// K_j, V_j outside, with dK_j = dV_j = 0; tiles Q_i, dO_i inside:
//   S = mask(score(Q_i K_j^T)),  P = exp(S - LSE_i)                     the forward's scores again, from its LSE
//   dV_j += dropout(P)^T dO_i,   dP = dropout(dO_i V_j^T),  dS = P (dP - delta_i) score'
//   dQ_i += dS K_j,              dK_j += dS^T Q_i                       dQ_i goes to memory and back at every visit
// and dQ, dK times scale at the end. No N x N matrix leaves the tile.

#include <algorithm>

#include "operations/attention/shape.hpp"
#include "reference/ladder/kv_head.hpp"
#include "reference/ladder/vector.hpp"

namespace tessella::reference {
namespace {

using core::Name;

int64_t scratch_floats(const core::AttentionShape& p) {
  const Tiles tile = tiles(p);
  const int64_t dim = p.head_dim_qk + p.head_dim_v;
  return p.seqlen_q * p.group() * (1 + p.head_dim_qk) + std::max(p.head_dim_qk, p.head_dim_v) + tile.kv * (3 * dim) +
         tile.q * (dim + 4 * tile.kv);
}

// dQ in memory.
double sum_bytes(const KvHead& head) {
  return head.wants(Name::dq) ? static_cast<double>(head.head_dim_qk()) * sizeof(float) : 0;
}
// Bytes that a row moves at every visit.
double visit_bytes(const KvHead& head) {
  return head.row_bytes(Name::q) + head.row_bytes(Name::d_out) + head.lse_bytes() + sizeof(float) + 2 * sum_bytes(head);
}

double bytes_moved(const KvHead& head) {
  const Tiles tile = head.tiles();
  const auto rows = static_cast<double>(head.rows()), keys = static_cast<double>(head.len_kv());
  double bytes =
      rows * (head.row_bytes(Name::d_out) + head.row_bytes(Name::out) + head.d_lse_bytes() + sizeof(float) +
              2 * sum_bytes(head) + head.row_bytes(Name::dq)) +
      keys * (head.row_bytes(Name::k) + head.row_bytes(Name::v) + head.row_bytes(Name::dk) + head.row_bytes(Name::dv));
  for (int64_t j = 0; j < head.len_kv(); j += tile.kv) {
    for (int64_t i = 0; i < head.rows(); i += tile.q) {
      const int64_t i_end = std::min(i + tile.q, head.rows());
      if (!head.meets_band(i, i_end, j, std::min(j + tile.kv, head.len_kv()))) continue;
      bytes += static_cast<double>(i_end - i) * visit_bytes(head);
    }
  }
  return bytes;
}

class FlashBackward {
 public:
  FlashBackward(const KvHead& head, float* scratch)
      : head_(head), tile_(head.tiles()), dim_qk_(head.head_dim_qk()), dim_v_(head.head_dim_v()) {
    const auto take = [&](float*& pointer, int64_t count) {
      pointer = scratch;
      scratch += count;
    };
    take(delta_, head.rows());
    take(dq_, head.rows() * dim_qk_);
    take(row_, std::max(dim_qk_, dim_v_));
    take(k_, tile_.kv * dim_qk_);
    take(k_transposed_, tile_.kv * dim_qk_);
    take(v_, tile_.kv * dim_v_);
    take(v_transposed_, tile_.kv * dim_v_);
    take(dk_, tile_.kv * dim_qk_);
    take(dv_, tile_.kv * dim_v_);
    take(q_, tile_.q * dim_qk_);
    take(d_out_, tile_.q * dim_v_);
    take(p_, tile_.q * tile_.kv);
    take(ds_, tile_.q * tile_.kv);
    take(products_, tile_.q * tile_.kv);
    take(transposed_, tile_.q * tile_.kv);
  }

  void begin_rows() {
    std::fill(dq_, dq_ + head_.rows() * dim_qk_, 0.0F);
    for (int64_t r = 0; r < head_.rows(); ++r) {
      head_.load_d_out(r, d_out_);
      delta_[r] = head_.load_delta(r, d_out_, row_);
    }
    head_.moved(static_cast<double>(head_.rows()) * (sizeof(float) + sum_bytes(head_)));
  }

  void run_keys(int64_t j0, int64_t j1) {
    const int64_t keys = j1 - j0;
    for (int64_t j = 0; j < keys; ++j) {
      head_.load_k(j0 + j, k_ + j * dim_qk_);
      head_.load_v(j0 + j, v_ + j * dim_v_);
    }
    transpose(keys, dim_qk_, k_, dim_qk_, k_transposed_);
    transpose(keys, dim_v_, v_, dim_v_, v_transposed_);
    std::fill(dk_, dk_ + keys * dim_qk_, 0.0F);
    std::fill(dv_, dv_ + keys * dim_v_, 0.0F);
    for (int64_t r0 = 0; r0 < head_.rows(); r0 += tile_.q) {
      const int64_t r1 = std::min(r0 + tile_.q, head_.rows());
      if (head_.meets_band(r0, r1, j0, j1)) visit(r0, r1, j0, j1);
    }
    for (int64_t j = 0; j < keys; ++j) {
      if (head_.wants(Name::dk)) head_.store_dk(j0 + j, dk_ + j * dim_qk_);
      if (head_.wants(Name::dv)) head_.store_dv(j0 + j, dv_ + j * dim_v_);
    }
  }

  void end_rows() {
    if (!head_.wants(Name::dq)) return;
    for (int64_t r = 0; r < head_.rows(); ++r) head_.store_dq(r, dq_ + r * dim_qk_);
    head_.moved(static_cast<double>(head_.rows()) * sum_bytes(head_));
  }

 private:
  void visit(int64_t r0, int64_t r1, int64_t j0, int64_t j1) {
    const int64_t rows = r1 - r0, keys = j1 - j0;
    for (int64_t r = 0; r < rows; ++r) {
      head_.load_q(r0 + r, q_ + r * dim_qk_);
      head_.load_d_out(r0 + r, d_out_ + r * dim_v_);
    }
    std::fill(p_, p_ + rows * keys, 0.0F);
    std::fill(ds_, ds_ + rows * keys, 0.0F);
    multiply_add(rows, keys, dim_qk_, q_, k_transposed_, p_, keys);
    multiply_add(rows, keys, dim_v_, d_out_, v_transposed_, ds_, keys);
    std::copy(p_, p_ + rows * keys, products_);
    for (int64_t r = 0; r < rows; ++r) {
      float* p = p_ + r * keys;
      float* ds = ds_ + r * keys;
      head_.probs(r0 + r, j0, j1, head_.load_lse(r0 + r), p);
      head_.d_scores(r0 + r, j0, j1, delta_[r0 + r], p, products_ + r * keys, ds);
      head_.dropout_row(r0 + r, j0, j1, p);
      if (head_.wants(Name::dq)) weighted_sum(dim_qk_, keys, ds, k_, dq_ + (r0 + r) * dim_qk_);
    }
    head_.moved(static_cast<double>(rows) * (sizeof(float) + 2 * sum_bytes(head_)));
    if (head_.wants(Name::dv)) add_transposed(rows, keys, p_, d_out_, dim_v_, dv_);
    if (head_.wants(Name::dk)) add_transposed(rows, keys, ds_, q_, dim_qk_, dk_);
  }

  // to[keys][dim] += weights[rows][keys]^T . from[rows][dim]
  void add_transposed(int64_t rows, int64_t keys, const float* weights, const float* from, int64_t dim, float* to) {
    transpose(rows, keys, weights, keys, transposed_);
    for (int64_t j = 0; j < keys; ++j) weighted_sum(dim, rows, transposed_ + j * rows, from, to + j * dim);
  }

  const KvHead& head_;
  Tiles tile_;
  int64_t dim_qk_, dim_v_;
  float* delta_;                // [rows]
  float* dq_;                   // [rows][head_dim_qk], not yet times scale
  float* row_;                  // [max head dim]
  float *k_, *k_transposed_;    // [tile.kv][head_dim_qk]
  float *v_, *v_transposed_;    // [tile.kv][head_dim_v]
  float *dk_, *dv_;             // [tile.kv][head dim]
  float *q_, *d_out_;           // [tile.q][head dim]
  float *p_, *ds_, *products_;  // [tile.q][tile.kv] S, then P, then with dropout; dP, then dS; Q K^T
  float* transposed_;           // [tile.kv][tile.q]
};

void run(const KvHead& head, float* scratch) {
  FlashBackward flash(head, scratch);
  flash.begin_rows();
  const int64_t tile = head.tiles().kv;
  for (int64_t j = 0; j < head.len_kv(); j += tile) flash.run_keys(j, std::min(j + tile, head.len_kv()));
  flash.end_rows();
}

}  // namespace

const BackwardAlgorithm kFlashBackward = {"reference.flash_backward",
                                          "FlashAttention-2: K, V outside, scores again from the LSE",
                                          1,
                                          scratch_floats,
                                          bytes_moved,
                                          run};

}  // namespace tessella::reference
