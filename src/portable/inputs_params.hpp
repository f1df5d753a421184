// q, k and v, as a GPU kernel's parameters.
#pragma once

#include "portable/operand_params.hpp"

namespace tessella::portable {

struct InputsParams {
  OperandParams q, k, v;
  int32_t head_dim_qk, head_dim_v;
};

}  // namespace tessella::portable
