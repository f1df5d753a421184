// Where w is no longer what takes the time, products of many rows are a BLAS's trade. The first of TESSELLA_BLAS, or
// else OpenBLAS, BLIS and MKL, that loads and has cblas_sgemm computes sums; the rest is a vector kernel's.
//
// A BLAS has threads of its own. They are not set to flush subnormals, and the order of its sums is its affair.
#include "cpu/linear_blas.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <thread>

#include "core/cancel.hpp"
#include "core/environment.hpp"
#include "core/error.hpp"
#include "core/message.hpp"
#include "core/plan.hpp"
#include "cpu/memory.hpp"
#include "cpu/parallel.hpp"
#include "cpu/vector/linear_vector.hpp"
#include "operations/linear/arguments.hpp"
#include "process/float_mode.hpp"
#include "process/once.hpp"

namespace tessella::cpu {
namespace {

constexpr int64_t kFewRows = 112;  // that others take: a plan of the cache is for no more where a call has no more
constexpr int64_t kSumsBytes = int64_t{64} << 20;
constexpr int64_t kRowsOfTask = 8;
constexpr const char* kVariable = "TESSELLA_BLAS";
constexpr std::array kNames = {"libopenblas.so.0", "libblis.so.4", "libmkl_rt.so.2"};

// cblas.h: row-major, as it is, transposed.
enum : int { kRowMajor = 101, kNoTrans = 111, kTrans = 112 };
using Sgemm = void (*)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float* a, int lda,
                       const float* b, int ldb, float beta, float* c, int ldc);

struct Blas {
  Sgemm sgemm = nullptr;
  std::string path;
  std::string problem;  // where there is none
  pid_t opened_by = ::getpid();
};

// Never closed: it keeps threads of its own until the process ends.
bool open(const std::string& name, Blas& to) {
  void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  to.sgemm = reinterpret_cast<Sgemm>(::dlsym(library, "cblas_sgemm"));
  Dl_info info{};
  const bool is_known = ::dladdr(reinterpret_cast<const void*>(to.sgemm), &info) != 0 && info.dli_fname != nullptr;
  to.path = is_known ? info.dli_fname : name;
  return to.sgemm != nullptr;
}

Blas search() {
  Blas blas;
  if (const std::string chosen = core::environment_path(kVariable); !chosen.empty()) {
    if (!open(chosen, blas)) {
      blas.problem =
          core::message(kVariable, " is '", chosen, "', expected the path of a library that has cblas_sgemm");
    }
    return blas;
  }
  std::string names;
  for (const char* name : kNames) {
    if (open(name, blas)) return blas;
    names += core::message(names.empty() ? "" : ", ", name);
  }
  blas.problem = core::message("found no BLAS, expected one of ", names, ", or ", kVariable, " with the path of one");
  return blas;
}

const Blas& found() {
  return process::once([] { return search(); });
}

// A BLAS may wait in a child for threads that stayed in its parent.
constexpr const char* kForked = "runs in no child of the process that opened the BLAS";
bool is_forked() { return found().opened_by != ::getpid(); }

std::string missing() { return found().problem.empty() && is_forked() ? kForked : found().problem; }

InstructionSet best_set() {
  for (const auto set : {InstructionSet::avx512, InstructionSet::avx2, InstructionSet::sse4}) {
    if (vector_unavailable(set).empty()) return set;
  }
  return InstructionSet::baseline;
}

// Rows of x whose sums are there at a time.
int64_t band_rows(const core::LinearShape& shape) {
  const int64_t row_bytes = shape.weight_rows() * static_cast<int64_t>(sizeof(float));
  return std::clamp<int64_t>(kSumsBytes / row_bytes, 1, std::max<int64_t>(1, shape.rows));
}

core::Offer offer(const core::Shape& any, int num_threads) {
  const core::LinearShape& shape = core::linear(any);
  if (shape.rows <= kFewRows) {
    return {.ineligible = core::message("takes more than ", kFewRows, " rows of x, and there are ", shape.rows)};
  }
  if (shape.batch_invariant)
    return {.ineligible = "does not know the order of a BLAS's sums, and batch_invariant asks"};
  if (num_threads < static_cast<int>(std::thread::hardware_concurrency())) {
    return {.ineligible =
                core::message("has a BLAS's own threads, one a processor, and the call is for ", num_threads)};
  }
  return {.workspace = {.scratch_bytes = band_rows(shape) * shape.weight_rows() * int64_t{sizeof(float)}}};
}

// Rows whose distance a BLAS takes go together; others, which overlap for example, one at a time.
struct Rows {
  const core::Operand& t;
  int64_t together;
  int stride;

