// Standard attention's backward, six kernels with N x N matrices in memory between them (FlashAttention, arXiv
// 2205.14135, appendix B, algorithm 3):
//   1. P = exp(score(Q K^T) - LSE), written: what a standard forward would have kept
//   2. dV = dropout(P)^T dO: P read
//   3. dP = dO V^T, written
//   4. dS = P (dropout(dP) - delta) score', in the memory of dP: P and dP read, dS written
//   5. dQ = scale dS K: dS read
//   6. dK = scale dS^T Q: dS read
// P and dS are rounded to the dtype of the inputs where they meet another matrix, as 16-bit ones in memory would be.
// With a softcap, the products Q K^T are a third matrix: its derivative needs them.

#include <algorithm>

#include "operations/attention/shape.hpp"
#include "reference/ladder/kv_head.hpp"
#include "reference/ladder/vector.hpp"

namespace tessella::reference {
namespace {

using core::Name;

int64_t scratch_floats(const core::AttentionShape& p) {
  const Tiles tile = tiles(p);
  constexpr double kMost = 0x1p46;  // as standard.cpp
  const double scores = static_cast<double>(p.seqlen_q * p.group()) * static_cast<double>(p.seqlen_kv);
  const int64_t matrices = p.features.has(core::Feature::softcap) ? 3 : 2;
  const int64_t dim = std::max(p.head_dim_qk, p.head_dim_v);
  return matrices * static_cast<int64_t>(std::min(scores, kMost)) + 3 * std::max(tile.q, tile.kv) * dim + dim +
         tile.q * (tile.kv + 1);
}

double bytes_moved(const KvHead& head) {
  const auto rows = static_cast<double>(head.rows()), keys = static_cast<double>(head.len_kv());
  const auto row_tiles = static_cast<double>((head.rows() + head.tiles().q - 1) / head.tiles().q);
  const auto key_tiles = static_cast<double>((head.len_kv() + head.tiles().kv - 1) / head.tiles().kv);
  const double matrix = rows * keys * sizeof(float);
  const double q = head.row_bytes(Name::q), k = head.row_bytes(Name::k), d_out = head.row_bytes(Name::d_out);
  double bytes = rows * (q + head.lse_bytes()) + row_tiles * keys * k + (head.has_softcap() ? 2 : 1) * matrix;
  if (head.wants(Name::dv)) bytes += key_tiles * rows * d_out + matrix + keys * head.row_bytes(Name::dv);
  bytes += rows * d_out + row_tiles * keys * head.row_bytes(Name::v) + matrix;
  bytes += rows * (d_out + head.row_bytes(Name::out) + head.d_lse_bytes()) + (head.has_softcap() ? 4 : 3) * matrix;
  if (head.wants(Name::dq)) bytes += row_tiles * keys * k + matrix + rows * head.row_bytes(Name::dq);
  if (head.wants(Name::dk)) bytes += key_tiles * rows * q + matrix + keys * head.row_bytes(Name::dk);
  return bytes;
}

class StandardBackward {
 public:
  StandardBackward(const KvHead& head, float* scratch)
      : head_(head),
        tile_(head.tiles()),
        rows_(head.rows()),
        keys_(head.len_kv()),
        dim_(std::max(head.head_dim_qk(), head.head_dim_v())),
        p_(scratch),
        ds_(p_ + rows_ * keys_),
        products_(ds_ + rows_ * keys_),
        a_(products_ + (head.has_softcap() ? rows_ * keys_ : 0)),
        b_(a_ + std::max(tile_.q, tile_.kv) * dim_),
        sums_(b_ + std::max(tile_.q, tile_.kv) * dim_),
        row_(sums_ + std::max(tile_.q, tile_.kv) * dim_),
        weights_(row_ + dim_),
        column_(weights_ + tile_.q * tile_.kv) {}

  void probs() {
    const int64_t dim = head_.head_dim_qk();
    for_each_tile(rows_, tile_.q, [&](int64_t r0, int64_t r1) {
      for (int64_t r = r0; r < r1; ++r) head_.load_q(r, a_ + (r - r0) * dim);
      for_each_tile(keys_, tile_.kv, [&](int64_t j0, int64_t j1) {
        for (int64_t j = j0; j < j1; ++j) head_.load_k(j, sums_ + (j - j0) * dim);
        transpose(j1 - j0, dim, sums_, dim, b_);
        multiply(r0, r1, j0, j1, dim, p_);
      });
      for (int64_t r = r0; r < r1; ++r) {
        float* p = p_ + r * keys_;
        if (head_.has_softcap()) std::copy(p, p + keys_, products_ + r * keys_);
        head_.probs(r, 0, keys_, head_.load_lse(r), p);
      }
    });
    head_.moved((head_.has_softcap() ? 2 : 1) * matrix_bytes());
  }

  void dv() {
    over_keys(
        head_.head_dim_v(), p_, true, [&](int64_t r, float* row) { head_.load_d_out(r, row); },
        [&](int64_t j, float* row) { head_.store_dv(j, row); });
  }

