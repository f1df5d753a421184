// Compiles the GPU's kernels as calls need them, without a GPU, for Ampere, Ada and Hopper: no row may spill, take more
// registers than its blocks leave it, or more shared memory than the GPU has.
//
// usage: kernel_matrix_test [--full]      --full: every row (20 minutes on two cores); otherwise some of each kind
//
// The large families are in kernel_matrix_{forward,backward,decode,linear}_test.cpp, all others and main() here.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "cuda/compile/cubin_store.hpp"
#include "cuda/compile/nvrtc.hpp"
#include "cuda/kernels/append/recipe.hpp"
#include "cuda/kernels/copy_pages/recipe.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "cuda/kernels/forward_widened/recipe.hpp"
#include "cuda/kernels/ladder/recipe.hpp"
#include "cuda/kernels/linear_blas/recipe.hpp"
#include "cuda/kernels/linear_gemv/recipe.hpp"
#include "cuda/kernels/linear_sm80/recipe.hpp"
#include "cuda/kernels/merge/recipe.hpp"
#include "cuda/kernels/quantize/recipe.hpp"
#include "gpu/kernel_matrix.hpp"
#include "operations/append/shape.hpp"
#include "operations/attention/arguments.hpp"
#include "operations/copy_pages/shape.hpp"
#include "operations/linear/shape.hpp"
#include "operations/merge/shape.hpp"
#include "operations/quantize/shape.hpp"

namespace tessella::kernel_matrix {
namespace {

using namespace cuda;

// Those are there to be read and compared: they may spill.
TEST(LadderKernels, Compile) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  for (const Row& row : {Row{0, 3, 0, 2, true}, Row{1, 1, kAll, 0, false}, Row{2, 1, 0, 1, true}}) {
    const AttentionArguments p = problem(row);
    const int arch = kArchs[row.arch_idx];
    for (const Recipe& recipe : {standard_recipe(p, typical_device(arch)), flash_1_recipe(p, typical_device(arch)),
                                 standard_backward_recipe(backward(p), typical_device(arch))}) {
      const std::string what = words(p, kFeatureSets[row.set_idx].name, recipe) + ", sm_" + std::to_string(arch) + "\n";
      ASSERT_EQ(recipe.ineligible, "") << what;
      for (const Step& step : recipe.steps) {
        const auto cubin = store.get(step.program, {.arch = arch});
        EXPECT_GT(cubin->resources.registers, 0) << what << cubin->log;
        EXPECT_EQ(cubin->log.find("warning"), std::string::npos) << what << cubin->log;
      }
    }
  }
}

// Kernels without a tile in registers: none spills, and its blocks fit as its recipe counts on. most_spilled: bytes of
// values that may be in local memory all the same, each loaded at two places.
void expect_small(CubinStore& store, const Recipe& recipe, int arch, int most_spilled = 0) {
  for (const Step& step : recipe.steps) {
    const auto cubin = store.get(step.program, {.arch = arch});
    const Resources& takes = cubin->resources;
    const std::string what =
        recipe.description + ", sm_" + std::to_string(arch) + ": " + step.program.expression + "\n";
    EXPECT_LE(takes.stack_bytes, most_spilled) << what << cubin->log;
    EXPECT_LE(takes.spill_store_bytes + takes.spill_load_bytes, 3 * most_spilled) << what << cubin->log;
    EXPECT_LE(takes.registers * static_cast<int>(step.threads) * step.blocks_per_sm, 65536) << what << cubin->log;
  }
}

// merge: every pair of dtypes, pieces of 16 bytes and of one element, first and later steps.
TEST(KernelMatrixMerge, CompilesWithoutSpills) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const DType out : {DType::f32, DType::bf16, DType::f16}) {
      if (out != dtype && out != DType::f32 && dtype != DType::f32) continue;
      for (const int32_t alignment : {16, 2}) {
        core::MergeShape shape{.num_states = 65, .states = {dtype, alignment}, .out = {out, alignment}};
        shape.head_dim = 128;
        for (const int arch : {80, 90}) expect_small(store, merge_recipe(shape, typical_device(arch)), arch);
      }
    }
  }
}

