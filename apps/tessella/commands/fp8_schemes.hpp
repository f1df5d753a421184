// Ways from 16 bits to 8 whose errors `bench fp8-error` measures.
#pragma once

#include <string>
#include <vector>

#include "commands/fp8_inputs.hpp"
#include "device/placement.hpp"

namespace tessella::cli {

struct Fp8Scheme {
  std::string scale;  // tensor, head, block or token; "" = the 16-bit inputs as they are
  bool hadamard = false;
  // FlashAttention-3's kernel, emulated on the CPU (Dao-AILab/flash-attention, hopper/softmax.h): P in e4m3 where a
  // row's largest so far is 256, in steps of 128 keys. Sums in fp32: those of its matrix units are shorter.
  bool emulates_flash_3 = false;
};

struct Fp8Result {
  std::string kernel;
  std::vector<double> out;
};

// out of 16-bit inputs in float64.
std::vector<double> exact_out(const Fp8Inputs& inputs);
Fp8Result run_scheme(const Fp8Scheme& scheme, const Fp8Inputs& inputs, const Placement& placement, uint64_t seed);

}  // namespace tessella::cli
