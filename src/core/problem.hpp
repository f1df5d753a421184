// One call of attention in normal form: what api/ makes of the user's arguments, and all that kernels look at.
//
// Every operand is logical (batch, row, head, head_dim) whatever the memory layout; broadcast axes have stride 0.
// Strides count elements. Packed tensors (total, heads, head_dim) have batch stride 0 and are cut by cu_seqlens. Paged
// k and v (PagedAttention, arXiv 2309.06180) are pools (page, row of the page, head, head_dim), and row r of a sequence
// is row r % page_size of its page r / page_size, wherever page_table says that this one lies.
//
// All memory of a problem lies on its device. On a GPU nobody has looked at the values of its tables: kernels clamp
// lengths and offsets to the sizes given here, so that no value makes them leave the tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/device.hpp"
#include "core/dtype.hpp"

namespace tessella::core {

// What a call uses beyond q, k, v and scale. A kernel lists those it supports.
enum class Feature : uint32_t {
  window = 1u << 0,  // window_left or window_right, so causal too
  causal_top_left = 1u << 1,
  chunk = 1u << 2,
  keep_first = 1u << 3,
  prefix = 1u << 4,
  document = 1u << 5,
  dense_mask = 1u << 6,
  block_map = 1u << 7,
  seqlens_q = 1u << 8,
  seqlens_kv = 1u << 9,
  leftpad_kv = 1u << 10,
  packed_q = 1u << 11,
  packed_kv = 1u << 12,
  bias = 1u << 13,
  alibi = 1u << 14,
  softcap = 1u << 15,
  sink = 1u << 16,
  dropout = 1u << 17,
  lse = 1u << 18,
  score = 1u << 19,
  keep = 1u << 20,
  paged_kv = 1u << 21,
};

class Features {
 public:
  constexpr Features() = default;
  constexpr Features(Feature feature) : bits_(static_cast<uint32_t>(feature)) {}
  constexpr bool has(Features other) const { return (bits_ & other.bits_) == other.bits_; }
  constexpr bool has_any(Features other) const { return (bits_ & other.bits_) != 0; }
  constexpr Features operator|(Features other) const { return Features(bits_ | other.bits_); }
  constexpr Features without(Features other) const { return Features(bits_ & ~other.bits_); }
  constexpr Features& operator|=(Features other) { return *this = *this | other; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr uint32_t bits() const { return bits_; }
  bool operator==(const Features&) const = default;

 private:
  explicit constexpr Features(uint32_t bits) : bits_(bits) {}
  uint32_t bits_ = 0;
};
constexpr Features operator|(Feature a, Feature b) { return Features(a) | Features(b); }

// Every feature with the name users know it by, in the order of the support matrix.
struct FeatureName {
  Feature feature;
  const char* name;
};
inline constexpr FeatureName kFeatureNames[] = {
    {Feature::window, "causal/window"},
    {Feature::causal_top_left, "causal_top_left"},
    {Feature::chunk, "chunk"},
    {Feature::keep_first, "keep_first"},
    {Feature::prefix, "prefix"},
    {Feature::document, "document"},
    {Feature::dense_mask, "dense"},
    {Feature::block_map, "block_map"},
    {Feature::seqlens_q, "seqlens_q"},
    {Feature::seqlens_kv, "seqlens_kv"},
    {Feature::leftpad_kv, "leftpad_kv"},
    {Feature::packed_q, "cu_seqlens_q"},
    {Feature::packed_kv, "cu_seqlens_kv"},
    {Feature::paged_kv, "page_table"},
    {Feature::bias, "bias"},
    {Feature::alibi, "alibi_slopes"},
    {Feature::softcap, "softcap"},
    {Feature::sink, "sink"},
    {Feature::dropout, "dropout"},
    {Feature::lse, "lse"},
    {Feature::score, "score_mod"},
    {Feature::keep, "mask_mod"},
};
constexpr Features all_features() {
  Features all;
  for (const FeatureName& entry : kFeatureNames) all |= entry.feature;
  return all;
}
// Modifications given as text are compiled for a GPU; nothing compiles them on a CPU.
inline constexpr Features kTextFeatures = Feature::score | Feature::keep;

// (batch, row, head, head_dim), head_dim contiguous.
struct Operand {
  std::byte* data = nullptr;
  DType dtype = DType::none;
  int64_t batch_stride = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;

  // First element of one row of one head; `row` counts rows of the tensor (of the whole packed tensor).
  std::byte* row(int64_t batch_idx, int64_t row_idx, int64_t head_idx) const {
    return data + (batch_idx * batch_stride + row_idx * row_stride + head_idx * head_stride) * size_bytes(dtype);
  }
};

// (batch, head, query, key); stride 0 on broadcast axes. The key axis counts slots of the k tensor's sequence
// (padding included); in packed tensors, keys of the sequence.
struct ScoreOperand {
  const std::byte* data = nullptr;
  DType dtype = DType::none;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t q_stride = 0;
  int64_t kv_stride = 0;

