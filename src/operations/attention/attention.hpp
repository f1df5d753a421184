// attention: forward and backward.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/kernel.hpp"
#include "operations/attention/arguments.hpp"
#include "operations/reading.hpp"
#include "tessella/tessella.h"

namespace tessella::core {

struct Forward {
  using Shape = AttentionShape;
  using Arguments = AttentionArguments;
  using Args = tessella_forward_args;
  using Options = tessella_attention_options;
  static constexpr Operation kOperation = Operation::forward;
  static constexpr Args kArgs = TESSELLA_FORWARD_ARGS_INIT;
  static constexpr Options kOptions = TESSELLA_ATTENTION_OPTIONS_INIT;
  static constexpr const char* kFirstTensor = "q";
  static constexpr const char* kIsOn = "q is on ";

  // A copy of the shape that holds its C++ source.
  static std::shared_ptr<const void> keep(const Shape& shape);
  static std::string ineligible_dtypes(const Kernel& kernel, const Shape& shape);
  static std::string missing_dtypes(uint32_t kv_dtypes, const Shape& shape, const std::string& where);
  static std::string ineligible(const Kernel& kernel, const Shape& shape);

  // Shapes, dtypes, strides and devices are checked here, values in validate().
  static Arguments read(const Args& args, const Options& options, const Reading& reading);
  // Tables on a GPU are not read. Throws Error(invalid_argument or unsupported) naming `function`, the argument, what
  // it is and what was expected.
  static void validate(const Arguments& arguments, const char* function);
  // Checks the values of tables that are on the host.
  static void validate_tables(const Arguments& arguments, const char* function);
  // Checks sizes, also those of a plan's bounds: their arithmetic must not overflow.
  static void validate_sizes(const Shape& shape, const char* function);
  // The shape of a call with the bounds of the options where larger.
  static Shape bounds(const Shape& shape, const Options& options);
  // Throws if the call wrote over what a check would read.
  static void validate_checkable(const Arguments& arguments);
};

struct Backward : Forward {
  using Args = tessella_backward_args;
  static constexpr Operation kOperation = Operation::backward;
  static constexpr Args kArgs = TESSELLA_BACKWARD_ARGS_INIT;

  // The forward call's out and lse are inputs.
  static Arguments read(const Args& args, const Options& options, const Reading& reading);
};

}  // namespace tessella::core
