#include "options/mask_string.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cctype>

#include "files/input_error.hpp"
#include "options/number_string.hpp"
#include "options/value_string.hpp"

namespace tessella::cli {
namespace {

struct Part {
  const char* name;
  bool takes_value;
  void (*apply)(std::string_view what, const std::string& value, Call& call);
};

std::string trimmed(std::string_view string) {
  const size_t begin = string.find_first_not_of(' ');
  if (begin == std::string_view::npos) return {};
  return std::string(string.substr(begin, string.find_last_not_of(' ') - begin + 1));
}

int64_t narrower(int64_t a, int64_t b) { return a == -1 ? b : b == -1 ? a : std::min(a, b); }

void set_once(std::string_view what, int64_t& option, int64_t value) {
  if (option != 0 && option != value) throw InputError(fmt::format("{} is given twice, expected once", what));
  option = value;
}

void set_tensor_once(std::string_view what, Call::Member member, Call& call, Array array) {
  if (call.args.*member) throw InputError(fmt::format("{} is given twice, expected once", what));
  call.set(member, std::move(array));
}

// The batch of a call that is not packed; packed tensors have no batch axis to spread values over.
int64_t batch_of(const Call& call) { return call.args.q->ndim == 4 ? call.args.q->shape[0] : 1; }

void window(std::string_view what, const std::string& value, Call& call) {
  const std::vector<std::string> sides = split(value, ',');
  if (sides.size() != 2) throw InputError(fmt::format("{} is '{}', expected window:LEFT,RIGHT", what, value));
  call.options.window_left = narrower(call.options.window_left, parse_integer_between(what, sides[0], -1, INT64_MAX));
  call.options.window_right = narrower(call.options.window_right, parse_integer_between(what, sides[1], -1, INT64_MAX));
}

// One length stands for every sequence.
void prefix(std::string_view what, const std::string& value, Call& call) {
  Array lengths = read_values(what, value, TESSELLA_I32, call);
  if (lengths.tensor.ndim == 1 && lengths.tensor.shape[0] == 1) {
    const int64_t shape[] = {call.args.cu_seqlens_q ? call.args.cu_seqlens_q->shape[0] - 1 : batch_of(call)};
    Array repeated = allocate_array(lengths.name, TESSELLA_I32, shape);
    repeated.source = lengths.source;
    std::fill_n(static_cast<int32_t*>(repeated.tensor.data), shape[0], *static_cast<int32_t*>(lengths.tensor.data));
    lengths = std::move(repeated);
  }
  set_tensor_once(what, &tessella_forward_args::prefix_lengths, call, std::move(lengths));
}

// One row of ids stands for every sequence.
void document(std::string_view what, const std::string& value, Call& call) {
  Array ids = read_values(what, value, TESSELLA_I32, call);
  if (ids.tensor.ndim == 1 && !call.args.cu_seqlens_q) {
    ids.tensor.ndim = 2;
    ids.tensor.shape[1] = ids.tensor.shape[0];
    ids.tensor.strides[1] = ids.tensor.strides[0];
    ids.tensor.shape[0] = batch_of(call);
    ids.tensor.strides[0] = 0;
  }
  set_tensor_once(what, &tessella_forward_args::document_ids_q, call, ids);
  set_tensor_once(what, &tessella_forward_args::document_ids_kv, call, std::move(ids));
}

void dense(std::string_view what, const std::string& value, Call& call) {
  set_tensor_once(what, &tessella_forward_args::dense_mask, call, read_values(what, value, TESSELLA_BOOL, call));
}

void block_map(std::string_view what, const std::string& value, Call& call) {
  const std::vector<std::string> parts = split(value, ',');
  if (parts.size() != 3)
    throw InputError(fmt::format("{} is '{}', expected block_map:FILE,TILE_Q,TILE_KV", what, value));
  call.options.block_map_q = parse_integer(what, parts[1]);
  call.options.block_map_kv = parse_integer(what, parts[2]);
  set_tensor_once(what, &tessella_forward_args::block_map, call, read_values(what, parts[0], TESSELLA_BOOL, call));
}

constexpr Part kParts[] = {
    {"none", false, [](std::string_view, const std::string&, Call&) {}},
    {"causal", false, [](std::string_view what, const std::string&, Call& call) { window(what, "-1,0", call); }},
    {"causal_top_left", false,
     [](std::string_view, const std::string&, Call& call) { call.options.causal_top_left = 1; }},
    {"window", true, window},
    {"chunk", true,
     [](std::string_view what, const std::string& value, Call& call) {
       set_once(what, call.options.chunk, parse_integer_between(what, value, 1, INT64_MAX));
     }},
    {"keep_first", true,
     [](std::string_view what, const std::string& value, Call& call) {
       set_once(what, call.options.keep_first, parse_integer_between(what, value, 0, INT64_MAX));
     }},
    {"prefix", true, prefix},
    {"document", true, document},
    {"dense", true, dense},
    {"block_map", true, block_map},
};

void apply_part(const std::string& string, Call& call) {
  const size_t colon = string.find(':');
  const std::string name = string.substr(0, colon);
  const auto* part = std::ranges::find_if(kParts, [&](const Part& row) { return row.name == name; });
  if (part == std::end(kParts)) {
    std::string names;
    for (const Part& row : kParts) names += fmt::format("{}{}", names.empty() ? "" : ", ", row.name);
    throw InputError(fmt::format("--mask part is '{}', expected one of {}", string, names));
  }
  const std::string what = fmt::format("--mask {}", name);
  if (part->takes_value != (colon != std::string::npos)) {
    throw InputError(fmt::format("{} takes {} value, got '{}'", what, part->takes_value ? "a" : "no", string));
  }
  part->apply(what, part->takes_value ? string.substr(colon + 1) : "", call);
}

}  // namespace

void apply_mask(std::string_view string, Call& call) {
  for (const std::string& part : split(string, '&')) apply_part(trimmed(part), call);
}

std::vector<std::string> split_masks(std::string_view string) {
  std::vector<std::string> masks;
  for (const std::string& piece : split(string, ',')) {
    const bool starts_mask = masks.empty() || piece.empty() || std::isalpha(static_cast<unsigned char>(piece[0])) != 0;
    if (starts_mask) {
      masks.push_back(piece);
    } else {
      masks.back() += "," + piece;
    }
  }
  return masks;
}

}  // namespace tessella::cli
