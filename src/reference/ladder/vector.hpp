// The loops of the ladder that are worth vector instructions, as plain C++ compiled for a few x86 levels.
#pragma once

#include <cstdint>

namespace tessella::reference {

// c[m][n] += a[m][k] . b[k][n], dense row-major but for the rows of c, which are c_stride apart.
void multiply_add(int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* c, int64_t c_stride);

// out[n] += sum over k of weights[k] * rows[k][n]. Rows of weight 0 are not read: they may hold anything.
void weighted_sum(int64_t n, int64_t k, const float* weights, const float* rows, float* out);

// Sum of a[c] * b[c].
float dot(const float* a, const float* b, int64_t count);

}  // namespace tessella::reference
