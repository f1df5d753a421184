// The backward rungs of the ladder: gradients of q, k and v of one KV head at a time, through a KvHead, as the
// forward's work on a Head. Gradients of what scores read are the oracle's.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/kernel.hpp"
#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"
#include "reference/ladder/ladder.hpp"

namespace tessella::reference {

// One KV head of one sequence with the queries of its group as rows: row r is query r / group of query head r % group.
class KvHead {
 public:
  KvHead(const core::AttentionArguments& arguments, const core::Sequence& sequence, int64_t kv_head, Traffic* traffic);

  int64_t rows() const { return s_.len_q * p_.group(); }
  int64_t len_kv() const { return s_.len_kv; }
  int64_t head_dim_qk() const { return p_.head_dim_qk; }
  int64_t head_dim_v() const { return p_.head_dim_v; }
  Tiles tiles() const { return reference::tiles(p_); }
  bool has_softcap() const { return p_.features.has(core::Feature::softcap); }
  bool wants(core::Name gradient) const { return p_.wants(gradient); }
  // Bytes of a row of q, k, v, d_out or out, or of a gradient as it is stored; 0 if the gradient is not wanted.
  double row_bytes(core::Name name) const;
  // LSE and the gradient of it, where there is one.
  double lse_bytes() const { return sizeof(float); }
  double d_lse_bytes() const { return p_.features.has(core::Feature::d_lse) ? sizeof(float) : 0; }

  // +inf for a row that sees no key: its probabilities are 0.
  float load_lse(int64_t r) const;
  void load_q(int64_t r, float* row) const { heads_[in_group(r)].load_q(query(r), row); }
  void load_k(int64_t j, float* row) const;
  void load_v(int64_t j, float* row) const { heads_[0].load_v(j, row); }
  // Loads zeros for a row that sees no key, without reading its memory.
  void load_d_out(int64_t r, float* row) const;
  // delta = dO . out - dLSE; row: scratch of head_dim_v.
  float load_delta(int64_t r, const float* d_out, float* row) const;

  // False if the band hides every key of [key_begin, key_end) from every row of [row_begin, row_end).
  bool meets_band(int64_t row_begin, int64_t row_end, int64_t key_begin, int64_t key_end) const {
    return heads_[0].meets_band(query(row_begin), query(row_end - 1) + 1, key_begin, key_end);
  }
  // Products q.k of a row with keys [key_begin, key_end) become P, before dropout: 0 where hidden.
  void probs(int64_t r, int64_t key_begin, int64_t key_end, float lse, float* products) const;
  void dropout_row(int64_t r, int64_t key_begin, int64_t key_end, float* probs) const {
    heads_[in_group(r)].dropout_row(query(r), key_begin, key_end, probs);
  }
  // Products dO.v become gradients of scale * q.k; products q.k are read where there is a softcap.
  void d_scores(int64_t r, int64_t key_begin, int64_t key_end, float delta, const float* probs, const float* products,
                float* d_probs) const;
  float round_to_input(float value) const { return heads_[0].round_to_input(value); }

  // Row r of dq, or key j of dk or dv; adds where the call accumulates. dq and dk are not yet times scale.
  void store_dq(int64_t r, float* row) const;
  void store_dk(int64_t j, float* row) const;
  void store_dv(int64_t j, float* row) const;

  void moved(double bytes) const { heads_[0].moved(bytes); }
  void touched(int64_t scores) const { heads_[0].touched(scores); }

 private:
  int64_t query(int64_t r) const { return r / p_.group(); }
  size_t in_group(int64_t r) const { return static_cast<size_t>(r % p_.group()); }
  int64_t head(int64_t r) const { return kv_head_ * p_.group() + r % p_.group(); }
  const std::byte* row_of(core::Name name, int64_t r) const {
    return p_.tensors[name].row(s_.batch_idx, s_.row_q + query(r), head(r));
  }
  void store(core::Name name, core::Gradient gradient, int64_t row, int64_t head, float factor, float* values) const;

  const core::AttentionArguments& p_;
  const core::Sequence& s_;
  int64_t kv_head_;
  std::vector<Head> heads_;  // of its group
};

struct BackwardAlgorithm {
  std::string_view name;
  std::string_view summary;
  double score_passes;                                     // for a call without masks that wants dq, dk and dv
  int64_t (*scratch_floats)(const core::AttentionShape&);  // of one thread
  double (*bytes_moved)(const KvHead&);                    // by one head; counted again by run() in the tests
  void (*run)(const KvHead&, float* scratch);              // stores every row and key of the head
};

extern const BackwardAlgorithm kStandardBackward;
extern const BackwardAlgorithm kFlashBackward;

core::WorkspaceSize ladder_workspace(const BackwardAlgorithm& algorithm, const core::AttentionShape& shape,
                                     int num_threads);
core::Cost ladder_cost(const BackwardAlgorithm& algorithm, const core::AttentionArguments& arguments);
void ladder_run(const BackwardAlgorithm& algorithm, const core::AttentionArguments& arguments, int num_threads,
                void* scratch, Traffic* traffic = nullptr);

// to[c][r] = from[r][c], rows of `from` being `stride` apart.
inline void transpose(int64_t num_rows, int64_t num_columns, const float* from, int64_t stride, float* to) {
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t c = 0; c < num_columns; ++c) to[c * num_rows + r] = from[r * stride + c];
  }
}

}  // namespace tessella::reference
