// Why a configuration has no measurement, where other configurations may have one.
#pragma once

#include <new>
#include <string>

#include "files/input_error.hpp"
#include "options/option_words.hpp"
#include "tessella/error.hpp"

namespace tessella::cli {

struct NotMeasured {
  std::string why;
  bool failed = false;  // an error, and not foreseen to be too large
};

// What make() returns, or its empty value with the reason where the library cannot compute it or fails, or memory would
// not do. Throws InputError for what holds of every configuration, such as a wrong variable of the environment.
template <typename Make>
auto attempt(NotMeasured& missing, Make&& make) -> decltype(make()) {
  missing = {};
  try {
    return make();
  } catch (const Error& error) {
    missing = {in_options(error), true};
    if (missing.why.starts_with("TESSELLA_")) throw InputError(missing.why);
  } catch (const MemoryError& error) {
    missing = {error.what(), true};
  } catch (const std::bad_alloc&) {
    missing = {"out of memory", true};
  }
  return {};
}

}  // namespace tessella::cli
