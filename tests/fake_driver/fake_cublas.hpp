// What the stand-in for cuBLAS remembers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/driver/driver_types.hpp"
#include "cuda/kernels/linear_blas/cublas_types.hpp"

struct FakeCublas {
  struct Product {
    tessella::cuda::cublasOperation_t op_a, op_b;
    int64_t m, n, k;
    const void *a, *b, *c;
    tessella::cuda::cudaDataType_t a_type, b_type, c_type;
    int64_t lda, ldb, ldc;
    float alpha, beta;
    tessella::cuda::cublasComputeType_t compute;
    // As the handle had them.
    tessella::cuda::CUstream stream;
    const void* workspace;  // null: one of its own
    size_t workspace_bytes;
    int num_sms;
  };
  std::vector<Product> products;
  int num_created = 0;
  int math_mode = 0;
  int result = 0;  // of products
};

extern "C" FakeCublas* fake_cublas();
