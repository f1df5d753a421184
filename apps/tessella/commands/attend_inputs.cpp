#include "commands/attend_inputs.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "files/array_file.hpp"
#include "files/array_names.hpp"
#include "files/conversion.hpp"
#include "files/input_error.hpp"
#include "report/progress.hpp"

namespace tessella::cli {
namespace {

constexpr const char* kOperands[] = {"q", "k", "v"};

// What models and frameworks call them.
constexpr std::array<std::string_view, 9> kUsualNames[] = {
    {"q", "query", "queries", "query_states", "query_layer", "q_proj", "query_proj", "to_q", "xq"},
    {"k", "key", "keys", "key_states", "key_layer", "k_proj", "key_proj", "to_k", "xk"},
    {"v", "value", "values", "value_states", "value_layer", "v_proj", "value_proj", "to_v", "xv"},
};

using Operands = std::array<ListedArray*, 3>;  // null where not found

// As often as --names has a name the files have it: then its arrays are taken in their order.
Operands find_given(const std::vector<std::string>& names, std::vector<ListedArray>& arrays) {
  Operands found{};
  for (size_t i = 0; i < 3; ++i) {
    std::vector<ListedArray*> named;
    for (ListedArray& array : arrays) {
      if (array.name == names[i]) named.push_back(&array);
    }
    if (named.empty()) {
      throw InputError(
          fmt::format("--names has '{}', which is not there; the files have {}", names[i], names_of(arrays)));
    }
    const auto times = std::count(names.begin(), names.end(), names[i]);
    if (std::ssize(named) < times) {
      throw InputError(
          fmt::format("--names has '{}' {} times, and {} is there, expected an array of its own for each of "
                      "q, k and v",
                      names[i], times, named.size()));
    }
    if (std::ssize(named) > times) {
      throw InputError(fmt::format("--names has '{}', which {} and {} are called, expected one", names[i],
                                   named[0]->source, named[1]->source));
    }
    found[i] =
        named[static_cast<size_t>(std::count(names.begin(), names.begin() + static_cast<ptrdiff_t>(i), names[i]))];
  }
  return found;
}

// The operand that the name of an array's file says, as layer0_k.npy does: of whose usual names alone it has one; none
// where it says several or nothing.
std::optional<size_t> operand_of_file(const ListedArray& array) {
  const std::string stem = std::filesystem::path(array.file).stem();
  std::optional<size_t> said;
  for (size_t i = 0; i < 3; ++i) {
    if (!has_word(stem, kUsualNames[i])) continue;
    if (said) return std::nullopt;
    said = i;
  }
  return said;
}

// Arrays that are taken by position, as a shell orders them: k.npy before q.npy. Of key_a, key_b, key_c no name says
// anything.
void check_order(const Operands& found) {
  const auto said = [&](size_t i) {
    return has_own_name(*found[i]) ? std::optional<size_t>() : operand_of_file(*found[i]);
  };
  for (size_t i = 0; i < 3; ++i) {
    const std::optional<size_t> other = said(i);
    if (!other || *other == i || said(*other) == other) continue;
    throw InputError(
        fmt::format("{} is given where {} is expected, and its name says {}, expected the files in the order q, k, v",
                    found[i]->file, kOperands[i], kOperands[*other]));
  }
}

// By common names; arrays that have no names of their own fill the rest in their order. Names that say nothing are
// never taken by their order: safetensors sorts by name, and k would run as q.
Operands find_usual(std::vector<ListedArray>& arrays) {
  Operands found{};
  for (size_t i = 0; i < 3; ++i) found[i] = find_named(arrays, kUsualNames[i]);
  const auto missing = std::count(found.begin(), found.end(), nullptr);
  if (missing == 0) return found;
  std::vector<ListedArray*> others;
  for (ListedArray& array : arrays) {
    if (std::find(found.begin(), found.end(), &array) == found.end()) others.push_back(&array);
  }
  const bool have_order =
      std::none_of(others.begin(), others.end(), [](const ListedArray* array) { return has_own_name(*array); });
  if (!have_order || std::ssize(others) != missing) {
    throw InputError(
        fmt::format("got {} arrays ({}), expected q, k and v: arrays of these or common names (query, q_proj, xq), "
                    "three without names, or --names Q,K,V",
                    arrays.size(), names_of(arrays)));
  }
  for (size_t i = 0, next = 0; i < 3; ++i) {
    if (found[i] == nullptr) found[i] = others[next++];
  }
  check_order(found);
  return found;
}

// others: gets the arrays that are none of the operands.
std::array<ListedArray, 3> assign(const AttendInputs& inputs, std::vector<ListedArray> arrays,
                                  std::vector<ListedArray>& others) {
  const Operands found = inputs.names.empty() ? find_usual(arrays) : find_given(inputs.names, arrays);
  for (ListedArray& array : arrays) {
    if (std::find(found.begin(), found.end(), &array) == found.end()) others.push_back(std::move(array));
  }
  return {std::move(*found[0]), std::move(*found[1]), std::move(*found[2])};
}

void check_operand(const char* name, const Array& array) {
  const tessella_tensor& tensor = array.tensor;
  const bool is_byte =
      tensor.dtype == TESSELLA_U8 || (tensor.dtype == TESSELLA_DTYPE_DEFAULT && array.element_bytes == 1);
  if (is_byte && name != std::string_view("q")) {
    throw InputError(fmt::format("{}: {} has elements of type {} without --kv-dtype, expected it to say what they are",
                                 array.source, name, array.file_type));
  }
  const bool is_integer = tensor.dtype == TESSELLA_I8 || tensor.dtype == TESSELLA_I4;
  if (!is_float(tensor.dtype) && !is_float8(tensor.dtype) && (!is_integer || name == std::string_view("q"))) {
    const bool is_raw = tensor.dtype == TESSELLA_DTYPE_DEFAULT && array.element_bytes == 2;
    throw InputError(fmt::format("{}: {} has elements of type {}, expected a float{}", array.source, name,
                                 array.file_type, is_raw ? "; raw bf16 wants --dtype bf16" : ""));
  }
  if (tensor.ndim < 2 || tensor.ndim > 4) {
    throw InputError(fmt::format("{}: {} has shape {}, expected 2 to 4 axes (batch, seqlen, heads, head_dim)",
                                 array.source, name, shape_string(tensor)));
  }
}

// Says what raw elements are, and refuses what cannot be the operand. Looks at no element.
void settle(const AttendInputs& inputs, const char* name, Array& array) {
  if (name != std::string_view("q") && inputs.kv_dtype != TESSELLA_DTYPE_DEFAULT) {
    resolve_bytes(array, inputs.kv_dtype, "--kv-dtype");
  } else if (inputs.dtype != TESSELLA_DTYPE_DEFAULT) {
    resolve_dtype(array, inputs.dtype);
  }
  check_operand(name, array);
}

}  // namespace

void swap_layout(Layout layout, tessella_tensor& tensor) {
  if (layout == Layout::bshd || tensor.ndim < 3) return;
  const int axis = tensor.ndim - 3;
  std::swap(tensor.shape[axis], tensor.shape[axis + 1]);
  std::swap(tensor.strides[axis], tensor.strides[axis + 1]);
}

void expect_no_rows_behind_check(const std::string& check, const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    const bool is_number = !file.empty() && file.find_first_not_of("0123456789") == file.npos;
    if (check.empty() || !is_number || std::filesystem::exists(file)) continue;
    throw InputError(fmt::format("FILE is '{}', and no such file is there; rows are given as --check={}", file, file));
  }
}