// append: every dtype of rows and angles, both ways to turn, pieces of 16 bytes and of one element.
TEST(KernelMatrixAppend, CompilesWithoutSpills) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const DType angles : {DType::none, DType::f32, dtype}) {
      for (const bool is_interleaved : {false, true}) {
        for (const int32_t alignment : {16, 2}) {
          core::AppendShape shape{.rows = {dtype, alignment}, .cache = {dtype, alignment}, .rotary = angles};
          shape.k_new = shape.v_new = {.heads = 2, .head_dim = 128};
          shape.rotary_dim = angles == DType::none ? 0 : 64;
          shape.rotary_interleaved = is_interleaved && angles != DType::none;
          for (const int arch : {80, 90}) expect_small(store, append_recipe(shape, typical_device(arch)), arch);
        }
      }
    }
  }
}

// append into quantised caches: every dtype of these, scales that are given and computed, every piece.
TEST(KernelMatrixAppend, QuantizedCompilesWithoutSpills) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const DType cache : {DType::f8e4m3fn, DType::i8, DType::i4}) {
      for (const int32_t alignment : {16, 2}) {
        for (const int64_t rotary_dim : {0, 128}) {
          core::AppendShape shape{.rows = {dtype, alignment}, .cache = {cache, alignment}, .scale_block = 1};
          shape.k_new = shape.v_new = {.heads = 2, .head_dim = 128};
          shape.rotary = rotary_dim == 0 ? DType::none : DType::f32;
          shape.rotary_dim = rotary_dim;
          if (rotary_dim == 0) shape.scale_block = cache == DType::i8 ? 1 : 0;
          const int arch = alignment == 16 ? 90 : 80;
          expect_small(store, append_recipe(shape, typical_device(arch)), arch);
        }
      }
    }
  }
}

// forward_widened's own steps: every dtype of copies and of out. Those of the kernel between them are in the matrix of
// that kernel.
TEST(KernelMatrixWidened, CompilesWithoutSpills) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  const auto expect_small_steps = [&](DType q, DType kv, DType out) {
    core::AttentionShape shape{.batch = 1, .heads_q = 8, .heads_kv = 1, .head_dim_qk = 128, .head_dim_v = 128};
    shape.seqlen_q = shape.total_q = shape.seqlen_kv = shape.total_kv = 1024;
    for (const core::Name name : {core::Name::q, core::Name::k, core::Name::v}) {
      shape.operands[name] = {name == core::Name::q ? q : kv, 16};
    }
    shape.operands[core::Name::out].dtype = out;
    shape.operands[core::Name::amax].dtype = DType::f32;
    for (const int arch : {80, 90}) {
      Recipe recipe = forward_widened_recipe(shape, typical_device(arch));
      ASSERT_EQ(recipe.ineligible, "");
      std::erase_if(recipe.steps,
                    [](const Step& step) { return step.program.header != "cuda/kernels/forward_widened/widen.cuh"; });
      ASSERT_EQ(recipe.steps.size(), 2U);
      expect_small(store, recipe, arch);
    }
  };
  for (const DType out : {DType::bf16, DType::f16, DType::f32, DType::f8e4m3fn, DType::f8e5m2}) {
    expect_small_steps(DType::f8e4m3fn, DType::f8e4m3fn, out);
  }
  expect_small_steps(DType::f8e5m2, DType::f8e5m2, DType::f32);
  expect_small_steps(DType::bf16, DType::i8, DType::f32);
}

// copy_pages: pieces of every size.
TEST(KernelMatrixCopyPages, CompilesWithoutSpills) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  for (const int32_t alignment : {1, 2, 4, 8, 16}) {
    const core::CopyPagesShape shape{.pools = {DType::bf16, alignment}, .num_pools = 61};
    for (const int arch : {80, 90}) expect_small(store, copy_pages_recipe(shape, typical_device(arch)), arch);
  }
}

