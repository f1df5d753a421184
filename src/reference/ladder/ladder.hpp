// The ladder: the algorithms of the FlashAttention family side by side, one file each, all with every feature.
//
// Each computes one head at a time through a Head, which loads rows from memory into fp32 (the papers' accumulator
// type: the `error` column then shows what each order of summation costs, where double would show nothing), applies
// the score chain and counts what moves. They run only when named.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "core/cancel.hpp"
#include "core/kernel.hpp"
#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"
#include "reference/score.hpp"

namespace tessella::reference {

// Scores produced or read, and bytes moved between memory and the tile that is worked on.
struct Traffic {
  double scores = 0;
  double bytes = 0;
};

// One head of one sequence.
class Head {
 public:
  Head(const core::AttentionArguments& arguments, const core::Sequence& sequence, int64_t head, Traffic* traffic)
      : p_(arguments),
        s_(sequence),
        head_(head),
        kv_head_(head / arguments.group()),
        dropout_(arguments),
        traffic_(traffic) {}

  int64_t len_q() const { return s_.len_q; }
  int64_t len_kv() const { return s_.len_kv; }
  int64_t head_dim_qk() const { return p_.head_dim_qk; }
  int64_t head_dim_v() const { return p_.head_dim_v; }
  double row_bytes_qk() const { return static_cast<double>(p_.head_dim_qk * core::size_bytes(p_.dtype())); }
  double row_bytes_v() const { return static_cast<double>(p_.head_dim_v * core::size_bytes(p_.dtype())); }
  double row_bytes_out() const {
    return static_cast<double>(p_.head_dim_v * core::size_bytes(p_.out_dtype()) + (p_.lse().data != nullptr ? 4 : 0));
  }

  // Throws core::Cancelled once the call is cancelled; so do load_q, load_v and load_k_transposed.
  void end_if_cancelled() const { core::end_if_cancelled(p_.cancel); }

  void load_q(int64_t i, float* row) const;
  void load_v(int64_t j, float* row) const;
  // Keys [begin, end) as columns: tile[c][j - begin].
  void load_k_transposed(int64_t begin, int64_t end, float* row, float* tile) const;
  void store(int64_t i, const float* out, float lse) const;

  bool visible(int64_t i, int64_t j) const { return core::visible(s_, head_, i, j); }
  // Pairs of query and key that the masks leave.
  int64_t visible_pairs() const;
  // False if the band hides every key of [key_begin, key_end) from every row of [row_begin, row_end).
  bool meets_band(int64_t row_begin, int64_t row_end, int64_t key_begin, int64_t key_end) const;

  // Score of key j for a query; loads the key into k. -inf where hidden by its bias.
  float score(int64_t i, int64_t j, const float* q, float* k) const;
  // Products q.k of query i with keys [key_begin, key_end) become scores, -inf where hidden.
  void scores(int64_t i, int64_t key_begin, int64_t key_end, float* products) const;
  float sink() const { return reference::sink<float>(p_, head_); }
  // Dropout's factor on a probability.
  float dropout(int64_t i, int64_t j) const { return dropout_.at<float>(s_, head_, i, j); }
  void dropout_row(int64_t i, int64_t key_begin, int64_t key_end, float* probs) const;
  float round_to_input(float prob) const { return round_to(p_.dtype(), prob); }

  // For what an algorithm keeps in memory itself.
  void moved(double bytes) const {
    if (traffic_ != nullptr) traffic_->bytes += bytes;
  }
  void touched(int64_t scores) const {
    if (traffic_ != nullptr) traffic_->scores += static_cast<double>(scores);
  }

 private:
  const core::AttentionArguments& p_;
  const core::Sequence& s_;
  int64_t head_;
  int64_t kv_head_;
  DropoutFactor dropout_;
  Traffic* traffic_;
};

// Tiles as in FlashAttention's algorithm 1: B_c = M / 4d keys and B_r = min(B_c, d) queries for a fast memory of M
// elements.
struct Tiles {
  int64_t q;
  int64_t kv;
};
Tiles tiles(const core::AttentionShape& shape);
Tiles tiles(const Head& head);

struct Algorithm {
  std::string_view name;
  std::string_view summary;
  double score_passes;                                     // for a call without masks
  int64_t (*scratch_floats)(const core::AttentionShape&);  // of one thread
  double (*bytes_moved)(const Head&);                      // by one head; counted again by run() in the tests
  void (*run)(const Head&, float* scratch);                // writes every row of the head
};

extern const Algorithm kStandard;
extern const Algorithm kSafeSoftmax;
extern const Algorithm kOnlineSoftmax;
extern const Algorithm kOnePass;
extern const Algorithm kFlash1;
extern const Algorithm kFlash2;
extern const Algorithm kFlashDecoding;
extern const Algorithm kFlashDecodingPp;

core::WorkspaceSize ladder_workspace(const Algorithm& algorithm, const core::AttentionShape& shape, int num_threads);
core::Cost ladder_cost(const Algorithm& algorithm, const core::AttentionArguments& arguments);
void ladder_run(const Algorithm& algorithm, const core::AttentionArguments& arguments, int num_threads, void* scratch,
                Traffic* traffic = nullptr);

// Row after row of the softmax's state without a key: the sink is one that has no value.
inline float first_maximum(const Head& head) { return head.sink(); }
inline float first_sum(const Head& head) { return head.sink() == kHidden<float> ? 0.0F : 1.0F; }
// True if no key of a tile is seen by a row. A maximum of -inf does not say so: std::max passes NaN by.
inline bool all_hidden(const float* scores, int64_t count) {
  return std::all_of(scores, scores + count, [](float score) { return score == kHidden<float>; });
}
inline float log_sum(float maximum, float sum) { return sum == 0 ? kHidden<float> : maximum + std::log(sum); }

}  // namespace tessella::reference