  void d_probs() {
    const int64_t dim = head_.head_dim_v();
    for_each_tile(rows_, tile_.q, [&](int64_t r0, int64_t r1) {
      for (int64_t r = r0; r < r1; ++r) head_.load_d_out(r, a_ + (r - r0) * dim);
      for_each_tile(keys_, tile_.kv, [&](int64_t j0, int64_t j1) {
        for (int64_t j = j0; j < j1; ++j) head_.load_v(j, sums_ + (j - j0) * dim);
        transpose(j1 - j0, dim, sums_, dim, b_);
        multiply(r0, r1, j0, j1, dim, ds_);
      });
    });
    head_.touched(rows_ * keys_);
    head_.moved(matrix_bytes());
  }

  void d_scores() {
    for (int64_t r = 0; r < rows_; ++r) {
      head_.load_d_out(r, a_);
      const float delta = head_.load_delta(r, a_, row_);
      head_.d_scores(r, 0, keys_, delta, p_ + r * keys_, products_ + r * keys_, ds_ + r * keys_);
    }
    head_.touched(rows_ * keys_);
    head_.moved((head_.has_softcap() ? 4 : 3) * matrix_bytes());
  }

  void dq() {
    const int64_t dim = head_.head_dim_qk();
    for_each_tile(rows_, tile_.q, [&](int64_t r0, int64_t r1) {
      std::fill(sums_, sums_ + (r1 - r0) * dim, 0.0F);
      for_each_tile(keys_, tile_.kv, [&](int64_t j0, int64_t j1) {
        for (int64_t j = j0; j < j1; ++j) head_.load_k(j, b_ + (j - j0) * dim);
        for (int64_t r = r0; r < r1; ++r) {
          const float* ds = ds_ + r * keys_ + j0;
          for (int64_t j = 0; j < j1 - j0; ++j) weights_[j] = head_.round_to_input(ds[j]);
          weighted_sum(dim, j1 - j0, weights_, b_, sums_ + (r - r0) * dim);
        }
      });
      for (int64_t r = r0; r < r1; ++r) head_.store_dq(r, sums_ + (r - r0) * dim);
    });
    head_.touched(rows_ * keys_);
    head_.moved(matrix_bytes());
  }

  void dk() {
    over_keys(
        head_.head_dim_qk(), ds_, false, [&](int64_t r, float* row) { head_.load_q(r, row); },
        [&](int64_t j, float* row) { head_.store_dk(j, row); });
  }

 private:
  template <typename Fn>
  static void for_each_tile(int64_t count, int64_t size, Fn&& fn) {
    for (int64_t begin = 0; begin < count; begin += size) fn(begin, std::min(begin + size, count));
  }

  // A tile of `to` = a_ . b_.
  void multiply(int64_t r0, int64_t r1, int64_t j0, int64_t j1, int64_t dim, float* to) {
    for (int64_t r = r0; r < r1; ++r) std::fill(to + r * keys_ + j0, to + r * keys_ + j1, 0.0F);
    multiply_add(r1 - r0, j1 - j0, dim, a_, b_, to + r0 * keys_ + j0, keys_);
  }

  // Sums over rows of matrix^T times what `load` reads, stored for each key.
  template <typename Load, typename Store>
  void over_keys(int64_t dim, const float* matrix, bool drops, Load&& load, Store&& store) {
    for_each_tile(keys_, tile_.kv, [&](int64_t j0, int64_t j1) {
      const int64_t keys = j1 - j0;
      std::fill(sums_, sums_ + keys * dim, 0.0F);
      for_each_tile(rows_, tile_.q, [&](int64_t r0, int64_t r1) {
        for (int64_t r = r0; r < r1; ++r) {
          load(r, a_ + (r - r0) * dim);
          std::copy(matrix + r * keys_ + j0, matrix + r * keys_ + j1, weights_ + (r - r0) * keys);
          if (drops) head_.dropout_row(r, j0, j1, weights_ + (r - r0) * keys);
        }
        for (int64_t j = 0; j < keys; ++j) {
          for (int64_t r = 0; r < r1 - r0; ++r) column_[r] = head_.round_to_input(weights_[r * keys + j]);
          weighted_sum(dim, r1 - r0, column_, a_, sums_ + j * dim);
        }
      });
      for (int64_t j = j0; j < j1; ++j) store(j, sums_ + (j - j0) * dim);
    });
    head_.touched(rows_ * keys_);
    head_.moved(matrix_bytes());
  }

  double matrix_bytes() const { return static_cast<double>(rows_) * static_cast<double>(keys_) * sizeof(float); }

  const KvHead& head_;
  Tiles tile_;
  int64_t rows_, keys_, dim_;
  float* p_;         // [rows][keys]
  float* ds_;        // [rows][keys], dP at first
  float* products_;  // [rows][keys], where there is a softcap
  float* a_;         // [tile][dim] rows of q or d_out
  float* b_;         // [tile][dim] keys, or [dim][tile.kv]
  float* sums_;      // [tile][dim]
  float* row_;       // [dim]
  float* weights_;   // [tile.q][tile.kv]
  float* column_;    // [tile.q]
};

void run(const KvHead& head, float* scratch) {
  StandardBackward standard(head, scratch);
  standard.probs();
  if (head.wants(Name::dv)) standard.dv();
  standard.d_probs();
  standard.d_scores();
  if (head.wants(Name::dq)) standard.dq();
  if (head.wants(Name::dk)) standard.dk();
}

}  // namespace

const BackwardAlgorithm kStandardBackward = {"reference.standard_backward",
                                             "standard attention: six kernels, N x N matrices in memory",
                                             6,
                                             scratch_floats,
                                             bytes_moved,
                                             run};

}  // namespace tessella::reference
