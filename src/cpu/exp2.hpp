// 2^x on [0, 1) as a polynomial: minimax of degree 5 with p(0) = 1 (error 8.2e-8), so integers give exact powers of
// two.
#pragma once

namespace tessella::cpu {

inline constexpr float kLog2E = 1.44269504088896340736f;
inline constexpr double kLn2 = 0.693147180559945309417;

// Of x^0, x^1, ... x^5.
inline constexpr float kExp2[6] = {1.0f,           0.6931513118f,   0.2401644501f,
                                   0.05579991315f, 0.009017030285f, 0.001867130082f};

}  // namespace tessella::cpu
