// Preconditions of attention on values: ranges, lengths, tables, memory.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "core/error.hpp"
#include "core/limits.hpp"
#include "core/message.hpp"
#include "core/overlaps.hpp"
#include "operations/attention/attention.hpp"
#include "operations/attention/sequence.hpp"

namespace tessella::core {
namespace {

class Validator {
 public:
  Validator(const AttentionArguments& arguments, const char* function) : p_(arguments), function_(function) {}

  void run() const {
    scalars();
    if (p_.device.type == DeviceType::cpu) tables();
    validate_outputs_not_folded(p_, function_);
    validate_outputs(p_, function_, [](const FieldName&, const FieldName&) { return false; });
  }

  void tables() const {
    lengths();
    pages();
    slots();
    for (const SequenceTable& of : kSequenceTables) {
      const Table<int32_t>& table = p_.*of.member;
      const bool has_least = of.least > std::numeric_limits<int32_t>::min();
      for (int64_t b = 0; has_least && table && b < p_.batch; ++b) {
        expect_entry(table.at(b) >= of.least, of.name, b, table.at(b), "at least ", of.least);
      }
    }
    ranges();
  }

 private:
  template <typename Value, typename... Expected>
  void expect(bool holds, const char* argument, const Value& got, const Expected&... expected) const {
    if (!holds) invalid(message(function_, ": ", argument, " is ", got, ", expected ", expected...));
  }
  template <typename... Expected>
  void expect_entry(bool holds, const char* table, int64_t idx, int64_t got, const Expected&... expected) const {
    core::expect_entry(holds, function_, table, idx, got, expected...);
  }

  void scalars() const {
    expect(std::isfinite(p_.scale), "scale", p_.scale, "a finite number");
    expect(std::isfinite(p_.softcap) && p_.softcap >= 0, "softcap", p_.softcap, "a finite number, at least 0");
    expect(p_.dropout >= 0 && p_.dropout < 1, "dropout", p_.dropout, "a probability in [0, 1)");
    expect(p_.window_left >= -1, "window_left", p_.window_left, "at least -1 (no bound)");
    expect(p_.window_right >= -1, "window_right", p_.window_right, "at least -1 (no bound)");
    expect(p_.chunk >= 0, "chunk", p_.chunk, "at least 0 (off)");
    expect(p_.keep_first >= 0, "keep_first", p_.keep_first, "at least 0 (off)");
    expect(p_.num_threads >= 0, "num_threads", p_.num_threads, "at least 0 (all)");
    expect(p_.num_sms >= 0, "num_sms", p_.num_sms, "at least 0 (all)");
    Forward::validate_sizes(p_, function_);
  }

  void packed(const char* name, const Table<int32_t>& cu, int64_t total, int64_t longest) const {
    if (!cu) return;
    expect_entry(cu.at(0, 0) == 0, name, 0, cu.at(0, 0), "0");
    for (int64_t b = 0; b < p_.batch; ++b) {
      const int64_t begin = cu.at(0, b);
      const int64_t end = cu.at(0, b + 1);
      expect_entry(end >= begin, name, b + 1, end, "at least ", begin, " = ", name, "[", b, "]");
      expect_entry(end <= total, name, b + 1, end, "at most ", total, ", the rows of the packed tensor");
      expect_entry(end - begin <= longest, name, b + 1, end, "at most ", longest, ", the bound of lengths, more than ",
                   name, "[", b, "] = ", begin);
    }
  }

  static int64_t rows_of(const Table<int32_t>& cu, int64_t seqlen, int64_t b) {
    return cu ? cu.at(0, b + 1) - cu.at(0, b) : seqlen;
  }

  void lengths() const {
    packed("cu_seqlens_q", p_.cu_seqlens_q, p_.total_q, p_.seqlen_q);
    packed("cu_seqlens_kv", p_.cu_seqlens_kv, p_.total_kv, p_.seqlen_kv);
    for (int64_t b = 0; b < p_.batch; ++b) {
      const int64_t slots_q = rows_of(p_.cu_seqlens_q, p_.seqlen_q, b);
      const int64_t slots_kv = rows_of(p_.cu_seqlens_kv, p_.seqlen_kv, b);
      const auto within = [&](const char* name, const Table<int32_t>& table, int64_t most, const char* what) {
        if (!table) return;
        expect_entry(table.at(b) >= 0 && table.at(b) <= most, name, b, table.at(b), "0 to ", most, ", ", what);
      };
      within("seqlens_q", p_.seqlens_q, slots_q, "the rows of the sequence");
      within("seqlens_kv", p_.seqlens_kv, slots_kv, "the keys of the sequence");
      within("leftpad_kv", p_.leftpad_kv, p_.seqlens_kv ? p_.seqlens_kv.at(b) : slots_kv,
             "the valid keys of the sequence");
    }
  }

  // Rows of a sequence of k, which is not packed, that hold its keys; where there are none begin is no less than end.
  struct Keys {
    int64_t begin, end;
  };
  Keys keys(int64_t b) const {
    return {p_.leftpad_kv ? p_.leftpad_kv.at(b) : 0, p_.seqlens_kv ? p_.seqlens_kv.at(b) : p_.seqlen_kv};
  }

