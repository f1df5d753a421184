// Decoding: few queries a sequence over a cache of keys and values, as several calls of one shape over caches of their
// own.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "commands/cache_type.hpp"
#include "device/memory.hpp"
#include "options/attention_options.hpp"
#include "options/call.hpp"

namespace tessella::cli {

struct DecodeCase {
  tessella_dtype dtype = TESSELLA_BF16;     // of q and out
  tessella_dtype kv_dtype = TESSELLA_BF16;  // of the cache
  ScaleOf kv_scale = ScaleOf::none;         // what has a factor of its own, of k and of v
  int64_t heads_q = 1;
  int64_t heads_kv = 1;
  int64_t head_dim = 128;
  int64_t batch = 1;
  int64_t seqlen = 1;     // of the cache; the longest where lengths are ragged
  int64_t queries = 1;    // the last of each sequence, causal
  int64_t page_size = 0;  // rows; 0: each sequence's cache is in one piece
  bool ragged = false;

  std::string name() const;
};

// Keys of each sequence; ragged ones are uniform from `queries` to seqlen, the same every time.
std::vector<int32_t> lengths_of(const DecodeCase& decode_case);

// How the calls of a case lie in memory.
struct DecodeLayout {
  DecodeLayout(const DecodeCase& decode_case, const Placement& placement);

  std::vector<int32_t> lengths;
  std::vector<int32_t> page_table;  // of random pages, (batch, pages of the longest); empty: not paged
  int64_t num_pieces;               // of a cache: sequences, or pages
  int64_t rows_each;
  size_t row_bytes = 0;    // of a token of k, all its heads
  size_t half_bytes = 0;   // of a cache's k; v follows, then scales of k, and of v
  size_t num_scales = 0;   // of k, and of v
  size_t scale_bytes = 0;  // of those of k
  size_t cache_bytes = 0;  // that a call reads, scales too
  size_t q_bytes = 0;      // of a call's q, and of its out
  int64_t num_calls = 0;   // whose caches no GPU or CPU keeps near itself all at once

  size_t scales_offset() const { return 2 * half_bytes; }
  size_t cache_stride() const { return 2 * (half_bytes + scale_bytes); }
  double total_bytes() const;
};

class DecodeCalls {
 public:
  // Throws std::bad_alloc or Error(out_of_memory).
  DecodeCalls(const DecodeCase& decode_case, const AttentionOptionValues& options);

  int64_t size() const { return layout_.num_calls; }
  const Call& at(int64_t idx) const { return calls_[static_cast<size_t>(idx)]; }
  void choose_kernel(const std::string& kernel);  // "" lets the library choose

  const DecodeLayout& layout() const { return layout_; }
  const Memory& caches() const { return caches_; }  // one after another

  // Rows of the first call's out, of a few sequences, beside the float64 reference: the worst of them.
  tessella_check_report check_rows(int64_t num_rows) const;

 private:
  void fill() const;
  void add_call(int64_t idx);
  void set_options(Call& call) const;
  void read_rows(void* to, size_t offset, size_t row_bytes, int64_t sequence) const;
  Array keys_of(size_t offset, int64_t sequence) const;
  Array scales_of(size_t offset, int64_t sequence) const;

  DecodeCase case_;
  AttentionOptionValues options_;
  DecodeLayout layout_;
  Memory caches_, q_, out_, seqlens_, table_;
  std::deque<Call> calls_;
};

}  // namespace tessella::cli
