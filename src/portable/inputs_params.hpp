// q, k and v, as a GPU kernel's parameters.
#pragma once

#include "portable/operand_params.hpp"

namespace tessella::portable {

struct InputsParams {
  int32_t head_dim_qk, head_dim_v;
  OperandParams q, k, v;
};

}  // namespace tessella::portable
