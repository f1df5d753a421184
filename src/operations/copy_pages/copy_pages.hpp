// copy_pages: pages of every pool are copied to other pages of the same pool.
#pragma once

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
  static Arguments read(const Args& args, const Options& options, const Reading& reading);
  static void validate(const Arguments& arguments, const char* function);
  static void validate_sizes(const Shape& shape, const char* function);
  static Shape bounds(const Shape& shape, const Options&) { return shape; }
};

}  // namespace tessella::core
