// out and lse, as a GPU kernel's parameters.
#pragma once

#include "portable/element.hpp"
#include "portable/operand_params.hpp"

namespace tessella::portable {

struct OutputParams {
  OperandParams out;
  OperandParams lse;         // f32; data null: not written
  Element out_element;       // f32 or that of q
  int32_t out_vector_store;  // rows of out start at multiples of 16 bytes and hold whole 16-byte chunks
};

}  // namespace tessella::portable
