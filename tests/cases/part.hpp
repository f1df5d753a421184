// A stretch of a sequence's queries by itself, in a batch of strangers: with batch_invariant its rows must keep the
// bits that they have in the whole sequence.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "cases/call.hpp"
#include "cases/tensor_places.hpp"

namespace tessella::tests {

struct Part {
  int64_t first, count;      // of the whole's queries
  int64_t batch, batch_idx;  // the batch that it is in, and where
};

// The call of the part, for a whole of one sequence. Strangers are shorter. Under a causal mask the keys end with that
// of the part's last query, whose place among them is what it was.
inline Case case_of(const Part& part, const Case& whole) {
  Case c = whole;
  c.batch = part.batch;
  c.seqlen_q = part.count;
  if (whole.window_right == 0) c.seqlen_kv -= whole.seqlen_q - (part.first + part.count);
  c.seqlens_q = c.seqlens_kv = true;
  c.seed += 1000;
  return c;
}

// Calls body(address in the whole's row, address in the part's, bytes, row of the part, head) for each row and head of
// a tensor. lse has its rows on another axis, and rows of one element.
template <class Body>
void for_each_row(const tessella_tensor& whole, int64_t first, const tessella_tensor& of_part, int64_t batch_idx,
                  int64_t count, const Body& body) {
  const bool is_lse = whole.ndim == 3;
  const auto at = [&](const tessella_tensor& t, int64_t b, int64_t row, int64_t head) {
    const int64_t idx = is_lse ? lse_element(t, b, row, head) : element(t, b, row, head);
    return static_cast<std::byte*>(t.data) + idx * size_of(t.dtype);
  };
  const auto bytes = static_cast<size_t>((is_lse ? 1 : whole.shape[3]) * size_of(whole.dtype));
  for (int64_t row = 0; row < count; ++row) {
    for (int64_t head = 0; head < whole.shape[is_lse ? 1 : 2]; ++head) {
      body(at(whole, 0, first + row, head), at(of_part, batch_idx, row, head), bytes, row, head);
    }
  }
}

// Gives the part what the whole's rows have: q, the keys that it sees, and what belongs to heads or keys.
inline void copy_inputs(const Call& whole, const Part& part, Call& to) {
  const tessella_forward_args &from = whole.args(), &args = to.args();
  static_cast<int32_t*>(args.seqlens_q->data)[part.batch_idx] = static_cast<int32_t>(args.q->shape[1]);
  static_cast<int32_t*>(args.seqlens_kv->data)[part.batch_idx] = static_cast<int32_t>(args.k->shape[1]);
  const auto copy = [](const std::byte* source, std::byte* target, size_t bytes, int64_t, int64_t) {
    std::memcpy(target, source, bytes);
  };
  for_each_row(*from.q, part.first, *args.q, part.batch_idx, part.count, copy);
  for_each_row(*from.k, 0, *args.k, part.batch_idx, args.k->shape[1], copy);
  for_each_row(*from.v, 0, *args.v, part.batch_idx, args.v->shape[1], copy);
  using Args = tessella_forward_args;
  for (const auto of : {&Args::k_scale, &Args::v_scale}) {
    if (from.*of == nullptr) continue;
    const tessella_tensor &scales = *(from.*of), &of_part = *(args.*of);
    if (scales.ndim == 1) {
      std::memcpy(of_part.data, scales.data, static_cast<size_t>(extent(scales)) * sizeof(float));
      continue;
    }
    for (int64_t row = 0; row < args.k->shape[1]; ++row) {
      for (int64_t head = 0; head < args.k->shape[2]; ++head) {
        static_cast<float*>(of_part.data)[scale_element(of_part, part.batch_idx, row, head)] =
            static_cast<const float*>(scales.data)[scale_element(scales, 0, row, head)];
      }
    }
  }
  for (const auto of : {&Args::alibi_slopes, &Args::sink, &Args::bias, &Args::dense_mask}) {
    if (from.*of == nullptr) continue;
    const tessella_tensor& values = *(args.*of);
    std::memcpy(values.data, (from.*of)->data, static_cast<size_t>(extent(values) * size_of(values.dtype)));
  }
}

// "" or the first row of out and lse whose bits are others.
inline std::string difference(const Call& whole, const Part& part, const Call& of_part) {
  std::string found;
  for (const auto result : {&tessella_forward_args::out, &tessella_forward_args::lse}) {
    if (whole.args().*result == nullptr) continue;
    for_each_row(*(whole.args().*result), part.first, *(of_part.args().*result), part.batch_idx, part.count,
                 [&](const std::byte* one, const std::byte* other, size_t bytes, int64_t row, int64_t head) {
                   if (!found.empty() || std::memcmp(one, other, bytes) == 0) return;
                   found = std::string(result == &tessella_forward_args::out ? "out" : "lse") + " of row " +
                           std::to_string(part.first + row) + ", head " + std::to_string(head) + " differs";
                 });
  }
  return found;
}

// Runs a call of the case. "" or what is wrong.
using RunPart = std::function<std::string(Call&, const Case&)>;

// Multiplies a row of q by 2^power. bf16 and f32.
inline void scale_query(const Call& call, int64_t row, int power) {
  const tessella_tensor& q = *call.args().q;
  const auto scale = [&](auto* values, int mantissa_bits) {
    for (int64_t head = 0; head < q.shape[2]; ++head) {
      for (int64_t c = 0; c < q.shape[3]; ++c) {
        auto& value = values[element(q, 0, row, head) + c];
        using Bits = std::remove_reference_t<decltype(value)>;
        if (value << 1 != 0) value = static_cast<Bits>(value + (static_cast<Bits>(power) << mantissa_bits));
      }
    }
  };
  if (q.dtype == TESSELLA_F64) return scale(static_cast<uint64_t*>(q.data), 52);
  if (q.dtype == TESSELLA_F32) return scale(static_cast<uint32_t*>(q.data), 23);
  scale(static_cast<uint16_t*>(q.data), 7);
}

struct Whole {
  Case c;
  bool has_large_rows = false;  // some, of scores around 2^25
};

// Runs the whole and some parts of it. "" or what is wrong.
inline std::string check_parts(const Whole& of, const RunPart& run) {
  const Case& c = of.c;
  Call whole(c);
  const int64_t rows = c.seqlen_q;
  if (of.has_large_rows) {
    for (const int64_t row : {rows / 4, rows / 2, rows * 2 / 3}) scale_query(whole, row, 21);
  }
  if (const std::string message = run(whole, c); !message.empty()) return message;
  if (const std::string message = whole.check(20); !message.empty()) return message;
  for (const Part& part : {Part{0, rows, 3, 1}, Part{rows / 2 - 3, 37, 2, 0}, Part{rows - 1, 1, 5, 3},
                           Part{rows / 3, rows - rows / 3, 2, 1}}) {
    // Others' places would be other ones.
    if (!c.alibi.empty() && c.window_right != 0 && part.first + part.count != rows) continue;
    const Case cut = case_of(part, c);
    Call call(cut);
    copy_inputs(whole, part, call);
    if (const std::string message = run(call, cut); !message.empty()) return message;
    if (const std::string message = difference(whole, part, call); !message.empty()) {
      return message + " in the part of " + std::to_string(part.count) + " rows from " + std::to_string(part.first);
    }
  }
  return "";
}

// What decides rows by their scores: growing maxima, large ones, masks, scores that features change.
inline std::vector<Whole> wholes(const Case& base) {
  std::vector<Whole> all;
  for (const std::function<void(Case&)>& change : std::vector<std::function<void(Case&)>>{
           [](Case&) {}, [](Case& c) { c.spread = 8; }, [](Case& c) { c.window_right = 0, c.spread = 8; },
           [](Case& c) { c.window_left = 90, c.window_right = 0, c.spread = 4; },
           [](Case& c) { c.window_left = 300, c.window_right = 0, c.spread = 4, c.seqlen_kv = 600; },
           [](Case& c) { c.softcap = 3, c.spread = 2, c.lse = false; }, [](Case& c) { c.softcap = 3, c.spread = 4; },
           [](Case& c) { c.alibi = "h", c.window_right = 0, c.spread = 4; },
           [](Case& c) { c.alibi = "h", c.spread = 4, c.seqlen_kv = 400; },
           [](Case& c) { c.dense = "k", c.window_right = 0, c.spread = 4; },
           [](Case& c) { c.bias = "k", c.spread = 4; }, [](Case& c) { c.sink = true, c.scale = -3, c.spread = 1e5; }}) {
    Case c = base;
    c.batch_invariant = true;
    change(c);
    all.push_back({c});
  }
  all.push_back({all.front().c, true});
  all.back().c.spread = 4;
  return all;
}

}  // namespace tessella::tests
