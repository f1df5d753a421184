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
  static Arguments read(const Args& args, const Options& options, const Reading& reading);
  static void validate(const Arguments& arguments, const char* function);
  static void validate_tables(const Arguments& arguments, const char* function);
  static void validate_sizes(const Shape& shape, const char* function);
  static Shape bounds(const Shape& shape, const Options& options);
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
