// merge: states of disjoint sets of keys become one.
#pragma once

#include <string>

#include "core/kernel.hpp"
#include "operations/merge/arguments.hpp"
#include "operations/reading.hpp"
#include "tessella/tessella.h"

namespace tessella::core {

struct Merge {
  using Shape = MergeShape;
  using Arguments = MergeArguments;
  using Args = tessella_merge_args;
  using Options = tessella_merge_options;
  static constexpr Operation kOperation = Operation::merge;
  static constexpr Args kArgs = TESSELLA_MERGE_ARGS_INIT;
  static constexpr Options kOptions = TESSELLA_MERGE_OPTIONS_INIT;
  static constexpr const char* kFirstTensor = "outs[0]";
  static constexpr const char* kIsOn = "outs are on ";

  static std::string ineligible(const Kernel& kernel, const Shape& shape);
  static Arguments read(const Args& args, const Options& options, const Reading& reading);
  static void validate(const Arguments& arguments, const char* function);
  static void validate_sizes(const Shape& shape, const char* function);
  static Shape bounds(const Shape& shape, const Options& options);
  static void validate_checkable(const Arguments& arguments);
};

}  // namespace tessella::core
