// The program that classifies a mask's tiles before a kernel runs (device/score/mask.hpp).
#pragma once

#include <string>

#include "cuda/compile/program.hpp"
#include "cuda/launch/forward_tiles.hpp"

namespace tessella::cuda {

Program classify_program(const ForwardTiles& tiles, const std::string& user_text);

}  // namespace tessella::cuda
