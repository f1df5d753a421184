#include "matmul.hpp"

#include <algorithm>
#include <thread>
#include <vector>

void parallel(int count, const std::function<void(int, int)>& body) {
  const long num_threads = std::clamp<long>(std::thread::hardware_concurrency(), 1, std::max(count, 1));
  const auto begin = [&](long thread) { return static_cast<int>(count * thread / num_threads); };
  std::vector<std::jthread> others;
  for (long i = 1; i < num_threads; ++i) others.emplace_back(std::cref(body), begin(i), begin(i + 1));
  body(0, begin(1));
}

namespace {

constexpr int kRows = 6, kColumns = 16;  // of c, summed in registers
typedef float Columns __attribute__((vector_size(kColumns * sizeof(float)), aligned(alignof(float))));

// The rows of c in at most kColumns columns. b is (k, kColumns), dense.
struct Panel {
  float* c;
  int c_row;
  Matrix a;
  const Columns* b;
  int m, columns, k;
};

template <int kCount>
[[gnu::always_inline]] inline void multiply_rows(const Panel& panel, int first) {
  const float* a = panel.a.data + static_cast<long>(first) * panel.a.row;
  Columns sums[kCount] = {};
  for (int p = 0; p < panel.k; ++p) {
    for (int i = 0; i < kCount; ++i) sums[i] += a[i * panel.a.row + p * panel.a.column] * panel.b[p];
  }
  for (int i = 0; i < kCount; ++i) {
    float* c = panel.c + static_cast<long>(first + i) * panel.c_row;
    for (int j = 0; j < panel.columns; ++j) c[j] = sums[i][j];
  }
}

[[gnu::always_inline]] inline void multiply_panel(const Panel& panel) {
  int i = 0;
  for (; i + kRows <= panel.m; i += kRows) multiply_rows<kRows>(panel, i);
  for (; i < panel.m; ++i) multiply_rows<1>(panel, i);
}

// One source, compiled for each instruction set.
[[gnu::target("avx512f")]] void multiply_panel_avx512(const Panel& panel) { multiply_panel(panel); }
[[gnu::target("avx2,fma")]] void multiply_panel_avx2(const Panel& panel) { multiply_panel(panel); }
void multiply_panel_sse(const Panel& panel) { multiply_panel(panel); }

const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
auto* const multiply_panel_here = __builtin_cpu_supports("avx512f") ? multiply_panel_avx512
                                  : has_avx2                        ? multiply_panel_avx2
                                                                    : multiply_panel_sse;

}  // namespace

void multiply(float* c, int c_row, Matrix a, Matrix b, int m, int n, int k) {
  std::vector<Columns> packed(k);  // columns of b side by side, and zeros past its last
  for (int j = 0; j < n; j += kColumns) {
    const int columns = std::min(kColumns, n - j);
    for (int p = 0; p < k; ++p) {
      for (int i = 0; i < columns; ++i) packed[p][i] = b.data[p * b.row + (j + i) * b.column];
      for (int i = columns; i < kColumns; ++i) packed[p][i] = 0;
    }
    multiply_panel_here({c + j, c_row, a, packed.data(), m, columns, k});
  }
}

void parallel_multiply(float* c, int c_row, Matrix a, Matrix b, int m, int n, int k) {
  parallel((n + kColumns - 1) / kColumns, [&](int begin, int end) {
    const int first = begin * kColumns, columns = std::min(n, end * kColumns) - first;
    multiply(c + first, c_row, a, {b.data + first * b.column, b.row, b.column}, m, columns, k);
  });
}
