// Loops over threads, and products of fp32 matrices: all the speed that training needs beside attention.
#pragma once

#include <functional>

// Calls body(begin, end) on ranges that cover [0, count), one range a thread.
void parallel(int count, const std::function<void(int, int)>& body);

// Element (i, j) is data[i * row + j * column]; a transpose has its strides swapped.
struct Matrix {
  const float* data;
  int row, column = 1;
};
inline Matrix transposed(Matrix matrix) { return {matrix.data, matrix.column, matrix.row}; }

// c = a b, in the calling thread. a: (m, k), b: (k, n), c: (m, n) with rows that are c_row apart.
void multiply(float* c, int c_row, Matrix a, Matrix b, int m, int n, int k);

// The same by all threads. An element's bits do not depend on how many there are.
void parallel_multiply(float* c, int c_row, Matrix a, Matrix b, int m, int n, int k);
