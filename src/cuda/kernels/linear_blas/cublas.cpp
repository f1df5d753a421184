#include "cuda/kernels/linear_blas/cublas.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <vector>

#include "core/environment.hpp"
#include "core/error.hpp"
#include "core/message.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/kernels/linear_blas/cublas_types.hpp"
#include "process/once.hpp"

namespace tessella::cuda {
namespace {

using core::message;

constexpr int kOldestMajor = 12;  // sizes of 64 bits

// Named as the library exports them; cublas_v2.h leaves the _v2 out.
struct Functions {
  cublasStatus_t (*cublasGetProperty)(libraryPropertyType_t which, int* value);
  const char* (*cublasGetStatusString)(cublasStatus_t status);
  cublasStatus_t (*cublasCreate_v2)(cublasHandle_t* handle);
  cublasStatus_t (*cublasSetMathMode)(cublasHandle_t handle, cublasMath_t mode);
  cublasStatus_t (*cublasSetStream_v2)(cublasHandle_t handle, CUstream stream);
  cublasStatus_t (*cublasSetWorkspace_v2)(cublasHandle_t handle, void* workspace, size_t bytes);
  cublasStatus_t (*cublasSetSmCountTarget)(cublasHandle_t handle, int num_sms);
  cublasStatus_t (*cublasGemmEx_64)(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int64_t m,
                                    int64_t n, int64_t k, const void* alpha, const void* a, cudaDataType_t a_type,
                                    int64_t lda, const void* b, cudaDataType_t b_type, int64_t ldb, const void* beta,
                                    void* c, cudaDataType_t c_type, int64_t ldc, cublasComputeType_t compute,
                                    cublasGemmAlgo_t algorithm);
};

struct Cublas {
  Functions functions{};
  int major = 0, minor = 0;
  std::string path;
  std::string problem;
};

// Never closed: it keeps state of its own until the process ends.
void* load(const std::string& path, int flags = 0) { return ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | flags); }

Cublas open(const std::string& path) {
  Cublas cublas{.path = path};
  void* library = load(path);
  if (library == nullptr) {
    const bool is_there = path.find('/') != path.npos && ::access(path.c_str(), F_OK) == 0;
    cublas.problem = is_there ? message(path, " does not load: ", ::dlerror()) : message("no ", path);
    return cublas;
  }
  const auto take = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) cublas.problem = message(path, " lacks ", name);
  };
  Functions& blas = cublas.functions;
#define TESSELLA_TAKE(name) take(blas.name, #name)
  TESSELLA_TAKE(cublasGetProperty);
  TESSELLA_TAKE(cublasGetStatusString);
  TESSELLA_TAKE(cublasCreate_v2);
  TESSELLA_TAKE(cublasSetMathMode);
  TESSELLA_TAKE(cublasSetStream_v2);
  TESSELLA_TAKE(cublasSetWorkspace_v2);
  TESSELLA_TAKE(cublasSetSmCountTarget);
  TESSELLA_TAKE(cublasGemmEx_64);
#undef TESSELLA_TAKE
  if (!cublas.problem.empty()) return cublas;
  if (blas.cublasGetProperty(MAJOR_VERSION, &cublas.major) != CUBLAS_STATUS_SUCCESS ||
      blas.cublasGetProperty(MINOR_VERSION, &cublas.minor) != CUBLAS_STATUS_SUCCESS) {
    cublas.problem = path + " does not say its version";
  } else if (const int most = driver_version() / 1000; cublas.major > most) {
    cublas.problem = message(path, " is version ", cublas.major, ", and the driver runs up to ", most);
  }
  // A library opened by name may be in any folder; report its path.
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(blas.cublasGemmEx_64), &info) != 0 && info.dli_fname != nullptr) {
    cublas.path = info.dli_fname;
  }
  return cublas;
}

Cublas search() {
  std::vector<std::string> paths = library_paths(kCublasLibrary);
  std::stable_partition(paths.begin(), paths.end(),
                        [](const std::string& path) { return load(path, RTLD_NOLOAD) != nullptr; });
  std::string tried;
  for (const std::string& path : paths) {
    Cublas cublas = open(path);
    if (cublas.problem.empty()) return cublas;
    tried += "; " + cublas.problem;
  }
  const std::string expected = message("version ", kOldestMajor, " or newer, at most the driver's");
  if (const std::string chosen = core::environment_path(kCublasLibrary.variable); !chosen.empty()) {
    return {.problem =
                message(kCublasLibrary.variable, " is '", chosen, "', expected the path of cuBLAS ", expected, tried)};
  }
  return {.problem = message("cuBLAS was not found, expected ", expected, ": `pip install nvidia-cublas`, or set ",
                             kCublasLibrary.variable, " to its path", tried)};
}

