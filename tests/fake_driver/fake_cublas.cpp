// A stand-in for cuBLAS that multiplies nothing and remembers what it was asked. FAKE_CUBLAS_MAJOR (13) is its version.
#include "fake_cublas.hpp"

#include <cstdlib>
#include <thread>

using namespace tessella::cuda;

namespace {

FakeCublas g_state;
FakeCublas::Product g_next{};  // what the only handle is set to

}  // namespace

extern "C" {

FakeCublas* fake_cublas() { return &g_state; }

cublasStatus_t cublasGetProperty(libraryPropertyType_t which, int* value) {
  const char* major = std::getenv("FAKE_CUBLAS_MAJOR");
  *value = which != MAJOR_VERSION ? 0 : major == nullptr ? 13 : std::atoi(major);
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusString(cublasStatus_t) { return "as the test wishes"; }
cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  ++g_state.num_created;
  *handle = reinterpret_cast<cublasHandle_t>(&g_state);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t mode) {
  g_state.math_mode = mode;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream_v2(cublasHandle_t, CUstream stream) {
  g_next.stream = stream;
  g_next.workspace = nullptr;
  std::this_thread::yield();  // to threads that come between, if one may
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void* workspace, size_t bytes) {
  g_next.workspace = workspace;
  g_next.workspace_bytes = bytes;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetSmCountTarget(cublasHandle_t, int num_sms) {
  g_next.num_sms = num_sms;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGemmEx_64(cublasHandle_t, cublasOperation_t op_a, cublasOperation_t op_b, int64_t m, int64_t n,
                               int64_t k, const void* alpha, const void* a, cudaDataType_t a_type, int64_t lda,
                               const void* b, cudaDataType_t b_type, int64_t ldb, const void* beta, void* c,
                               cudaDataType_t c_type, int64_t ldc, cublasComputeType_t compute, cublasGemmAlgo_t) {
  FakeCublas::Product p = g_next;
  p.op_a = op_a, p.op_b = op_b;
  p.m = m, p.n = n, p.k = k;
  p.a = a, p.b = b, p.c = c;
  p.a_type = a_type, p.b_type = b_type, p.c_type = c_type;
  p.lda = lda, p.ldb = ldb, p.ldc = ldc;
  p.alpha = *static_cast<const float*>(alpha), p.beta = *static_cast<const float*>(beta);
  p.compute = compute;
  g_state.products.push_back(p);
  return static_cast<cublasStatus_t>(g_state.result);
}

}  // extern "C"