// quantize and dequantize: every kernel, with all that a row may go through and with nothing, lanes with 8 columns and
// with 32, pieces of 16 bytes and of one element.
TEST(KernelMatrixQuantize, CompilesWithoutSpills) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const int64_t head_dim : {128, dtype == DType::bf16 ? 1024 : 512}) {
      for (const bool is_whole : {false, true}) {
        core::QuantizeShape shape{.x = {dtype, 16}, .out = {DType::f8e4m3fn, 16}, .batch = 2, .seqlen = 300};
        shape.total = shape.seqlen;
        shape.heads = 4;
        shape.head_dim = head_dim;
        shape.computes_scales = true;
        const int arch = is_whole ? 90 : 80;
        if (is_whole) {
          shape.hadamard = true;
          shape.mean_heads = 4;
          shape.rotary = DType::f32;
          shape.rotary_dim = head_dim;
        } else if (dtype == DType::bf16) {
          shape.x.alignment = shape.out.alignment = 2;
          shape.mean_heads = 2;
          shape.has_shift = true;
        }
        for (const int64_t scale_block : {0, 1, 128}) {
          shape.scale_block = scale_block;
          expect_small(store, quantize_recipe(shape, typical_device(arch)), arch);
        }
        shape.is_transposed = true;
        expect_small(store, quantize_recipe(shape, typical_device(arch)), arch);
        core::QuantizeShape back{shape};
        back.operation = core::Operation::dequantize;
        std::swap(back.x, back.out);
        back.computes_scales = back.has_shift = false;
        back.rotary = DType::none;
        back.rotary_dim = 0;
        for (const bool is_transposed : {false, true}) {
          back.is_transposed = is_transposed;
          expect_small(store, dequantize_recipe(back, typical_device(arch)), arch);
        }
      }
    }
  }
}

// The step behind cuBLAS's sums.
TEST(KernelMatrixLinear, FinishingCompilesWithoutSpills) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    core::LinearShape shape{.x_shape = {dtype, 16}, .w_shape = {dtype, 16}, .out_shape = {dtype, 16}};
    shape.rows = shape.in_features = shape.out_features = 128;
    shape.activation = core::Activation::swiglu;
    for (const int arch : {80, 90}) expect_small(store, linear_blas_recipe(shape, typical_device(arch)), arch);
  }
}

// linear_sm80 and linear_gemv: every dtype of weights, numbers of rows, 16 and 32 rows of w, pieces of 16 bytes and of
// one element.
TEST(KernelMatrixLinear, CompilesWithoutSpills) {
  if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
  CubinStore store(TESSELLA_TEST_CACHE, nvrtc());
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    for (const DType w : {dtype, DType::i8, DType::f8e4m3fn}) {
      for (const int64_t rows : {1, 2, 16, 32, 64}) {
        for (const bool is_wide : {false, true}) {
          core::LinearShape shape{.x_shape = {dtype, 16}, .w_shape = {w, 16}, .out_shape = {dtype, 16}};
          shape.rows = rows;
          shape.in_features = 4096;
          shape.out_features = is_wide ? 44032 : 1024;
          const bool is_scalar = rows == 64 && dtype == DType::f16;
          if (is_scalar) shape.x_shape.alignment = 2;
          for (const int arch : {80, 90}) {
            DeviceInfo device = typical_device(arch);
            device.num_sms = 132;
            if (!g_full && dtype == DType::f16 && arch == 80) continue;
            if (!is_wide && rows <= 16) expect_small(store, linear_gemv_recipe(shape, device), arch);
            if (dtype == DType::f32) continue;
            // The assembler loads so much of x ahead that two words of more than 8 rows lack registers.
            expect_small(store, linear_sm80_recipe(shape, device), arch, rows > 8 ? 8 : 0);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessella::kernel_matrix

using tessella::kernel_matrix::g_full;

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) g_full = g_full || std::strcmp(argv[i], "--full") == 0;
  return RUN_ALL_TESTS();
}