  Rows(const core::Operand& of, int64_t rows, int64_t columns) : t(of) {
    const bool is_usual = of.row_stride >= columns && of.row_stride <= std::numeric_limits<int>::max();
    together = is_usual ? rows : 1;
    stride = static_cast<int>(is_usual ? of.row_stride : columns);
  }
  const float* at(int64_t row) const { return reinterpret_cast<const float*>(t.row(0, row, 0)); }
};

// sums = x w^T of rows [row, row + num_rows) of x.
void multiply(const core::LinearArguments& a, int64_t row, int64_t num_rows, float* sums) {
  const int64_t w_rows = a.weight_rows();
  const Rows x(a.x, num_rows, a.in_features), w(a.w, w_rows, a.in_features);
  const process::FloatMode mode(process::Subnormals::flush);
  for (int64_t i = 0; i < num_rows; i += x.together) {
    for (int64_t j = 0; j < w_rows; j += w.together) {
      found().sgemm(kRowMajor, kNoTrans, kTrans, static_cast<int>(x.together), static_cast<int>(w.together),
                    static_cast<int>(a.in_features), 1, x.at(row + i), x.stride, w.at(j), w.stride, 0,
                    sums + i * w_rows + j, static_cast<int>(w_rows));
    }
  }
}

void run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void*) {
  const core::LinearArguments& a = core::linear(arguments);
  if (is_forked()) core::unsupported(core::message("linear: the plan's kernel is cpu.linear_blas, which ", kForked));
  const auto finish = linear_kernel<float>(best_set()).finish;
  auto* sums = static_cast<float*>(workspace.scratch);
  const int64_t w_rows = a.weight_rows();
  const int64_t band = band_rows(a);
  for (int64_t row = 0; row < a.rows; row += band) {
    core::end_if_cancelled(a.cancel);
    const int64_t rows = std::min(band, a.rows - row);
    multiply(a, row, rows, sums);
    parallel_for(ceil_div(rows, kRowsOfTask), plan.num_threads, a.cancel, [&](int64_t task, int) {
      const int64_t first = task * kRowsOfTask;
      for (int64_t column = 0; column < a.out_features; column += kMostBlockColumns) {
        finish(a, {sums + first * w_rows + column, w_rows, a.out_features}, row + first,
               std::min(kRowsOfTask, rows - first), column,
               static_cast<int>(std::min<int64_t>(kMostBlockColumns, a.out_features - column)));
      }
    });
  }
}

std::string describe(const core::Plan& plan) {
  return core::message(found().path, ", its threads; ", band_rows(core::linear(plan.shape)), " rows of x at a time");
}

}  // namespace

constinit const core::Kernel kLinearBlas = {
    .name = "cpu.linear_blas",
    .operation = core::Operation::linear,
    .summary = "many rows in fp32, by the machine's BLAS",
    .dtypes = core::dtype_bit(core::DType::f32),
    .max_head_dim = std::numeric_limits<int32_t>::max(),
    .offer = offer,
    .missing = missing,
    .threads = threads_for,
    .describe = describe,
    .run = run,
};

}  // namespace tessella::cpu
