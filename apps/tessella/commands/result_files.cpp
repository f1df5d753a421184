#include "commands/result_files.hpp"

#include <fmt/core.h>

#include <span>
#include <utility>

#include "files/array_file.hpp"
#include "files/input_error.hpp"
#include "report/progress.hpp"

namespace tessella::cli {

void ResultFiles::check_writable() const {
  for (const std::string& path : {out, lse}) {
    if (!path.empty()) cli::check_writable(path, is_one_file() ? 2 : 1);
  }
  if (out.empty() || lse.empty() || is_one_file()) return;
  if (is_same_file(out, lse)) {
    throw InputError(
        fmt::format("--out is {} and --lse is {}, the same file: one name for both, or two files", out, lse));
  }
}

void ResultFiles::check_is_none(const std::string& input) const {
  for (const auto& [option, path] : {std::pair{"--out", out}, {"--lse", lse}}) {
    if (!path.empty() && is_same_file(path, input)) throw InputError(fmt::format("{} is {}, an input", option, path));
  }
}

void ResultFiles::write(const Array& out_array, const Array* lse_array) const {
  if (is_one_file()) {
    const Array both[] = {out_array, *lse_array};
    write_array_file(out, both);
  } else {
    if (!out.empty()) write_array_file(out, std::span(&out_array, 1));
    if (!lse.empty()) write_array_file(lse, std::span(lse_array, 1));
  }
  if (!out.empty()) note_raw(out_array, out);
}

void note_raw(const Array& array, const std::string& path) {
  if (array.tensor.dtype != TESSELLA_BF16 || path.ends_with(".safetensors")) return;
  note("bf16 is written raw, as numpy's |V2: view it as ml_dtypes.bfloat16");
}

}  // namespace tessella::cli
