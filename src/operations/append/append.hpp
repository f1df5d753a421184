// append: new rows go into caches, rotated and quantised where asked for.
#pragma once

#include <string>

#include "core/kernel.hpp"
#include "operations/append/arguments.hpp"
#include "operations/reading.hpp"
#include "tessella/tessella.h"

namespace tessella::core {

struct Append {
  using Shape = AppendShape;
  using Arguments = AppendArguments;
  using Args = tessella_append_args;
  using Options = tessella_append_options;
  static constexpr Operation kOperation = Operation::append;
  static constexpr Args kArgs = TESSELLA_APPEND_ARGS_INIT;
  static constexpr Options kOptions = TESSELLA_APPEND_OPTIONS_INIT;
  static constexpr const char* kFirstTensor = "k_new";
  static constexpr const char* kIsOn = "caches are on ";

  static std::string ineligible(const Kernel& kernel, const Shape& shape);
  static Arguments read(const Args& args, const Options& options, const Reading& reading);
  static void validate(const Arguments& arguments, const char* function);
  static void validate_tables(const Arguments& arguments, const char* function);
  static void validate_sizes(const Shape& shape, const char* function);
  static Shape bounds(const Shape& shape, const Options& options);
  static void validate_checkable(const Arguments& arguments);
};

}  // namespace tessella::core
