// The declarations of cuBLAS that this library uses, so that no header of it is needed to build it. Names and values
// are cublas_api.h's; tests/unit/cublas_types_test.cpp compares them if that header is found.
#pragma once

namespace tessella::cuda {

using cublasHandle_t = struct cublasContext*;

enum cublasStatus_t : int { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_ALLOC_FAILED = 3 };
enum cublasOperation_t : int { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cublasMath_t : int { CUBLAS_DEFAULT_MATH = 0, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16 };
enum cublasComputeType_t : int { CUBLAS_COMPUTE_32F = 68 };
enum cublasGemmAlgo_t : int { CUBLAS_GEMM_DEFAULT = -1 };
enum cudaDataType_t : int { CUDA_R_32F = 0, CUDA_R_16F = 2, CUDA_R_16BF = 14 };
enum libraryPropertyType_t : int { MAJOR_VERSION = 0, MINOR_VERSION = 1 };

}  // namespace tessella::cuda
