// linear: products of few rows with a matrix of weights (FlashDecoding++'s flat GEMM, arXiv 2311.01282, section 4).
#pragma once

#include <string>

#include "core/kernel.hpp"
#include "operations/linear/arguments.hpp"
#include "operations/reading.hpp"
#include "tessella/tessella.h"

namespace tessella::core {

struct Linear {
  using Shape = LinearShape;
  using Arguments = LinearArguments;
  using Args = tessella_linear_args;
  using Options = tessella_linear_options;
  static constexpr Operation kOperation = Operation::linear;
  static constexpr Args kArgs = TESSELLA_LINEAR_ARGS_INIT;
  static constexpr Options kOptions = TESSELLA_LINEAR_OPTIONS_INIT;
  static constexpr const char* kFirstTensor = "x";
  static constexpr const char* kIsOn = "x is on ";

  static std::string ineligible_dtypes(const Kernel& kernel, const Shape& shape);
  static std::string ineligible(const Kernel& kernel, const Shape& shape);
  static Arguments read(const Args& args, const Options& options, const Reading& reading);
  static void validate(const Arguments& arguments, const char* function);
  static void validate_sizes(const Shape& shape, const char* function);
  static Shape bounds(const Shape& shape, const Options& options);
  static void validate_checkable(const Arguments& arguments);
};

}  // namespace tessella::core
