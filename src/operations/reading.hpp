// How an operation's room reads the structs of a call.
#pragma once

#include "core/backend.hpp"

namespace tessella::core {

// How the call uses its memory. written: out and lse are written. read: they are only read, for a comparison.
// made: only the schedule or the map of the mask is written, and q, k, v, out and lse need no memory. none:
// nothing is written, and these two need no memory either.
enum class Memory { written, read, made, none };
constexpr bool has_operands(Memory memory) { return memory == Memory::written || memory == Memory::read; }

struct Reading {
  const char* function;  // that messages name
  Memory memory;
  const Devices& devices;
};

}  // namespace tessella::core
