// cuBLAS's numbers as this library declares them are those of cublas_api.h, where that header is found.
#include <gtest/gtest.h>

#if __has_include(<cublas_api.h>)
#include <cublas_api.h>
#define TESSELLA_HAS_CUBLAS_H 1
#else
#define TESSELLA_HAS_CUBLAS_H 0
#endif

#include "cuda/kernels/linear_blas/cublas_types.hpp"

namespace {

#if TESSELLA_HAS_CUBLAS_H
namespace ours = tessella::cuda;

#define TESSELLA_SAME(name) static_assert(static_cast<int>(ours::name) == static_cast<int>(::name))
TESSELLA_SAME(CUBLAS_STATUS_SUCCESS);
TESSELLA_SAME(CUBLAS_STATUS_ALLOC_FAILED);
TESSELLA_SAME(CUBLAS_OP_N);
TESSELLA_SAME(CUBLAS_OP_T);
TESSELLA_SAME(CUBLAS_DEFAULT_MATH);
TESSELLA_SAME(CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
TESSELLA_SAME(CUBLAS_COMPUTE_32F);
TESSELLA_SAME(CUBLAS_GEMM_DEFAULT);
TESSELLA_SAME(CUDA_R_32F);
TESSELLA_SAME(CUDA_R_16F);
TESSELLA_SAME(CUDA_R_16BF);
TESSELLA_SAME(MAJOR_VERSION);
TESSELLA_SAME(MINOR_VERSION);
#endif

TEST(CublasTypes, AreThoseOfCublasApiH) {
  if (!TESSELLA_HAS_CUBLAS_H) GTEST_SKIP() << "no cublas_api.h here to compare with";
}

}  // namespace
