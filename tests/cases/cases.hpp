// A test of attention as data: everything that decides a call, written as one replayable line.
//
//   kernel=cpu.forward_avx512 dtype=bf16 seqlen_q=5 seqlen_kv=70 window_right=0 seed=7
//
// Fields that keep their defaults are left out. `random_test --case "LINE"` runs it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cases/random.hpp"

namespace tessella::tests {

// Bands with keys that no query sees between or beside those that some query sees: causal_top_left ends the keys of a
// query before its window or chunk begins. In the first no query sees a key, in the last none but the first two.
inline constexpr const char* kBandsWithHoles[] = {
    "causal_top_left=1 window_left=3 seqlen_q=40 seqlen_kv=90 head_dim_qk=32 head_dim_v=32",
    "causal_top_left=1 chunk=16 seqlen_q=100 seqlen_kv=108 head_dim_qk=32 head_dim_v=32",
    "causal_top_left=1 chunk=150 seqlen_q=200 seqlen_kv=208 head_dim_qk=32 head_dim_v=32",
    "causal_top_left=1 window_left=3 keep_first=2 seqlen_q=300 seqlen_kv=400 head_dim_qk=32 head_dim_v=32"};

struct Case {
  std::string kernel;  // "" = the library's choice
  std::string device;  // "cuda": of a choice among the GPU's kernels; "" = the kernel's own
  std::string dtype = "f32";
  std::string out_dtype;  // "" = dtype
  std::string kv_dtype;   // of k and v; "" = dtype; or f8e4m3fn, i8, i4; those of fp8 q have its dtype
  // k_scale and v_scale beside k and v of fewer than 16 bits: "" none, "1" one, "h" of each head, "sh" of each sequence
  // (or page, or slot) and head, "bh" of a block of tokens and a head, "th" of each token and head, "ph" the same
  // between the rows of k and v
  std::string kv_scale;
  std::string q_scale;        // beside q of fp8: likewise, but "ph"
  std::string out_scale;      // beside out of fp8
  std::string amax;           // beside any
  int64_t scale_block = 0;    // tokens of a block of "bh"; 0 = 4
  bool outliers = false;      // some numbers of fp8 are the largest there is, and some zero
  bool v_in_k = false;        // v is the first columns of k
  bool transposed_v = false;  // v of fp8 as quantize writes it for Hopper
  // bshd, bhsd, sliced (odd gaps in rows and heads), gaps (the same of 16 elements), qkv (one buffer), huge (gaps of
  // GiB)
  std::string layout = "bshd";
  int64_t shift = 0;  // elements that q, k, v and out start past an aligned address
  int64_t batch = 1;
  int64_t heads_q = 1;
  int64_t heads_kv = 1;
  int64_t seqlen_q = 4;
  int64_t seqlen_kv = 4;
  int64_t head_dim_qk = 8;
  int64_t head_dim_v = 8;
  // Tables of lengths, with values drawn from the seed.
  bool packed_q = false;
  bool packed_kv = false;
  bool seqlens_q = false;
  bool seqlens_kv = false;
  bool leftpad_kv = false;
  bool cache_batch_idx = false;  // k and v in slots of a larger cache, in random order
  int64_t page_size = 0;         // k and v in pages, in random order, and seqlen_kv rounded up to whole ones; 0 = not
  // Masks. Tensors name the axes that do not broadcast: "bhqk", "qk", "k", "1" (none); "" = absent.
  int64_t window_left = -1;
  int64_t window_right = -1;
  bool causal_top_left = false;
  int64_t chunk = 0;
  int64_t keep_first = 0;
  bool prefix = false;
  bool document = false;
  std::string dense;
  std::string block_map;
  int64_t block_q = 1;
  int64_t block_kv = 1;
  // Axes that do not broadcast, "bh", "h", "1"; of packed rows b broadcasts.
  std::string key_ranges;
  std::string query_ranges;
  std::string draft_mask;  // "b": of each sequence, "1": one for all
  // Squares of so many elements of a dense mask or block map are hidden or shown whole, or drawn as without; documents
  // are about so long, and so many rows have the same ranges.
  int64_t mask_region = 0;
  std::string score_order;  // axes of masks and bias in memory, the fastest last: "bhkq"; "" = "bhqk"
  // Scores.
  std::string bias;
  bool bias_f32 = true;  // false: in the dtype of q
  double bias_mean = 0;  // of bias and of sinks
  std::string alibi;     // "h" or "bh"
  double scale = 0;      // 0 = the default of the library
  double softcap = 0;
  bool sink = false;
  double dropout = 0;
  double spread = 1;  // standard deviation of q; large ones force the maximum to move
  double mean = 0;    // of the scores q . k / sqrt(head_dim_qk)
  bool lse = true;
  // How it is called.
  int64_t threads = 1;
  bool plan = false;  // through a plan and a poisoned workspace
  bool batch_invariant = false;
  bool few = false;                        // query_class
  int64_t num_splits = 0;                  // of the keys; 0 = automatic
  bool need_not_be_deterministic = false;  // backward: deterministic is not needed
  int64_t max_seqlen = 0;                  // that a plan is made for, of queries and keys; 0 = the case's own
  bool memory_seed = false;                // dropout's seed and offset as tensors
  bool guard = false;                      // tensors end where an unreadable page begins
  // Backward: the gradients that are wanted, of q, k, v, b (bias), s (sink) and a (ALiBi slopes); "" = forward. Out and
  // LSE are the reference's.
  std::string gradients;
  bool gradients_f32 = false;  // else in the dtypes of what they are of
  bool d_lse = false;
  bool masked_nan = false;  // NaN also in keys of the sequence that no query sees, and in queries that see no key
  uint64_t seed = 0;
};

std::string to_string(const Case& c);
// Throws std::invalid_argument naming the field that is unknown.
Case parse(std::string_view line);

// A small random case that the kernel's dtypes allow; sizes sometimes cross tile borders.
Case random_case(uint64_t seed, std::string_view kernel, std::string_view dtypes);

// One of few queries on caches: at most 64 rows of a sequence and KV head, up to 3000 keys. What kernels of the GPU are
// compiled for is one of so many choices.
inline constexpr int kDecodeConfigurations = 48;
Case random_decode_case(uint64_t seed, std::string_view kernel, std::string_view dtypes,
                        int num_configurations = kDecodeConfigurations);

// One of those with k and v of 8 or 4 bits.
Case random_quantized_case(uint64_t seed, std::string_view kernel, std::string_view dtypes,
                           int num_configurations = kDecodeConfigurations);
// The same of MLA's caches: rows of more than 256 columns, of which the first are the values.
Case random_mla_case(uint64_t seed, std::string_view kernel, std::string_view dtypes,
                     int num_configurations = kDecodeConfigurations);

// The case without what its kernel does not support: cuda.backward_sm90 and cuda.forward_f8_sm90 have no rows that
// begin between multiples of 16 bytes, and this one has no out of 8 bits.
Case supported(Case c);
// The same of backward.
Case random_backward_case(uint64_t seed, std::string_view kernel, std::string_view dtypes);

// A forward case as one of backward, with random gradients.
Case backward_of(Case c);

// A random case costs milliseconds: sizes shrink, one after the other, until its products are few.
void limit_work(Random& random, Case& c);

// Scales and amax, and a dtype of out, beside q, k and v of fp8.
void draw_float8(Random& random, Case& c);
// Beside others: out of fp8, or amax.
void draw_out_of_float8(Random& random, Case& c);
// The case with one of both, by its dtype.
Case of_eight_bits(Case c);

// Axes that a dense mask, bias or block map has, and key ranges or query ranges: the others broadcast.
std::string random_axes(Random& random);
std::string random_axes_of_ranges(Random& random);

// The axes of masks and bias in any order.
void draw_score_order(Random& random, Case& c);

}  // namespace tessella::tests
