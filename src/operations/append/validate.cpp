// Preconditions of append on values: ranges, lengths, tables, memory.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/limits.hpp"
#include "core/message.hpp"
#include "core/overlaps.hpp"
#include "operations/append/append.hpp"

namespace tessella::core {
namespace {

class AppendValidator {
 public:
  AppendValidator(const AppendArguments& arguments, const char* function) : a_(arguments), function_(function) {}

  void run() const {
    validate_resources(a_, function_);
    Append::validate_sizes(a_, function_);
    at_most(function_, "seqlen_kv", a_.seqlen_kv, kMostRows);
    at_most(function_, a_.page_size > 0 ? "num_pages" : "the batch of k", a_.num_slots, kMostCount);
    at_most(function_, "the rows of rotary_cos", a_.positions, kMostCount);
    validate_outputs_not_folded(a_, function_);
    validate_outputs(a_, function_, [&](const FieldName& output, const FieldName& input) {
      if (std::string_view(output.owner) != "q_out" || std::string_view(input.owner) != "q") return false;
      const int64_t batch = a_.cu_seqlens_new ? 1 : a_.batch;
      if (is_same_view(a_.q_rows.into, a_.q_rows.from, batch, a_.total_new, a_.q.heads)) return true;
      fail_overlap(function_, output, input, ", or the same view");
    });
    if (a_.device.type == DeviceType::cpu) tables();
  }

  void tables() const {
    packed();
    std::vector<Written> written;
    for (int64_t b = 0; b < a_.batch; ++b) {
      const int64_t rows = new_rows(b);
      const int64_t leftpad = a_.leftpad_kv ? a_.leftpad_kv.at(b) : 0;
      const int64_t end = a_.seqlens_kv.at(b);
      expect(leftpad >= 0, "leftpad_kv", b, leftpad, "at least 0");
      expect(end <= a_.seqlen_kv, "seqlens_kv", b, end, "at most ", a_.seqlen_kv,
             ", the rows that a sequence may have");
      expect(end >= leftpad + rows, "seqlens_kv", b, end, "at least ", leftpad + rows, ", the left padding and the ",
             rows, " new rows, which count");
      if (rows == 0) continue;
      positions(b, end - rows - leftpad, end - leftpad);
      check_positions(b, end - rows, end, written);
    }
    are_apart(written);
  }

 private:
  // Rows of a slot or page that a sequence writes.
  struct Written {
    int64_t slot, begin, end, batch_idx;
  };

  template <typename... Expected>
  void expect(bool holds, const char* table, int64_t idx, int64_t got, const Expected&... expected) const {
    expect_entry(holds, function_, table, idx, got, expected...);
  }

  void packed() const {
    if (!a_.cu_seqlens_new) return;
    const Table<int32_t>& cu = a_.cu_seqlens_new;
    constexpr const char* kName = "cu_seqlens_new";
    expect(cu.at(0, 0) == 0, kName, 0, cu.at(0, 0), "0");
    for (int64_t b = 0; b < a_.batch; ++b) {
      expect(cu.at(0, b + 1) >= cu.at(0, b), kName, b + 1, cu.at(0, b + 1), "at least ", cu.at(0, b), " = ", kName, "[",
             b, "]");
      expect(cu.at(0, b + 1) <= a_.total_new, kName, b + 1, cu.at(0, b + 1), "at most ", a_.total_new,
             ", the rows of the packed tensor");
    }
  }

  int64_t new_rows(int64_t b) const {
    const int64_t all = a_.cu_seqlens_new ? a_.cu_seqlens_new.at(0, b + 1) - a_.cu_seqlens_new.at(0, b) : a_.seqlen_new;
    if (!a_.seqlens_new) return all;
    const int64_t rows = a_.seqlens_new.at(b);
    expect(rows >= 0 && rows <= all, "seqlens_new", b, rows, "0 to ", all, ", the rows of the sequence");
    return rows;
  }

  void positions(int64_t b, int64_t first, int64_t end) const {
    if (a_.rotary_dim == 0) return;
    const int64_t offset = a_.rotary_offsets ? a_.rotary_offsets.at(b) : 0;
    if (first + offset >= 0 && end + offset <= a_.positions) return;
    const std::string range = message("positions ", first + offset, " to ", end + offset - 1);
    invalid(message(function_, ": sequence ", b, " has new rows at ", range, ", expected 0 to ", a_.positions - 1,
                    ", the rows of rotary_cos"));
  }

  void check_positions(int64_t b, int64_t begin, int64_t end, std::vector<Written>& written) const {
    if (a_.page_size == 0) {
      const int64_t slot = a_.cache_batch_idx ? a_.cache_batch_idx.at(b) : b;
      if (a_.cache_batch_idx) {
        expect(slot >= 0 && slot < a_.num_slots, "cache_batch_idx", b, slot, "0 to ", a_.num_slots - 1,
               ", the batch of k");
      }
      written.push_back({slot, begin, end, b});
      return;
    }
    for (int64_t page = begin / a_.page_size; page * a_.page_size < end; ++page) {
      const int64_t first = page * a_.page_size;
      const int32_t slot = a_.page_table.at(b, page);
      if (slot < 0 || slot >= a_.num_slots) {
        invalid(message(function_, ": page_table[", b, "][", page, "] is ", slot, ", expected 0 to ", a_.num_slots - 1,
                        ", the pages of k"));
      }
      written.push_back({slot, std::max(begin - first, int64_t{0}), std::min(end - first, a_.page_size), b});
    }
  }

  // Who wrote a row last would be chance.
  void are_apart(std::vector<Written>& written) const {
    std::sort(written.begin(), written.end(), [](const Written& x, const Written& y) {
      return std::pair(x.slot, x.begin) < std::pair(y.slot, y.begin);
    });
    for (size_t i = 1; i < written.size(); ++i) {
      const Written& before = written[i - 1];
      const Written& here = written[i];
      if (before.slot != here.slot || before.end <= here.begin) continue;
      invalid(message(function_, ": sequences ", std::min(before.batch_idx, here.batch_idx), " and ",
                      std::max(before.batch_idx, here.batch_idx), " have a new row in row ", here.begin, " of ",
                      a_.page_size > 0 ? "page " : "batch ", here.slot, " of k, expected rows of their own"));
    }
  }

  const AppendArguments& a_;
  const char* function_;
};

}  // namespace

void Append::validate_sizes(const AppendShape& p, const char* function) {
  at_most(function, "batch", p.batch, kMostCount - 1);
  at_most(function, "the rows of k_new", p.total_new, kMostRows);
  const double tokens = static_cast<double>(p.batch) * static_cast<double>(p.seqlen_new);
  if (tokens > static_cast<double>(kMostRows)) {
    unsupported(message(function, ": batch * seqlen_new is ", tokens, ", expected at most ", kMostRows));
  }
  for (const auto& [name, rows] : {std::pair{"k_new", p.k_new}, std::pair{"v_new", p.v_new}, std::pair{"q", p.q}}) {
    if (rows.heads <= (int64_t{1} << 24) && rows.head_dim <= (int64_t{1} << 24)) continue;
    unsupported(message(function, ": ", name, " has ", rows.heads, " heads of ", rows.head_dim,
                        ", expected at most 2^24 of each"));
  }
}

void Append::validate(const AppendArguments& arguments, const char* function) {
  AppendValidator(arguments, function).run();
}
void Append::validate_tables(const AppendArguments& arguments, const char* function) {
  AppendValidator(arguments, function).tables();
}

}  // namespace tessella::core
