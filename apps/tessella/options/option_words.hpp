// The library's messages in the words of the command line.
#pragma once

#include <string>
#include <string_view>

#include "files/input_error.hpp"
#include "tessella/error.hpp"

namespace tessella::cli {

// Without the C function that failed, and of wrong arguments with the options in their place: "forward: seqlens_kv[0]
// is 9, expected ..." becomes "--seqlens-kv[0] is 9, expected ...". layout: of --layout, which the sentence may ask
// about.
std::string in_options(const Error& error, std::string_view layout = "bshd");

// What run() returns; errors of the library are said in options.
template <typename Run>
int run_in_layout(std::string_view layout, Run&& run) {
  try {
    return run();
  } catch (const Error& error) {
    throw InputError(in_options(error, layout));
  }
}

}  // namespace tessella::cli
