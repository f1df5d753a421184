// Drives columns over threads, and hands the kernels out by instruction set.
#include "cpu/vector/linear_vector.hpp"

#include <algorithm>

#include "core/message.hpp"
#include "cpu/cpu_features.hpp"
#include "cpu/parallel.hpp"

namespace tessella::cpu {
namespace {

constexpr int64_t kLanesOfBlock = 32;                 // floats of the widest block that load_row() orders
constexpr int64_t kWholeColumns = 16;                 // a line of the widest elements of out
constexpr int64_t kBandBytes = int64_t{512} << 10;    // of packed x
constexpr int64_t kBlockBytes = int64_t{256} << 10;   // of w
constexpr int64_t kTaskBytes = int64_t{1} << 20;      // of w
constexpr int64_t kTasksOfThread = 4;                 // where there are columns for them: threads are not equally fast
constexpr int64_t kAloneProducts = int64_t{1} << 18;  // some 10 microseconds of one thread: less wakes no second one
constexpr int64_t kAloneFloats = int64_t{1} << 16;    // of packed x

int64_t row_bytes(const core::LinearShape& shape) { return core::bytes_of(shape.w_shape.dtype, shape.in_features); }

// Scratch of all threads together: packed rows of x.
struct PackedRows {
  float* x = nullptr;
  int64_t bytes = 0;

  PackedRows(const LinearLayout& layout, std::byte* base) {
    Memory memory(base, bytes);
    memory.take(layout.wave_rows * layout.x_stride, x);
  }
};

}  // namespace

int64_t linear_task_columns(const core::LinearShape& shape, int64_t whole, int num_threads) {
  const int64_t halves = shape.weight_rows() / shape.out_features;
  const int64_t of_bytes = kTaskBytes / (halves * row_bytes(shape));
  const int64_t of_threads = shape.out_features / (kTasksOfThread * num_threads);
  return round_up(std::max<int64_t>(1, std::min(of_bytes, of_threads)), whole);
}

LinearLayout::LinearLayout(const core::LinearShape& shape, Products products)
    : wave_rows(round_up(std::min(shape.rows, kWaveRows), kRowTile)),
      // Rows begin a few lines apart in a cache's sets, whatever in_features is.
      x_stride((round_up(shape.in_features, kLanesOfBlock) + kLanesOfBlock) / (products == Products::bf16 ? 2 : 1)),
      halves(shape.activation == core::Activation::swiglu ? 2 : 1) {
  const int64_t x_bytes = x_stride * static_cast<int64_t>(sizeof(float));
  band_rows = std::min(wave_rows, std::max<int64_t>(kRowTile, kBandBytes / x_bytes / kRowTile * kRowTile));
  const int64_t of_bytes = kBlockBytes / (halves * row_bytes(shape)) / kColumnTile * kColumnTile;
  block_columns =
      band_rows == wave_rows ? kMostBlockColumns : std::clamp<int64_t>(of_bytes, kColumnTile, kMostBlockColumns);
  fetches = kColumnTile * row_bytes(shape) <= kBlockBytes;
}

LinearScratch::LinearScratch(const LinearLayout& layout, std::byte* base) {
  Memory memory(base, bytes);
  memory.take(layout.halves * layout.band_rows * kMostBlockColumns, sums);
  memory.take(layout.halves * kMostBlockColumns + kColumnTile, rows);
}

std::string describe_linear(const core::Plan& plan, Products products) {
  const LinearLayout layout(core::linear(plan.shape), products);
  return core::message("w is read once for ", kWaveRows, " rows of x; bands of ", layout.band_rows,
                       " rows, blocks of at most ", layout.block_columns, " columns, ",
                       threads_string(plan.num_threads));
}

core::WorkspaceSize linear_workspace(const core::Shape& shape, Products products, int num_threads) {
  const LinearLayout layout(core::linear(shape), products);
  return {.scratch_bytes = PackedRows(layout, nullptr).bytes + num_threads * LinearScratch(layout, nullptr).bytes};
}

std::string bf16_products_unavailable() {
  if (linear_kernel<float>(InstructionSet::avx512).bf16.run_columns == nullptr) return "not in this build";
  if (std::string reason = vector_unavailable(InstructionSet::avx512); !reason.empty()) return reason;
  return has_avx512_bf16() ? "" : "the CPU lacks AVX-512 BF16";
}

void run_linear(InstructionSet set, Products products, const core::LinearArguments& a, const core::Plan& plan,
                core::Workspace workspace) {
  const LinearKernel<float>& of_set = linear_kernel<float>(set);
  const LinearProducts<float>& kernel = products == Products::bf16 ? of_set.bf16 : of_set.fp32;
  const LinearLayout layout(a, products);
  auto* base = static_cast<std::byte*>(workspace.scratch);
  const PackedRows packed(layout, base);
  base += packed.bytes;
  const int64_t thread_bytes = LinearScratch(layout, nullptr).bytes;
  for (int64_t row = 0; row < a.rows; row += kWaveRows) {
    const int64_t rows = std::min(kWaveRows, a.rows - row);
    const int64_t padded = round_up(rows, kRowTile);
    const int packers = padded * a.in_features < kAloneFloats ? 1 : plan.num_threads;
    parallel_for(padded, packers, a.cancel, [&](int64_t i, int) {
      kernel.load_row(a, layout, i < rows ? a.x.row(0, row + i, 0) : nullptr, packed.x + i * layout.x_stride);
    });
    const int threads = rows * a.in_features * a.weight_rows() < kAloneProducts ? 1 : plan.num_threads;
    const int64_t least = a.out_features / threads < kWholeColumns ? kColumnTile : kWholeColumns;
    const int64_t step = linear_task_columns(a, least, threads);
    parallel_for(ceil_div(a.out_features, step), threads, a.cancel, [&](int64_t task, int worker) {
      kernel.run_columns(a, layout, packed.x, row, rows, task * step, std::min(a.out_features, (task + 1) * step),
                         LinearScratch(layout, base + worker * thread_bytes));
    });
  }
}

template <typename Real>
const LinearKernel<Real>& linear_kernel(InstructionSet set) {
  return of_set(set, linear_avx512<Real>, linear_avx2<Real>, linear_sse4<Real>, linear_baseline<Real>)();
}
template const LinearKernel<float>& linear_kernel(InstructionSet);

}  // namespace tessella::cpu