std::vector<ListedArray> read_inputs(const AttendInputs& inputs, Call& call) {
  std::vector<ListedArray> arrays;
  for (const std::string& file : inputs.files) {
    for (ListedArray& array : list_array_file(file)) arrays.push_back(std::move(array));
  }
  std::vector<ListedArray> others;
  const std::array<ListedArray, 3> operands = assign(inputs, std::move(arrays), others);
  constexpr Call::Member kMembers[] = {&tessella_forward_args::q, &tessella_forward_args::k, &tessella_forward_args::v};
  for (size_t i = 0; i < 3; ++i) {
    const auto check = [&](Array described) { settle(inputs, kOperands[i], described); };
    Array array = with_contiguous_rows(operands[i].read(check));
    settle(inputs, kOperands[i], array);
    swap_layout(inputs.layout, array.tensor);
    call.set(kMembers[i], std::move(array));
  }
  call.raw_dtype = inputs.dtype;
  return others;
}

Array allocate_like(const std::string& name, Layout layout, const tessella_tensor& like, tessella_dtype dtype) {
  tessella_tensor shape = like;
  swap_layout(layout, shape);
  return allocate_array(name, dtype, std::span(shape.shape, static_cast<size_t>(shape.ndim)));
}

tessella_dtype out_dtype_of(const Call& call, tessella_dtype of_q) {
  if (call.options.out_dtype != TESSELLA_DTYPE_DEFAULT) return call.options.out_dtype;
  return is_float8(of_q) ? TESSELLA_BF16 : of_q;
}

Array allocate_out(Layout layout, Call& call) {
  tessella_tensor shape = *call.args.q;
  shape.shape[shape.ndim - 1] = call.args.v->shape[call.args.v->ndim - 1];
  Array out = allocate_like("out", layout, shape, out_dtype_of(call, shape.dtype));
  Array& set = call.set(&tessella_forward_args::out, out);
  swap_layout(layout, set.tensor);
  return out;
}

Array allocate_lse(Call& call) {
  const tessella_tensor& q = *call.args.q;
  const int64_t heads = q.ndim == 2 ? 1 : q.shape[q.ndim - 2];
  const int64_t rows = q.shape[q.ndim == 2 ? 0 : q.ndim - 3];
  const int64_t shape[] = {q.ndim == 4 ? q.shape[0] : 1, heads, rows};
  Array lse = allocate_array("lse", q.dtype == TESSELLA_F64 ? TESSELLA_F64 : TESSELLA_F32,
                             std::span(shape).subspan(static_cast<size_t>(4 - q.ndim)));
  call.set(&tessella_forward_args::lse, lse);
  return lse;
}

}  // namespace tessella::cli
