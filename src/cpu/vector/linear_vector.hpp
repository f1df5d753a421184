// linear on vectors: the same instruction sets as the forward kernels.
#pragma once

#include <cstdint>
#include <string>

#include "core/kernel.hpp"
#include "core/plan.hpp"
#include "cpu/memory.hpp"
#include "cpu/vector/forward_vector.hpp"
#include "operations/linear/arguments.hpp"

namespace tessella::cpu {

inline constexpr int64_t kWaveRows = 64;      // rows of x that meet w together: w is read once for so many
inline constexpr int kMostBlockColumns = 64;  // of out, that a thread computes together
inline constexpr int kRowTile = 4;            // scratch holds whole tiles of rows
inline constexpr int kColumnTile = 4;

// What sums are made of.
enum class Products {
  fp32,  // of elements that are widened
  bf16,  // of bf16, two to a lane, by AVX-512's instruction for them
};

// Sums of products, before what becomes of them: rows of x by rows of w. With swiglu the second half of w's rows, of
// the same columns of out, lies half_stride behind the first.
struct LinearSums {
  const float* data;
  int64_t row_stride;
  int64_t half_stride;
};

// Sizes of a call.
struct LinearLayout {
  int64_t wave_rows;      // of x, whole tiles
  int64_t x_stride;       // floats between packed rows of x
  int64_t band_rows;      // of x, whose packed rows stay in the second cache
  int64_t block_columns;  // of out, whose rows of w stay there
  int64_t halves;         // of w
  bool fetches;           // rows of w that follow fit the second cache beside these

  LinearLayout(const core::LinearShape& shape, Products products);
};

// Scratch of one thread.
struct LinearScratch {
  float* sums = nullptr;             // [halves][band_rows][kMostBlockColumns]
  const std::byte** rows = nullptr;  // [halves][block_columns], of w, and those that follow
  int64_t bytes = 0;

  LinearScratch(const LinearLayout& layout, std::byte* base);
};

template <typename Real>
struct LinearProducts {
  // A row of x in the order in which rows of w are read; null: zeros.
  void (*load_row)(const core::LinearArguments& arguments, const LinearLayout& layout, const std::byte* row,
                   Real* to) = nullptr;
  // Columns [begin, end) of out, of rows [row, row + num_rows), whose packed rows of x begin at `x`.
  void (*run_columns)(const core::LinearArguments& arguments, const LinearLayout& layout, const Real* x, int64_t row,
                      int64_t num_rows, int64_t begin, int64_t end, const LinearScratch& scratch) = nullptr;
};

// Real is float: what the kernel computes in.
template <typename Real>
struct LinearKernel {
  LinearProducts<Real> fp32;
  LinearProducts<Real> bf16;  // of AVX-512 alone
  // For sums of other kernels: scales, bias, activation and residual, to at most kMostBlockColumns columns of out.
  void (*finish)(const core::LinearArguments& arguments, const LinearSums& sums, int64_t row, int64_t num_rows,
                 int64_t column, int num_columns) = nullptr;
};

// Functions are null where the build does not have the instruction set.
template <typename Real>
const LinearKernel<Real>& linear_kernel(InstructionSet set);
// The same of each set, from a source of its own: kernel.cpp.in.
template <typename Real>
const LinearKernel<Real>& linear_avx512();
template <typename Real>
const LinearKernel<Real>& linear_avx2();
template <typename Real>
const LinearKernel<Real>& linear_sse4();
template <typename Real>
const LinearKernel<Real>& linear_baseline();

// Columns of out that a thread takes at a time, a multiple of `whole`: enough not to notice that they are handed out,
// and tasks for all threads.
int64_t linear_task_columns(const core::LinearShape& shape, int64_t whole, int num_threads);

// "" or why AVX-512 has no bf16 products here.
std::string bf16_products_unavailable();

std::string describe_linear(const core::Plan& plan, Products products);
core::WorkspaceSize linear_workspace(const core::Shape& shape, Products products, int num_threads);
void run_linear(InstructionSet set, Products products, const core::LinearArguments& arguments, const core::Plan& plan,
                core::Workspace workspace);

}  // namespace tessella::cpu