const Cublas& cublas() {
  return process::once([] { return search(); });
}

void check_status(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) [[likely]]
    return;
  const auto code = status == CUBLAS_STATUS_ALLOC_FAILED ? core::ErrorCode::out_of_memory : core::ErrorCode::device;
  throw core::Error(code, message(what, ": ", cublas().functions.cublasGetStatusString(status)));
}

// A context's handle, of which one thread at a time sets the stream, the workspace and queues. A child that is forked
// meanwhile cannot use CUDA, and so does not come to wait for it.
struct Handle {
  std::mutex mutex;
  cublasHandle_t handle = nullptr;
};

// Made once for each context, and kept to the end of the process: the driver may have ended before static destructors.
Handle& current_handle() {
  static std::mutex& mutex = *new std::mutex;
  static auto& handles = *new std::map<CUcontext, Handle>;
  CUcontext context = nullptr;
  check(required_driver().cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  const std::lock_guard lock(mutex);
  Handle& of = handles[context];
  if (of.handle != nullptr) return of;
  const Functions& blas = cublas().functions;
  cublasHandle_t made = nullptr;
  check_status(blas.cublasCreate_v2(&made), "cublasCreate");
  // Parts of a sum are not added in the type of out.
  check_status(blas.cublasSetMathMode(made, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION), "cublasSetMathMode");
  of.handle = made;
  return of;
}

cudaDataType_t type_of(core::DType dtype) {
  switch (dtype) {
    case core::DType::bf16: return CUDA_R_16BF;
    case core::DType::f16: return CUDA_R_16F;
    default: return CUDA_R_32F;
  }
}

// Rows whose distance cuBLAS takes go together; others, which overlap for example, one at a time.
struct Rows {
  const core::Operand& t;
  int64_t together, stride;

  Rows(const core::Operand& of, int64_t rows, int64_t columns)
      : t(of), together(of.row_stride >= columns ? rows : 1), stride(std::max(of.row_stride, columns)) {}
  std::byte* at(int64_t row) const { return t.row(0, row, 0); }
};

}  // namespace

std::string cublas_problem() { return cublas().problem; }

std::string cublas_version_and_path() { return message(cublas().major, ".", cublas().minor, ", ", cublas().path); }

void prepare_cublas() { current_handle(); }

void multiply(const CublasProduct& p, void* stream) {
  constexpr float kOne = 1, kZero = 0;
  const Functions& blas = cublas().functions;
  Handle& of = current_handle();
  const std::lock_guard lock(of.mutex);
  // In this order: with another stream a handle goes back to a workspace of its own.
  check_status(blas.cublasSetStream_v2(of.handle, static_cast<CUstream>(stream)), "cublasSetStream");
  check_status(blas.cublasSetWorkspace_v2(of.handle, p.workspace, p.workspace_bytes), "cublasSetWorkspace");
  check_status(blas.cublasSetSmCountTarget(of.handle, p.num_sms), "cublasSetSmCountTarget");
  const Rows x(p.x, p.rows, p.in_features), w(p.w, p.w_rows, p.in_features), to(p.to, p.rows, p.w_rows);
  const int64_t rows = std::min(x.together, to.together);
  // By columns, as cuBLAS counts, a matrix is its transpose: to^T = (w^T)^T x^T.
  for (int64_t i = 0; i < p.rows; i += rows) {
    for (int64_t j = 0; j < p.w_rows; j += w.together) {
      std::byte* const result = to.at(i) + core::bytes_of(p.to.dtype, j);
      check_status(
          blas.cublasGemmEx_64(of.handle, CUBLAS_OP_T, CUBLAS_OP_N, w.together, rows, p.in_features, &kOne, w.at(j),
                               type_of(p.w.dtype), w.stride, x.at(i), type_of(p.x.dtype), x.stride, &kZero, result,
                               type_of(p.to.dtype), to.stride, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
          "cublasGemmEx");
    }
  }
}

}  // namespace tessella::cuda
