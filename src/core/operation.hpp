// What a call computes. The values are tessella_operation of tessella.h.
#pragma once

#include <cstdint>

namespace tessella::core {

enum class Operation : int32_t { none = 0, forward, backward, append, merge, quantize, linear };

constexpr const char* name(Operation operation) {
  switch (operation) {
    case Operation::forward: return "forward";
    case Operation::backward: return "backward";
    case Operation::append: return "append";
    case Operation::merge: return "merge";
    case Operation::quantize: return "quantize";
    case Operation::linear: return "linear";
    case Operation::none: break;
  }
  return "none";
}

}  // namespace tessella::core