  int64_t index(int64_t batch_idx, int64_t head_idx, int64_t q_idx, int64_t kv_idx) const {
    return batch_idx * batch_stride + head_idx * head_stride + q_idx * q_stride + kv_idx * kv_stride;
  }
};

// Per-batch or per-row values. `data` null means absent.
template <typename T>
struct Table {
  const T* data = nullptr;
  int64_t batch_stride = 0;
  int64_t stride = 0;
  explicit operator bool() const { return data != nullptr; }
  T at(int64_t batch_idx, int64_t idx = 0) const { return data[batch_idx * batch_stride + idx * stride]; }
};

// An array that the texts of `score` and `keep` read; dense.
struct UserArray {
  const void* data = nullptr;
  DType dtype = DType::none;  // f32, bf16, f16, i32 or bool
  int64_t count = 0;
};
inline constexpr int kMaxUserArrays = 8;

struct Problem {
  // The part a plan is made for.
  Device device;
  DType dtype = DType::none;      // of q, k and v
  DType out_dtype = DType::none;  // of out
  int64_t batch = 0;
  int64_t heads_q = 0;
  int64_t heads_kv = 0;
  int64_t head_dim_qk = 0;
  int64_t head_dim_v = 0;
  int64_t seqlen_q = 0;   // rows of a sequence of q; packed: the longest sequence, on a GPU a bound of it
  int64_t seqlen_kv = 0;  // slots of a sequence of k; packed: the longest sequence, on a GPU a bound of it
  int64_t total_q = 0;    // rows of the packed q tensor; otherwise seqlen_q
  int64_t total_kv = 0;   // rows of the packed k tensor; otherwise seqlen_kv
  int64_t page_size = 0;  // rows of a page of k and v; 0: they are not paged
  Features features;
  int32_t alignment = 1;         // GPU: bytes, 1 to 16, that divide every address and stride of q, k and v
  int32_t num_sms = 0;           // GPU: multiprocessors to use; 0 = all
  bool batch_invariant = false;  // a row must depend on nothing beside it
  DType bias_dtype = DType::none;
  std::string_view score;  // text of a modification, "" = absent; not owned
  std::string_view keep;
  int32_t num_arrays = 0;

  // The part that may change from run to run.
  Operand q;                     // (batch, seqlen_q, heads_q, head_dim_qk)
  Operand k;                     // (batch, seqlen_kv, heads_kv, head_dim_qk), paged (num_pages, page_size, ...)
  Operand v;                     // (batch, seqlen_kv, heads_kv, head_dim_v), likewise
  Operand out;                   // (batch, seqlen_q, heads_q, head_dim_v)
  Operand lse;                   // (batch, seqlen_q, heads_q, 1), f32, or f64 where dtype is f64
  Table<int32_t> seqlens_q;      // (batch) rows in use
  Table<int32_t> seqlens_kv;     // (batch) slots in use, left padding included
  Table<int32_t> leftpad_kv;     // (batch) first slot in use
  Table<int32_t> cu_seqlens_q;   // (batch + 1) first row of each sequence in the packed tensor
  Table<int32_t> cu_seqlens_kv;  // (batch + 1)
  Table<int32_t> page_table;     // (batch, seqlen_kv / page_size) pages of a sequence, in its order
  int64_t num_pages = 0;         // of k and of v
  ScoreOperand bias;             // f32, or the dtype of q
  Table<float> alibi_slopes;     // (batch, heads_q)
  Table<float> sink;             // (heads_q), in at(0, head)
  ScoreOperand dense_mask;       // bool
  ScoreOperand block_map;        // bool, one entry a tile of block_q x block_kv
  Table<int32_t> document_q;     // (batch, row); packed: batch stride 0, row of the packed tensor
  Table<int32_t> document_kv;    // (batch, slot)
  Table<int32_t> prefix;         // (batch)
  int64_t block_q = 0;
  int64_t block_kv = 0;
  int64_t window_left = -1;
  int64_t window_right = -1;
  int64_t chunk = 0;
  int64_t keep_first = 0;
  float scale = 0;
  float softcap = 0;
  float dropout = 0;
  uint64_t seed = 0;
  uint64_t offset = 0;
  const int64_t* seed_data = nullptr;  // GPU: where the seed lives; it replaces `seed`
  const int64_t* offset_data = nullptr;
  UserArray arrays[kMaxUserArrays];
  int num_threads = 0;  // 0 = all that the process may use

  int64_t group() const { return heads_q / heads_kv; }  // query heads that share a KV head

  // The first two axes of q, out and lse; of k and v.
  struct Axes {
    int64_t batch, rows;
  };
  Axes axes_q() const { return {features.has(Feature::packed_q) ? 1 : batch, total_q}; }
  Axes axes_kv() const {
    if (features.has(Feature::paged_kv)) return {num_pages, page_size};
    return {features.has(Feature::packed_kv) ? 1 : batch, total_kv};
  }
  // First element of one row of one head of t, which is k or v; row_idx counts as Sequence::row_kv does.
  std::byte* row_of(const Operand& t, int64_t batch_idx, int64_t row_idx, int64_t head_idx) const {
    if (!page_table) return t.row(batch_idx, row_idx, head_idx);
    return t.row(page_table.at(batch_idx, row_idx / page_size), row_idx % page_size, head_idx);
  }
};

}  // namespace tessella::core
