#include "commands/decode_calls.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "commands/random_case.hpp"
#include "files/element_type.hpp"

namespace tessella::cli {
namespace {

constexpr double kRotatedBytes = 4e8;  // several times the largest cache of a GPU or CPU
constexpr int64_t kMostCalls = 512;    // caches under 800 kB then come to less
constexpr size_t kAlignment = 256;
constexpr int64_t kPattern = 33554393;  // random elements, repeated; a prime, so that no row of two caches is the same
constexpr uint8_t kNan = 0xff;          // of every byte: NaN in each dtype
constexpr int kCheckedSequences = 3;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t pages_for(int64_t rows, int64_t page_size) { return (rows + page_size - 1) / page_size; }

}  // namespace

std::string DecodeCase::name() const {
  return fmt::format("{} {}/{} heads x {}, batch {}, seqlen {}{}, {} quer{}{}", dtype_name(dtype), heads_q, heads_kv,
                     head_dim, batch, ragged ? "1.." : "", seqlen, queries, queries == 1 ? "y" : "ies",
                     page_size == 0 ? "" : fmt::format(", pages of {}", page_size));
}

std::vector<int32_t> lengths_of(const DecodeCase& c) {
  std::vector<int32_t> lengths(static_cast<size_t>(c.batch), static_cast<int32_t>(c.seqlen));
  std::mt19937_64 random(3);
  if (c.ragged) {
    // Not std::uniform_int_distribution, whose numbers differ between standard libraries.
    for (int32_t& length : lengths) length = static_cast<int32_t>(1 + random() % static_cast<uint64_t>(c.seqlen));
  }
  return lengths;
}

DecodeLayout::DecodeLayout(const DecodeCase& c) : lengths(lengths_of(c)) {
  const auto element_bytes = static_cast<size_t>(find_element_type(c.dtype)->bytes);
  row_bytes = static_cast<size_t>(c.heads_kv * c.head_dim) * element_bytes;
  q_bytes = aligned(static_cast<size_t>(c.batch * c.queries * c.heads_q * c.head_dim) * element_bytes);
  int64_t rows = c.batch * c.seqlen;
  if (c.page_size != 0) {
    for (const int32_t length : lengths) num_pages += pages_for(length, c.page_size);
    rows = num_pages * c.page_size;
    std::vector<int32_t> order(static_cast<size_t>(num_pages));
    std::iota(order.begin(), order.end(), 0);
    std::mt19937_64 random(2);
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
    const auto stride = static_cast<size_t>(pages_for(c.seqlen, c.page_size));
    page_table.assign(lengths.size() * stride, 0);
    size_t next = 0;
    for (size_t b = 0; b < lengths.size(); ++b) {
      const auto count = static_cast<size_t>(pages_for(lengths[b], c.page_size));
      std::copy_n(order.begin() + static_cast<int64_t>(next), count,
                  page_table.begin() + static_cast<int64_t>(b * stride));
      next += count;
    }
  }
  half_bytes = aligned(static_cast<size_t>(rows) * row_bytes);
  const auto keys = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  cache_bytes = 2 * static_cast<size_t>(keys) * row_bytes;
  num_calls = std::min(static_cast<int64_t>(kRotatedBytes / static_cast<double>(cache_bytes)) + 1, kMostCalls);
}

double DecodeLayout::total_bytes() const {
  return static_cast<double>(num_calls) * static_cast<double>(cache_stride() + 2 * q_bytes);
}

DecodeCalls::DecodeCalls(const DecodeCase& decode_case, const AttentionOptionValues& options)
    : case_(decode_case),
      options_(options),
      layout_(decode_case),
      caches_(options.placement(), static_cast<size_t>(size()) * layout_.cache_stride()),
      q_(options.placement(), static_cast<size_t>(size()) * layout_.q_bytes),
      out_(options.placement(), static_cast<size_t>(size()) * layout_.q_bytes),
      seqlens_(options.placement(), layout_.lengths.size() * sizeof(int32_t)),
      table_(options.placement(), layout_.page_table.size() * sizeof(int32_t)) {
  fill();
  for (int64_t idx = 0; idx < size(); ++idx) add_call(idx);
}

void DecodeCalls::fill() const {
  const auto element_bytes = static_cast<size_t>(find_element_type(case_.dtype)->bytes);
  std::mt19937_64 random(1);
  for (const Memory* memory : {&caches_, &q_}) {
    const size_t bytes = static_cast<size_t>(size()) * (memory == &q_ ? layout_.q_bytes : layout_.cache_stride());
    const int64_t shape[] = {std::min(kPattern, static_cast<int64_t>(bytes / element_bytes))};
    Array pattern = allocate_array("random numbers", case_.dtype, shape);
    fill_normal(pattern, random);
    const size_t pattern_bytes = static_cast<size_t>(shape[0]) * element_bytes;
    memory->write(0, pattern.tensor.data, pattern_bytes);
    memory->repeat(pattern_bytes, bytes);
  }
  out_.fill(0, kNan, static_cast<size_t>(size()) * layout_.q_bytes);
  seqlens_.write(0, layout_.lengths.data(), layout_.lengths.size() * sizeof(int32_t));
  table_.write(0, layout_.page_table.data(), layout_.page_table.size() * sizeof(int32_t));

  // Rows that hold no key of a sequence.
  const auto poison = [&](int64_t first_row, int64_t rows) {
    for (int64_t half = 0; half < 2 * size() && rows > 0; ++half) {
      caches_.fill(static_cast<size_t>(half) * layout_.half_bytes + static_cast<size_t>(first_row) * layout_.row_bytes,
                   kNan, static_cast<size_t>(rows) * layout_.row_bytes);
    }
  };
  for (int64_t b = 0; b < case_.batch; ++b) {
    const int64_t length = layout_.lengths[static_cast<size_t>(b)];
    if (case_.page_size == 0) {
      poison(b * case_.seqlen + length, case_.seqlen - length);
    } else if (const int64_t in_last = length % case_.page_size; in_last != 0) {
      const int64_t entry = b * pages_for(case_.seqlen, case_.page_size) + length / case_.page_size;
      poison(layout_.page_table[static_cast<size_t>(entry)] * case_.page_size + in_last, case_.page_size - in_last);
    }
  }
}

void DecodeCalls::add_call(int64_t idx) {
  const DecodeCase& c = case_;
  Call& call = calls_.emplace_back();
  const auto add = [&](Call::Member member, const char* name, const tessella_tensor& tensor) {
    call.set(member, {name, name, "", 0, tensor, nullptr});
  };
  const auto offset = static_cast<size_t>(idx);
  const auto cache = [&](size_t half) {
    const size_t at = offset * layout_.cache_stride() + half * layout_.half_bytes;
    return c.page_size == 0 ? caches_.tensor(at, c.dtype, {c.batch, c.seqlen, c.heads_kv, c.head_dim})
                            : caches_.tensor(at, c.dtype, {layout_.num_pages, c.page_size, c.heads_kv, c.head_dim});
  };
  const size_t q_offset = offset * layout_.q_bytes;
  add(&tessella_forward_args::q, "q", q_.tensor(q_offset, c.dtype, {c.batch, c.queries, c.heads_q, c.head_dim}));
  add(&tessella_forward_args::k, "k", cache(0));
  add(&tessella_forward_args::v, "v", cache(1));
  add(&tessella_forward_args::out, "out", out_.tensor(q_offset, c.dtype, {c.batch, c.queries, c.heads_q, c.head_dim}));
  if (c.ragged || c.page_size != 0) {
    add(&tessella_forward_args::seqlens_kv, "seqlens_kv", seqlens_.tensor(0, TESSELLA_I32, {c.batch}));
  }
  if (c.page_size != 0) {
    add(&tessella_forward_args::page_table, "page_table",
        table_.tensor(0, TESSELLA_I32, {c.batch, pages_for(c.seqlen, c.page_size)}));
  }
  options_.apply(call);
  call.options.window_right = 0;  // causal
}

void DecodeCalls::choose_kernel(const std::string& kernel) {
  for (Call& call : calls_) call.options.kernel = kernel.empty() ? nullptr : call.texts.emplace_back(kernel).c_str();
}

// The keys, or values, of one sequence in the first cache, on the host and in their order.
Array DecodeCalls::keys_of(size_t offset, int64_t sequence) const {
  const int64_t length = layout_.lengths[static_cast<size_t>(sequence)];
  const int64_t shape[] = {1, length, case_.heads_kv, case_.head_dim};
  Array keys = allocate_array("keys", case_.dtype, shape);
  auto* to = static_cast<std::byte*>(keys.tensor.data);
  const auto read = [&](int64_t row, int64_t from_row, int64_t rows) {
    caches_.read(to + static_cast<size_t>(row) * layout_.row_bytes,
                 offset + static_cast<size_t>(from_row) * layout_.row_bytes,
                 static_cast<size_t>(rows) * layout_.row_bytes);
  };
  if (case_.page_size == 0) {
    read(0, sequence * case_.seqlen, length);
    return keys;
  }
  const int32_t* table = layout_.page_table.data() + sequence * pages_for(case_.seqlen, case_.page_size);
  for (int64_t row = 0; row < length; row += case_.page_size) {
    read(row, table[row / case_.page_size] * case_.page_size, std::min(case_.page_size, length - row));
  }
  return keys;
}

tessella_check_report DecodeCalls::check_rows(int64_t num_rows) const {
  std::set<int64_t> sequences = {0, case_.batch - 1};
  std::mt19937_64 random(1);
  for (int i = 2; i < kCheckedSequences; ++i) {
    sequences.insert(static_cast<int64_t>(random() % static_cast<uint64_t>(case_.batch)));
  }
  tessella_check_report worst = TESSELLA_CHECK_REPORT_INIT;
  worst.passed = 1;
  for (const int64_t sequence : sequences) {
    Call call;
    const int64_t shape[] = {1, case_.queries, case_.heads_q, case_.head_dim};
    Array& q = call.set(&tessella_forward_args::q, allocate_array("q", case_.dtype, shape));
    Array& out = call.set(&tessella_forward_args::out, allocate_array("out", case_.dtype, shape));
    call.set(&tessella_forward_args::k, keys_of(0, sequence));
    call.set(&tessella_forward_args::v, keys_of(layout_.half_bytes, sequence));
    const size_t bytes = static_cast<size_t>(num_elements(q.tensor) * q.element_bytes);
    q_.read(q.tensor.data, static_cast<size_t>(sequence) * bytes, bytes);
    out_.read(out.tensor.data, static_cast<size_t>(sequence) * bytes, bytes);
    options_.apply(call);
    call.options.window_right = 0;
    tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
    const auto rows = std::max<int64_t>(1, num_rows / static_cast<int64_t>(sequences.size()));
    check(tessella_check(Tagged(call), rows, 1, &report));
    report.worst_index[0] = sequence;
    const int64_t rows_before = worst.rows;
    const bool is_worse = report.passed < worst.passed ||
                          (report.passed == worst.passed &&
                           report.max_error / report.tolerance >= worst.max_error / std::max(worst.tolerance, 1e-300));
    if (is_worse) worst = report;
    worst.rows = rows_before + report.rows;
  }
  return worst;
}

}  // namespace tessella::cli
