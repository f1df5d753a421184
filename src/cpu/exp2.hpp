// 2^x on [0, 1) as a polynomial: minimax of the relative error among those with p(0) = 1, so integers give exact powers
// of two. Degree 5 for float (error 8.2e-8), degree 11 for double (3.2e-18), found by Remez's algorithm.
#pragma once

namespace tessella::cpu {

template <typename Real>
inline constexpr Real kLog2E = static_cast<Real>(1.44269504088896340736);
inline constexpr double kLn2 = 0.693147180559945309417;

// Coefficients of x^0, x^1, ... x^5.
inline constexpr float kExp2[6] = {1.0f,           0.6931513118f,   0.2401644501f,
                                   0.05579991315f, 0.009017030285f, 0.001867130082f};
// Coefficients of x^0, x^1, ... x^11.
inline constexpr double kExp2Double[12] = {1.0,
                                           0x1.62e42fefa39f5p-1,
                                           0x1.ebfbdff82c04bp-3,
                                           0x1.c6b08d7065837p-5,
                                           0x1.3b2ab6f73417bp-7,
                                           0x1.5d87ff4d2247bp-10,
                                           0x1.4308fa1dd3c89p-13,
                                           0x1.ffcfc6a9726cfp-17,
                                           0x1.628f35866ddd1p-20,
                                           0x1.b85f42b0559f3p-24,
                                           0x1.c2c479cc82e6ep-28,
                                           0x1.58566d85dae5bp-31};

}  // namespace tessella::cpu
