// The GPU's forward kernels as the emulator runs them: the configs that its tests need, each with what calls it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cases/call.hpp"
#include "cases/cases.hpp"

namespace tessella::tests {

// Whether those of user.hpp take the place of causal_top_left and of alibi, which must be a slope a head; by_distance:
// compiled as one that asks for q_minus_k.
enum class Texts { none, usual, by_distance };

// "" or what is wrong; `results`, if wanted, every byte of out and lse.
std::string run_sm90(const Case& c, uint64_t seed, std::vector<std::byte>* results = nullptr,
                     Texts texts = Texts::none);
std::string run_sm80(const Case& c, uint64_t seed);

// The same over a call of the case, whose results nobody checks.
std::string run_sm90(Call& call, const Case& c, uint64_t seed, Texts texts = Texts::none);
std::string run_sm80(Call& call, uint64_t seed);

}  // namespace tessella::tests
