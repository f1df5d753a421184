// Mask: a conjunction of independent parts, joined with &. A key is visible iff every part says so.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include <tessella/tensor.hpp>

namespace tessella {

// Query i stands at key p = i + seqlen_kv - seqlen_q (bottom-right alignment). Key j is visible iff
class Mask {
 public:
  Mask() = default;  // all visible

  // j <= p
  static Mask causal() { return window(-1, 0); }
  // j <= i
  static Mask causal_top_left() {
    Mask mask;
    mask.causal_top_left_ = true;
    return mask;
  }
  // p - left <= j <= p + right; -1 = no bound
  static Mask window(int64_t left, int64_t right) {
    Mask mask;
    mask.window_left_ = left;
    mask.window_right_ = right;
    return mask;
  }
  // j and p lie in the same chunk of n keys
  static Mask chunk(int64_t n) {
    Mask mask;
    mask.chunk_ = n;
    return mask;
  }
  // keys below n stay visible whatever the lower bounds of window and chunk say
  static Mask keep_first(int64_t n) {
    Mask mask;
    mask.keep_first_ = n;
    return mask;
  }
  // j < lengths[batch] or j <= p; lengths (batch) i32
  static Mask prefix(const TensorView& lengths) {
    Mask mask;
    mask.prefix_ = lengths;
    return mask;
  }
  // ids_q[batch, i] == ids_kv[batch, j]; (batch, seqlen) i32, packed (total)
  static Mask document(const TensorView& ids_q, const TensorView& ids_kv = {}) {
    Mask mask;
    mask.document_q_ = ids_q;
    mask.document_kv_ = ids_kv;
    return mask;
  }
  // visible[batch, head, i, j]; bool, broadcasts. Beside leftpad_kv, j counts k's rows, padding too; beside cu_seqlens,
  // i and j count from the first of each sequence
  static Mask dense(const TensorView& visible) {
    Mask mask;
    mask.dense_ = visible;
    return mask;
  }
  // map[batch, head, i / block_q, j / block_kv]; bool, broadcasts; i and j as for dense
  static Mask block_map(const TensorView& map, int64_t block_q, int64_t block_kv) {
    Mask mask;
    mask.block_map_ = map;
    mask.block_q_ = block_q;
    mask.block_kv_ = block_kv;
    return mask;
  }

  // for each query the ranges [start, end) of keys that it sees: (batch or 1, heads_q or 1, seqlen_q, n, 2) i32, n from
  // 1 to 8, sorted and disjoint; packed q: total_q rows. Keys count as for dense. ranges.hpp makes ranges of many masks
  static Mask key_ranges(const TensorView& ranges) {
    Mask mask;
    mask.key_ranges_ = ranges;
    return mask;
  }
  // for each key the ranges of queries that see it: (batch or 1, heads_q or 1, seqlen_kv, n, 2) i32; packed k: total_kv
  // rows. Queries count from the first of each sequence
  static Mask query_ranges(const TensorView& ranges) {
    Mask mask;
    mask.query_ranges_ = ranges;
    return mask;
  }

  // Two windows join to their intersection; any other part may stand on one side only, else Error(invalid_argument).
  friend Mask operator&(const Mask& a, const Mask& b) {
    Mask joined = a;
    joined.causal_top_left_ = a.causal_top_left_ || b.causal_top_left_;
    joined.window_left_ = narrower(a.window_left_, b.window_left_);
    joined.window_right_ = narrower(a.window_right_, b.window_right_);
    join_number(joined.chunk_, b.chunk_, "chunk");
    join_number(joined.keep_first_, b.keep_first_, "keep_first");
    join_tensor(joined.prefix_, b.prefix_, "prefix");
    join_tensor(joined.document_q_, b.document_q_, "document");
    if (b.document_kv_.is_present()) joined.document_kv_ = b.document_kv_;
    join_tensor(joined.dense_, b.dense_, "dense");
    join_tensor(joined.block_map_, b.block_map_, "block_map");
    join_tensor(joined.key_ranges_, b.key_ranges_, "key_ranges");
    join_tensor(joined.query_ranges_, b.query_ranges_, "query_ranges");
    if (b.block_map_.is_present()) {
      joined.block_q_ = b.block_q_;
      joined.block_kv_ = b.block_kv_;
    }
    return joined;
  }

  void fill(tessella_forward_args& args) const {
    args.prefix_lengths = pointer(prefix_);
    args.document_ids_q = pointer(document_q_);
    args.document_ids_kv = pointer(document_kv_);
    args.dense_mask = pointer(dense_);
    args.block_map = pointer(block_map_);
    args.key_ranges = pointer(key_ranges_);
    args.query_ranges = pointer(query_ranges_);
  }
  void fill(tessella_attention_options& options) const {
    options.causal_top_left = causal_top_left_ ? 1 : 0;
    options.window_left = window_left_;
    options.window_right = window_right_;
    options.chunk = chunk_;
    options.keep_first = keep_first_;
    options.block_map_q = block_q_;
    options.block_map_kv = block_kv_;
  }

 private:
  static const tessella_tensor* pointer(const TensorView& view) {
    return view.is_present() ? &view.c_tensor() : nullptr;
  }
  static int64_t narrower(int64_t a, int64_t b) { return a == -1 ? b : b == -1 ? a : std::min(a, b); }
  [[noreturn]] static void twice(const char* part) {
    throw Error(ErrorCode::invalid_argument,
                (std::string("Mask: two ") + part + " parts joined, expected at most one").c_str());
  }
  static void join_number(int64_t& mine, int64_t other, const char* part) {
    if (mine != 0 && other != 0 && mine != other) twice(part);
    if (other != 0) mine = other;
  }
  static void join_tensor(TensorView& mine, const TensorView& other, const char* part) {
    if (mine.is_present() && other.is_present()) twice(part);
    if (other.is_present()) mine = other;
  }

  bool causal_top_left_ = false;
  int64_t window_left_ = -1;
  int64_t window_right_ = -1;
  int64_t chunk_ = 0;
  int64_t keep_first_ = 0;
  int64_t block_q_ = 0;
  int64_t block_kv_ = 0;
  TensorView prefix_, document_q_, document_kv_, dense_, block_map_, key_ranges_, query_ranges_;
};

}  // namespace tessella
