// merge: states of disjoint sets of keys become one.
#pragma once

#include <cstdint>
#include <memory>
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

  // Shapes, dtypes, strides and devices are checked here, values in validate().
  static Arguments read(const Args& args, const Options& options, const Reading& reading);
  // Tables on a GPU are not read. Throws Error(invalid_argument or unsupported) naming `function`, the argument, what
  // it is and what was expected.
  static void validate(const Arguments& arguments, const char* function);
  // Checks sizes, also those of a plan's bounds: their arithmetic must not overflow.
  static void validate_sizes(const Shape& shape, const char* function);
  // The shape of a call with the bound of the options where larger.
  static Shape bounds(const Shape& shape, const Options& options);
  // Throws if the call wrote over what a check would read.
  static void validate_checkable(const Arguments& arguments);
};

}  // namespace tessella::core
