#include "commands/decode_calls.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <utility>

#include "commands/random_case.hpp"
#include "device/rotation.hpp"
#include "files/element_type.hpp"
#include "files/input_error.hpp"

namespace tessella::cli {
namespace {

constexpr int64_t kMostCalls = 512;  // caches under 800 kB then come to less
constexpr size_t kAlignment = 256;
constexpr uint8_t kNan = 0xff;  // of every byte: NaN in each dtype of out, and of scales
constexpr int kCheckedSequences = 3;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t pages_for(int64_t rows, int64_t page_size) { return (rows + page_size - 1) / page_size; }

}  // namespace

std::string DecodeCase::name() const {
  const std::string scale =
      kv_scale == ScaleOf::none ? "" : fmt::format(" with scales by {}", kScaleNames[static_cast<size_t>(kv_scale)]);
  return fmt::format("{}{} {}/{} heads x {}, batch {}, seqlen {}{}, {} quer{}{}", dtype_name(dtype),
                     kv_dtype == dtype ? "" : fmt::format(" over {}{},", cache_type_of(kv_dtype).name, scale), heads_q,
                     heads_kv, head_dim, batch, ragged ? "1.." : "", seqlen, queries, queries == 1 ? "y" : "ies",
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

DecodeLayout::DecodeLayout(const DecodeCase& c, const Placement& placement)
    : lengths(lengths_of(c)), num_pieces(c.batch), rows_each(c.seqlen) {
  const CacheType& type = cache_type_of(c.kv_dtype);
  if (c.head_dim * type.bits % 8 != 0) {
    throw InputError(fmt::format("--head-dim is {}, expected an even one where --kv-dtype is i4", c.head_dim));
  }
  row_bytes = static_cast<size_t>(c.heads_kv * c.head_dim * type.bits / 8);
  q_bytes = aligned(static_cast<size_t>(c.batch * c.queries * c.heads_q * c.head_dim) *
                    static_cast<size_t>(find_element_type(c.dtype)->bytes));
  if (c.page_size != 0) {
    num_pieces = 0;
    for (const int32_t length : lengths) num_pieces += pages_for(length, c.page_size);
    rows_each = c.page_size;
    std::vector<int32_t> order(static_cast<size_t>(num_pieces));
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
  const auto rows = static_cast<size_t>(num_pieces * rows_each), heads = static_cast<size_t>(c.heads_kv);
  const auto keys = static_cast<size_t>(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  size_t scales_read = 0;  // of k, and of v
  switch (c.kv_scale) {
    case ScaleOf::none: break;
    case ScaleOf::tensor: num_scales = scales_read = 1; break;
    case ScaleOf::head: num_scales = scales_read = heads; break;
    case ScaleOf::token:
      num_scales = rows * heads;
      scales_read = keys * heads;
      break;
  }
  half_bytes = aligned(rows * row_bytes);
  scale_bytes = aligned(num_scales * sizeof(float));
  cache_bytes = 2 * (keys * row_bytes + scales_read * sizeof(float));
  num_calls =
      std::min(static_cast<int64_t>(bytes_to_rotate(placement) / static_cast<double>(cache_bytes)) + 1, kMostCalls);
}

double DecodeLayout::total_bytes() const {
  return static_cast<double>(num_calls) * static_cast<double>(cache_stride() + 2 * q_bytes);
}

DecodeCalls::DecodeCalls(const DecodeCase& decode_case, const AttentionOptionValues& options)
    : case_(decode_case),
      options_(options),
      layout_(decode_case, options.placement()),
      caches_(options.placement(), static_cast<size_t>(size()) * layout_.cache_stride()),
      q_(options.placement(), static_cast<size_t>(size()) * layout_.q_bytes),
      out_(options.placement(), static_cast<size_t>(size()) * layout_.q_bytes),
      seqlens_(options.placement(), layout_.lengths.size() * sizeof(int32_t)),
      table_(options.placement(), layout_.page_table.size() * sizeof(int32_t)) {
  fill();
  for (int64_t idx = 0; idx < size(); ++idx) add_call(idx);
}

void DecodeCalls::fill() const {
  const CacheType& kv_type = cache_type_of(case_.kv_dtype);
  std::mt19937_64 random(1);
  fill_random(caches_, kv_type, static_cast<size_t>(size()) * layout_.cache_stride(), random);
  fill_random(q_, cache_type_of(case_.dtype), static_cast<size_t>(size()) * layout_.q_bytes, random);
  out_.fill(0, kNan, static_cast<size_t>(size()) * layout_.q_bytes);
  seqlens_.write(0, layout_.lengths.data(), layout_.lengths.size() * sizeof(int32_t));
  table_.write(0, layout_.page_table.data(), layout_.page_table.size() * sizeof(int32_t));

  std::vector<float> scales = random_scales(kv_type, 2 * layout_.num_scales, random);  // of k, then of v
  // Rows that hold no key of a sequence.
  const auto poison = [&](int64_t first_row, int64_t rows) {
    if (rows == 0) return;
    for (int64_t call = 0; call < size(); ++call) {
      for (const size_t half : {size_t{0}, layout_.half_bytes}) {
        caches_.fill(static_cast<size_t>(call) * layout_.cache_stride() + half +
                         static_cast<size_t>(first_row) * layout_.row_bytes,
                     kv_type.poison, static_cast<size_t>(rows) * layout_.row_bytes);
      }
    }
    if (case_.kv_scale != ScaleOf::token) return;
    for (const size_t half : {size_t{0}, layout_.num_scales}) {
      std::fill_n(scales.begin() + static_cast<int64_t>(half) + first_row * case_.heads_kv, rows * case_.heads_kv,
                  std::numeric_limits<float>::quiet_NaN());
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
  for (int64_t call = 0; call < size(); ++call) {
    const size_t at = static_cast<size_t>(call) * layout_.cache_stride() + layout_.scales_offset();
    caches_.write(at, scales.data(), layout_.num_scales * sizeof(float));
    caches_.write(at + layout_.scale_bytes, scales.data() + layout_.num_scales, layout_.num_scales * sizeof(float));
  }
}

void DecodeCalls::add_call(int64_t idx) {
  const DecodeCase& c = case_;
  Call& call = calls_.emplace_back();
  const auto add = [&](Call::Member member, const char* name, const tessella_tensor& tensor) {
    Array array;
    array.source = array.name = name;
    array.tensor = tensor;
    call.set(member, std::move(array));
  };
  const size_t begin = static_cast<size_t>(idx) * layout_.cache_stride();
  const auto cache = [&](size_t at) {
    return caches_.tensor(begin + at, c.kv_dtype, {layout_.num_pieces, layout_.rows_each, c.heads_kv, c.head_dim});
  };
  const auto scales = [&](size_t at) {
    const bool by_token = c.kv_scale == ScaleOf::token;
    return caches_.tensor(begin + at, TESSELLA_F32,
                          {by_token ? layout_.num_pieces : 1, by_token ? layout_.rows_each : 1,
                           c.kv_scale == ScaleOf::tensor ? 1 : c.heads_kv});
  };
  const size_t q_offset = static_cast<size_t>(idx) * layout_.q_bytes;
  add(&tessella_forward_args::q, "q", q_.tensor(q_offset, c.dtype, {c.batch, c.queries, c.heads_q, c.head_dim}));
  add(&tessella_forward_args::k, "k", cache(0));
  add(&tessella_forward_args::v, "v", cache(layout_.half_bytes));
  if (c.kv_scale != ScaleOf::none) {
    add(&tessella_forward_args::k_scale, "k_scale", scales(layout_.scales_offset()));
    add(&tessella_forward_args::v_scale, "v_scale", scales(layout_.scales_offset() + layout_.scale_bytes));
  }
  add(&tessella_forward_args::out, "out", out_.tensor(q_offset, c.dtype, {c.batch, c.queries, c.heads_q, c.head_dim}));
  if (c.ragged || c.page_size != 0) {
    add(&tessella_forward_args::seqlens_kv, "seqlens_kv", seqlens_.tensor(0, TESSELLA_I32, {c.batch}));
  }
  if (c.page_size != 0) {
    add(&tessella_forward_args::page_table, "page_table",
        table_.tensor(0, TESSELLA_I32, {c.batch, pages_for(c.seqlen, c.page_size)}));
  }
  set_options(call);
}

void DecodeCalls::set_options(Call& call) const {
  options_.apply(call);
  call.options.window_right = 0;  // causal
  call.options.scale_block = case_.kv_scale == ScaleOf::token ? 1 : 0;
}

void DecodeCalls::choose_kernel(const std::string& kernel) {
  for (Call& call : calls_) call.options.kernel = kernel.empty() ? nullptr : call.strings.emplace_back(kernel).c_str();
}

// Rows of one sequence, of so many bytes each, in their order and on the host; the first of a cache is at `offset`.
void DecodeCalls::read_rows(void* to, size_t offset, size_t row_bytes, int64_t sequence) const {
  const int64_t length = layout_.lengths[static_cast<size_t>(sequence)];
  const auto read = [&](int64_t row, int64_t from_row, int64_t rows) {
    caches_.read(static_cast<std::byte*>(to) + static_cast<size_t>(row) * row_bytes,
                 offset + static_cast<size_t>(from_row) * row_bytes, static_cast<size_t>(rows) * row_bytes);
  };
  if (case_.page_size == 0) {
    read(0, sequence * case_.seqlen, length);
    return;
  }
  const int32_t* table = layout_.page_table.data() + sequence * pages_for(case_.seqlen, case_.page_size);
  for (int64_t row = 0; row < length; row += case_.page_size) {
    read(row, table[row / case_.page_size] * case_.page_size, std::min(case_.page_size, length - row));
  }
}

// The keys, or values, of one sequence in the first cache.
Array DecodeCalls::keys_of(size_t offset, int64_t sequence) const {
  Array keys = allocate_keys(cache_type_of(case_.kv_dtype), layout_.lengths[static_cast<size_t>(sequence)],
                             case_.heads_kv, case_.head_dim);
  read_rows(keys.tensor.data, offset, layout_.row_bytes, sequence);
  return keys;
}

// Their scales.
Array DecodeCalls::scales_of(size_t offset, int64_t sequence) const {
  const bool by_token = case_.kv_scale == ScaleOf::token;
  const int64_t shape[] = {1, by_token ? layout_.lengths[static_cast<size_t>(sequence)] : 1,
                           case_.kv_scale == ScaleOf::tensor ? 1 : case_.heads_kv};
  Array scales = allocate_array("scales", TESSELLA_F32, shape);
  if (by_token) {
    read_rows(scales.tensor.data, offset, static_cast<size_t>(case_.heads_kv) * sizeof(float), sequence);
  } else {
    caches_.read(scales.tensor.data, offset, layout_.num_scales * sizeof(float));
  }
  return scales;
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
    if (case_.kv_scale != ScaleOf::none) {
      call.set(&tessella_forward_args::k_scale, scales_of(layout_.scales_offset(), sequence));
      call.set(&tessella_forward_args::v_scale, scales_of(layout_.scales_offset() + layout_.scale_bytes, sequence));
    }
    const size_t bytes = static_cast<size_t>(num_elements(q.tensor) * q.element_bytes);
    q_.read(q.tensor.data, static_cast<size_t>(sequence) * bytes, bytes);
    out_.read(out.tensor.data, static_cast<size_t>(sequence) * bytes, bytes);
    set_options(call);
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
