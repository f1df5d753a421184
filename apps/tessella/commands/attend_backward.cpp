#include "commands/attend_backward.hpp"

#include <fmt/core.h>

#include <utility>

#include "files/array_file.hpp"
#include "files/conversion.hpp"
#include "files/input_error.hpp"
#include "options/value_string.hpp"

namespace tessella::cli {
namespace {

struct Output {
  const char* name;
  Call::Gradient gradient;
  Call::Member of;
  std::string BackwardFiles::*file;  // null: of those in `gradients` alone
};

constexpr Output kOutputs[] = {
    {"dq", &tessella_backward_args::dq, &tessella_forward_args::q, &BackwardFiles::dq},
    {"dk", &tessella_backward_args::dk, &tessella_forward_args::k, &BackwardFiles::dk},
    {"dv", &tessella_backward_args::dv, &tessella_forward_args::v, &BackwardFiles::dv},
    {"d_bias", &tessella_backward_args::d_bias, &tessella_forward_args::bias, nullptr},
    {"d_sink", &tessella_backward_args::d_sink, &tessella_forward_args::sink, nullptr},
    {"d_alibi_slopes", &tessella_backward_args::d_alibi_slopes, &tessella_forward_args::alibi_slopes, nullptr},
};

// Options that write, and their files.
std::vector<std::pair<std::string, std::string>> written(const BackwardFiles& files) {
  std::vector<std::pair<std::string, std::string>> given;
  for (const auto& [option, path] :
       {std::pair{"--dq", &files.dq}, {"--dk", &files.dk}, {"--dv", &files.dv}, {"--gradients", &files.gradients}}) {
    if (!path->empty()) given.emplace_back(option, *path);
  }
  return given;
}

}  // namespace

void BackwardFiles::add_to(Command& command) {
  const auto add = [&](const char* name, std::string& value, const char* type, const char* help) {
    command.add_option(name, value, type, help, "Gradients");
  };
  add("--backward", d_out, "FILE[:NAME]", "compute gradients too: the gradient of out, of its shape");
  add("--d-lse", d_lse, "FILE[:NAME]", "the gradient of the log of the softmax's sum [0]");
  add("--dq", dq, "FILE", "write the gradient of q, in its dtype");
  add("--dk", dk, "FILE", "write the gradient of k");
  add("--dv", dv, "FILE", "write the gradient of v");
  add("--gradients", gradients, "FILE",
      "write dq, dk and dv, and d_bias, d_sink and d_alibi_slopes where these are given: .npz or .safetensors");
}

void BackwardFiles::check_writable(const ResultFiles& results) const {
  std::vector<std::pair<std::string, std::string>> all = written(*this);
  if (!is_wanted()) {
    if (!d_lse.empty()) all.emplace_back("--d-lse", d_lse);
    if (all.empty()) return;
    throw InputError(fmt::format("{} is given without --backward, expected beside it", all.front().first));
  }
  if (!gradients.empty() && all.size() > 1) {
    throw InputError(fmt::format("--gradients and {} are both given, expected one", all.front().first));
  }
  for (const auto& [option, path] : all) cli::check_writable(path, option == "--gradients" ? 3 : 1);
  if (!results.out.empty()) all.emplace_back("--out", results.out);
  if (!results.lse.empty() && results.lse != results.out) all.emplace_back("--lse", results.lse);
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (!is_same_file(all[j].second, all[i].second)) continue;
      throw InputError(fmt::format("{} is {} and {} is {}, the same file", all[j].first, all[j].second, all[i].first,
                                   all[i].second));
    }
  }
}

void BackwardFiles::check_is_none(const std::string& input) const {
  for (const auto& [option, path] : written(*this)) {
    if (is_same_file(path, input)) throw InputError(fmt::format("{} is {}, an input", option, path));
  }
}

std::vector<Array> BackwardFiles::prepare(const AttendInputs& inputs, Call& call) const {
  const tessella_backward_args none = TESSELLA_BACKWARD_ARGS_INIT;
  call.backward = none;
  const tessella_dtype of_q = call.args.q->dtype;
  const tessella_dtype of_out = out_dtype_of(call, of_q);
  Array& from = call.set(&tessella_backward_args::d_out,
                         with_contiguous_rows(read_as("--backward", d_out, call, {of_out, of_q})));
  swap_layout(inputs.layout, from.tensor);
  if (!d_lse.empty()) {
    const tessella_dtype widest = of_q == TESSELLA_F64 ? TESSELLA_F64 : TESSELLA_F32;
    call.set(&tessella_backward_args::d_lse, read_as("--d-lse", d_lse, call, {TESSELLA_F32, widest}));
  }
  const bool has_own = !dq.empty() || !dk.empty() || !dv.empty();
  std::vector<Array> arrays;
  for (const Output& output : kOutputs) {
    const tessella_tensor* of = call.args.*output.of;
    if (of == nullptr || (has_own && file_of(output.name).empty())) continue;
    const Layout layout = output.file == nullptr ? Layout::bshd : inputs.layout;  // of q, k and v alone
    arrays.push_back(allocate_like(output.name, layout, *of, of->dtype));
    swap_layout(layout, call.set(output.gradient, arrays.back()).tensor);
  }
  return arrays;
}

std::string BackwardFiles::file_of(const std::string& name) const {
  if (!gradients.empty()) return gradients;
  for (const Output& output : kOutputs) {
    if (name == output.name && output.file != nullptr) return this->*output.file;
  }
  return "";
}

void BackwardFiles::write(std::span<const Array> arrays) const {
  if (!gradients.empty()) {
    write_array_file(gradients, arrays);
    return note_raw(arrays.front(), gradients);
  }
  for (const Array& array : arrays) {
    const std::string path = file_of(array.name);
    if (path.empty()) continue;
    write_array_file(path, std::span(&array, 1));
    note_raw(array, path);
  }
}

void fetch_gradients(const Placement& placement, const Call& call, std::span<const Array> arrays) {
  for (const Array& array : arrays) {
    for (const Output& output : kOutputs) {
      if (array.name == output.name) fetch(placement, *((*call.backward).*output.gradient), array);
    }
  }
}

}  // namespace tessella::cli
