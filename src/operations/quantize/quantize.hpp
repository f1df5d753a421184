// quantize and dequantize: rows become elements of 8 bits beside scales, and rows again.
#pragma once

#include <cstdint>
#include <string>

#include "core/kernel.hpp"
#include "operations/quantize/arguments.hpp"
#include "operations/reading.hpp"
#include "tessella/tessella.h"

namespace tessella::core {

struct Quantize {
  using Shape = QuantizeShape;
  using Arguments = QuantizeArguments;
  using Args = tessella_quantize_args;
  using Options = tessella_quantize_options;
  static constexpr Operation kOperation = Operation::quantize;
  static constexpr Args kArgs = TESSELLA_QUANTIZE_ARGS_INIT;
  static constexpr Options kOptions = TESSELLA_QUANTIZE_OPTIONS_INIT;
  static constexpr const char* kFirstTensor = "x";
  static constexpr const char* kIsOn = "x is on ";

  static std::string ineligible(const Kernel& kernel, const Shape& shape);
  static Arguments read(const Args& args, const Options& options, const Reading& reading);
  static void validate(const Arguments& arguments, const char* function);
  static void validate_tables(const Arguments& arguments, const char* function);
  static void validate_sizes(const Shape& shape, const char* function);
  static Shape bounds(const Shape& shape, const Options& options) { return grown(shape, options.max_seqlen); }
  // The shape with this bound where larger.
  static Shape grown(const Shape& shape, int64_t max_seqlen);
};

// What it lacks of quantize's members is absent.
struct Dequantize : Quantize {
  using Args = tessella_dequantize_args;
  using Options = tessella_dequantize_options;
  static constexpr Operation kOperation = Operation::dequantize;
  static constexpr Args kArgs = TESSELLA_DEQUANTIZE_ARGS_INIT;
  static constexpr Options kOptions = TESSELLA_DEQUANTIZE_OPTIONS_INIT;

  static Arguments read(const Args& args, const Options& options, const Reading& reading);
  static Shape bounds(const Shape& shape, const Options& options) { return grown(shape, options.max_seqlen); }
};

}  // namespace tessella::core
