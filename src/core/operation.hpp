// The operations that kernels compute; the values are tessella_operation of tessella.h.
#pragma once

#include <cstdint>

namespace tessella::core {

enum class Operation : int32_t { forward = 1, backward, append, merge, quantize, linear, copy_pages, dequantize };

constexpr const char* name(Operation operation) {
  switch (operation) {
    case Operation::forward: return "forward";
    case Operation::backward: return "backward";
    case Operation::append: return "append";
    case Operation::merge: return "merge";
    case Operation::quantize: return "quantize";
    case Operation::linear: return "linear";
    case Operation::copy_pages: return "copy_pages";
    case Operation::dequantize: return "dequantize";
  }
  return "";
}

}  // namespace tessella::core
