#include "operations/linear/shipped_dataflow.hpp"

namespace tessella::core {

// Matrices of Llama2-7B and of CodeLlama-34B, without SwiGLU (docs/results/2026-11-30-linear-h200.md).
std::string_view shipped_dataflow() {
  return "NVIDIA H200, x bf16, w bf16 (12288, 4096), none\t64 cuda.linear_sm90\t128 cuda.linear_blas\n"
         "NVIDIA H200, x bf16, w bf16 (4096, 4096), none\t64 cuda.linear_sm90\t128 cuda.linear_blas\n"
         "NVIDIA H200, x bf16, w bf16 (11008, 4096), none\t64 cuda.linear_sm90\t128 cuda.linear_blas\n"
         "NVIDIA H200, x bf16, w bf16 (4096, 11008), none\t64 cuda.linear_sm90\t128 cuda.linear_blas\n"
         "NVIDIA H200, x bf16, w bf16 (10240, 8192), none\t48 cuda.linear_sm90\t128 cuda.linear_blas\n"
         "NVIDIA H200, x bf16, w bf16 (8192, 8192), none\t64 cuda.linear_sm90\t128 cuda.linear_blas\n"
         "NVIDIA H200, x bf16, w bf16 (44032, 8192), none\t32 cuda.linear_sm90\t128 cuda.linear_blas\n"
         "NVIDIA H200, x bf16, w bf16 (8192, 22016), none\t64 cuda.linear_sm90\t128 cuda.linear_blas\n";
}

}  // namespace tessella::core
