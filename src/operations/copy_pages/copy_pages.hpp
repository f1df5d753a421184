// copy_pages: pages of every pool are copied to other pages of the same pool.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/kernel.hpp"
#include "operations/copy_pages/arguments.hpp"
#include "operations/reading.hpp"
#include "tessella/tessella.h"

namespace tessella::core {

struct CopyPages {
  using Shape = CopyPagesShape;
  using Arguments = CopyPagesArguments;
  using Args = tessella_copy_pages_args;
  using Options = tessella_copy_pages_options;
  static constexpr Operation kOperation = Operation::copy_pages;
  static constexpr Args kArgs = TESSELLA_COPY_PAGES_ARGS_INIT;
  static constexpr Options kOptions = TESSELLA_COPY_PAGES_OPTIONS_INIT;
  static constexpr const char* kFirstTensor = "pools[0]";
  static constexpr const char* kIsOn = "pools are on ";

  static std::string ineligible(const Kernel& kernel, const Shape& shape);

  // Shapes, dtypes, strides and devices are checked here, values in validate().
  static Arguments read(const Args& args, const Options& options, const Reading& reading);
  // Tables on a GPU are not read. Throws Error(invalid_argument or unsupported) naming `function`, the argument, what
  // it is and what was expected.
  static void validate(const Arguments& arguments, const char* function);
  // Checks sizes, also those of a plan's bounds: their arithmetic must not overflow.
  static void validate_sizes(const Shape& shape, const char* function);
  static Shape bounds(const Shape& shape, const Options&) { return shape; }
};

}  // namespace tessella::core
