// Standard attention, three kernels with N x N matrices in memory between them (FlashAttention, arXiv 2205.14135,
// algorithm 0):
//   1. S = score(Q K^T), written to memory
//   2. P = softmax(S) by rows: S read, P written, rounded to the dtype of the inputs as a 16-bit P would be
//   3. O = P V: P read
// The baseline of `tessella bench`: plain loops over tiles that the compiler vectorises, heads in parallel, and the
// matrices of a head stay with its thread, which favours it.

#include <algorithm>
#include <cmath>

#include "operations/attention/shape.hpp"
#include "reference/ladder/ladder.hpp"
#include "reference/ladder/vector.hpp"

namespace tessella::reference {
namespace {

int64_t scratch_floats(const core::AttentionShape& p) {
  const Tiles tile = tiles(p);
  // More than any machine has, and what is made of it still fits: bounds of a plan may ask for it.
  constexpr double kMost = 0x1p46;
  const double scores = static_cast<double>(p.seqlen_q) * static_cast<double>(p.seqlen_kv);
  return 2 * static_cast<int64_t>(std::min(scores, kMost)) + tile.q * (p.head_dim_qk + p.head_dim_v) + p.head_dim_qk +
         tile.kv * std::max(p.head_dim_qk, p.head_dim_v);
}

double bytes_moved(const Head& head) {
  const double elements = static_cast<double>(head.len_q()) * static_cast<double>(head.len_kv());
  const auto tile_rows = static_cast<double>((head.len_q() + tiles(head).q - 1) / tiles(head).q);
  return static_cast<double>(head.len_q()) * (head.row_bytes_qk() + head.row_bytes_out()) +
         tile_rows * static_cast<double>(head.len_kv()) * (head.row_bytes_qk() + head.row_bytes_v()) +
         4 * elements * sizeof(float);
}

class Standard {
 public:
  Standard(const Head& head, float* scratch)
      : head_(head),
        tile_(tiles(head)),
        s_(scratch),
        p_(s_ + head.len_q() * head.len_kv()),
        q_(p_ + head.len_q() * head.len_kv()),
        o_(q_ + tile_.q * head.head_dim_qk()),
        row_(o_ + tile_.q * head.head_dim_v()),
        kv_(row_ + head.head_dim_qk()) {}

  void scores() {
    for (int64_t i0 = 0; i0 < head_.len_q(); i0 += tile_.q) {
      const int64_t i1 = std::min(i0 + tile_.q, head_.len_q());
      for (int64_t i = i0; i < i1; ++i) head_.load_q(i, q_ + (i - i0) * head_.head_dim_qk());
      for (int64_t j0 = 0; j0 < head_.len_kv(); j0 += tile_.kv) {
        const int64_t j1 = std::min(j0 + tile_.kv, head_.len_kv());
        head_.load_k_transposed(j0, j1, row_, kv_);
        for (int64_t i = i0; i < i1; ++i) std::fill(s_row(i) + j0, s_row(i) + j1, 0.0F);
        multiply_add(i1 - i0, j1 - j0, head_.head_dim_qk(), q_, kv_, s_row(i0) + j0, head_.len_kv());
        for (int64_t i = i0; i < i1; ++i) head_.scores(i, j0, j1, s_row(i) + j0);
      }
    }
    head_.moved(matrix_bytes());
  }

  // The LSE of a row is stored in its first score, which nothing reads again.
  void softmax() {
    const int64_t n = head_.len_kv();
    for (int64_t i = 0; i < head_.len_q() && n > 0; ++i) {
      head_.end_if_cancelled();
      float* s = s_row(i);
      float* p = p_row(i);
      float m = head_.sink();
      for (int64_t j = 0; j < n; ++j) m = std::max(m, s[j]);
      if (m == kHidden<float>) m = 0;  // nothing is seen: all exponentials are 0
      float sum = std::exp(head_.sink() - m);
      for (int64_t j = 0; j < n; ++j) sum += p[j] = s[j] == kHidden<float> ? 0.0F : std::exp(s[j] - m);
      s[0] = log_sum(m, sum);
      const float scale = sum == 0 ? 0 : 1 / sum;
      for (int64_t j = 0; j < n; ++j) p[j] = head_.round_to_input(p[j] * scale);
      head_.dropout_row(i, 0, n, p);
    }
    head_.touched(head_.len_q() * n);
    head_.moved(2 * matrix_bytes());
  }

  void output() {
    const int64_t dim = head_.head_dim_v();
    for (int64_t i0 = 0; i0 < head_.len_q(); i0 += tile_.q) {
      const int64_t i1 = std::min(i0 + tile_.q, head_.len_q());
      std::fill(o_, o_ + (i1 - i0) * dim, 0.0F);
      for (int64_t j0 = 0; j0 < head_.len_kv(); j0 += tile_.kv) {
        const int64_t j1 = std::min(j0 + tile_.kv, head_.len_kv());
        for (int64_t j = j0; j < j1; ++j) head_.load_v(j, kv_ + (j - j0) * dim);
        for (int64_t i = i0; i < i1; ++i) weighted_sum(dim, j1 - j0, p_row(i) + j0, kv_, o_ + (i - i0) * dim);
      }
      for (int64_t i = i0; i < i1; ++i) {
        head_.store(i, o_ + (i - i0) * dim, head_.len_kv() > 0 ? s_row(i)[0] : head_.sink());
      }
    }
    head_.touched(head_.len_q() * head_.len_kv());
    head_.moved(matrix_bytes());
  }

 private:
  float* s_row(int64_t i) const { return s_ + i * head_.len_kv(); }
  float* p_row(int64_t i) const { return p_ + i * head_.len_kv(); }
  double matrix_bytes() const {
    return static_cast<double>(head_.len_q()) * static_cast<double>(head_.len_kv()) * sizeof(float);
  }

  const Head& head_;
  Tiles tile_;
  float* s_;    // [len_q][len_kv]
  float* p_;    // [len_q][len_kv]
  float* q_;    // [tile.q][head_dim_qk]
  float* o_;    // [tile.q][head_dim_v]
  float* row_;  // [head_dim_qk]
  float* kv_;   // [head_dim_qk][tile.kv] or [tile.kv][head_dim_v]
};

void run(const Head& head, float* scratch) {
  Standard standard(head, scratch);
  standard.scores();
  standard.softmax();
  standard.output();
}

}  // namespace

const Algorithm kStandard = {"reference.standard",
                             "standard attention: three kernels, N x N matrices in memory",
                             3,
                             scratch_floats,
                             bytes_moved,
                             run};

}  // namespace tessella::reference