  // Checks the pages that hold a sequence's keys; all other entries may hold anything. Evicted ones hold keys that no
  // query sees.
  void pages() const {
    if (!p_.page_table) return;
    for (int64_t b = 0; b < p_.batch; ++b) {
      const auto [begin, end] = keys(b);
      std::optional<Sequence> sequence;  // made where it is needed
      const auto sees = [&, b = b](int64_t page) {
        if (!sequence) sequence = core::sequence(p_, b);
        const int64_t first = page * p_.page_size - sequence->row_kv;
        return band_sees_any(*sequence, first, first + p_.page_size);
      };
      for (int64_t page = begin / p_.page_size; begin < end && page * p_.page_size < end; ++page) {
        const int32_t got = p_.page_table.at(b, page);
        if (got >= 0 && got < p_.num_pages) continue;
        if (got == -1 && !sees(page)) continue;
        invalid(message(function_, ": page_table[", b, "][", page, "] is ", got, ", expected 0 to ", p_.num_pages - 1,
                        ", the pages of k", got == -1 ? kOrEvicted : ""));
      }
    }
  }

  // Checks the slots of sequences that have keys.
  void slots() const {
    if (!p_.cache_batch_idx) return;
    for (int64_t b = 0; b < p_.batch; ++b) {
      const int32_t got = p_.cache_batch_idx.at(b);
      const bool has_keys = keys(b).begin < keys(b).end;
      expect_entry(!has_keys || (got >= 0 && got < p_.slots), "cache_batch_idx", b, got, "0 to ", p_.slots - 1,
                   ", the batch axis of k");
    }
  }

  // Checks the ranges of valid queries and keys; those of other rows may hold anything.
  void ranges() const {
    if (!p_.features.has_any(Feature::key_ranges | Feature::query_ranges)) return;
    for (int64_t b = 0; b < p_.batch; ++b) {
      const Sequence s = core::sequence(p_, b);
      if (p_.key_ranges.data != nullptr) ranges("key_ranges", p_.key_ranges, b, s.row_q, s.row_q + s.len_q);
      if (p_.query_ranges.data != nullptr) ranges("query_ranges", p_.query_ranges, b, s.row_kv, s.row_kv + s.len_kv);
    }
  }
  void ranges(const char* name, const RangeOperand& t, int64_t b, int64_t row_begin, int64_t row_end) const {
    for (int64_t h = 0; h < (t.head_stride == 0 ? 1 : p_.heads_q); ++h) {
      for (int64_t row = row_begin; row < row_end; ++row) {
        const int32_t* of_row = t.data + b * t.batch_stride + h * t.head_stride + row * t.row_stride;
        int64_t least = 0;  // where the next range may start
        for (int64_t n = 0; n < t.count; ++n) {
          const int64_t start = of_row[2 * n], end = of_row[2 * n + 1];
          if (start == end) continue;
          if (start < least || end < start) {
            const int64_t batch_idx = t.batch_stride == 0 ? 0 : b;
            invalid(message(function_, ": ", name, "[", batch_idx, ", ", h, ", ", row, ", ", n, "] is [", start, ", ",
                            end, "), expected a start of at least ", least,
                            least > 0 ? ", the end of the one before," : "", " and no less an end"));
          }
          least = end;
        }
      }
    }
  }

  static constexpr const char* kOrEvicted =
      ", or -1 for a page that the band hides from all queries (windows, chunks, keep_first, prefixes, lengths; not "
      "masks of elements)";

  const AttentionArguments& p_;
  const char* function_;
};

}  // namespace

void Forward::validate_sizes(const AttentionShape& p, const char* function) {
  // Limits on counts that kernels loop over even if no row has an element.
  for (const auto& [name, count] : {std::pair{"batch", p.batch}, std::pair{"heads_q", p.heads_q}}) {
    at_most(function, name, count, kMostCount);
  }
  if (p.seqlen_q > kMostRows / p.group()) {
    unsupported(message(function, ": seqlen_q is ", p.seqlen_q, ", expected at most ", kMostRows / p.group(), " for ",
                        p.group(), " query heads a KV head"));
  }
  if (p.seqlen_kv > kMostRows) {
    unsupported(message(function, ": seqlen_kv is ", p.seqlen_kv, ", expected at most ", kMostRows));
  }
  for (const auto& [name, count] : {std::pair{"q", p.total_q}, std::pair{"k", p.total_kv}}) {
    if (count > kMostCount) {
      unsupported(message(function, ": ", name, " has ", count, " rows, expected at most ", kMostCount));
    }
  }
  // In double, which cannot overflow: sizes of scratch are sums of such products with small factors.
  const double rows = static_cast<double>(p.batch) * static_cast<double>(std::max(p.seqlen_q, p.seqlen_kv));
  const double elements = rows * static_cast<double>(p.heads_q) * static_cast<double>(p.head_dim_qk + p.head_dim_v);
  if (elements > 0x1p52) {
    unsupported(message(function, ": batch * seqlen * heads * head_dim is ", elements, ", expected at most 2^52"));
  }
}

void Forward::validate(const AttentionArguments& arguments, const char* function) {
  Validator(arguments, function).run();
}

void Forward::validate_tables(const AttentionArguments& arguments, const char* function) {
  Validator(arguments, function).tables();
}

}  // namespace tessella::core
