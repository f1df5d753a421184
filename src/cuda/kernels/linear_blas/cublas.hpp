// cuBLAS, NVIDIA's library of matrix products, opened when first needed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/operand.hpp"
#include "cuda/driver/library_paths.hpp"

namespace tessella::cuda {

inline constexpr SoughtLibrary kCublasLibrary{
    .variable = "TESSELLA_CUBLAS", .names = {"libcublas.so.13", "libcublas.so.12"}, .package = "cublas"};

// Why there is no cuBLAS that this process's driver runs, and which paths were searched, or "". The first one that the
// process has loaded already is taken (PyTorch's), or else the first one found. The search runs once per process.
std::string cublas_problem();

// "13.0, PATH", where there is one.
std::string cublas_version_and_path();

// to = x w^T, summed in fp32 and rounded once. Rows may lie anywhere; data of matrices is on the current device.
struct CublasProduct {
  core::Operand x, w, to;  // (rows, in_features), (w_rows, in_features), (rows, w_rows)
  int64_t rows, w_rows, in_features;
  int num_sms;  // 0: all
  void* workspace;
  size_t workspace_bytes;
};

// What cuBLAS allocates once for the current context. A product allocates nothing after that.
void prepare_cublas();

// Queues it.
void multiply(const CublasProduct& product, void* stream);

}  // namespace tessella::cuda
