// linear on AMX: the tiles of linear-inl.hpp, and which calls they are for.
#include "cpu/amx/linear_amx.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

// What the headers below TESSELLA_AMX_BEGIN include of other folders is included here first, at the baseline.
#include "core/cancel.hpp"
#include "core/message.hpp"
#include "core/plan.hpp"
#include "cpu/amx/target-inl.hpp"
#include "cpu/cpu_features.hpp"
#include "cpu/memory.hpp"
#include "cpu/parallel.hpp"
#include "cpu/vector/linear_vector.hpp"
#include "operations/linear/arguments.hpp"

#if defined(__x86_64__) && defined(__linux__)

#include <immintrin.h>

TESSELLA_AMX_BEGIN

#include "cpu/amx/linear-inl.hpp"

namespace tessella::cpu {
namespace {

void run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void*) {
  amx::run_linear_tiles<amx::AmxTiles>(core::linear(arguments), plan.num_threads, workspace.scratch);
}

}  // namespace
}  // namespace tessella::cpu

TESSELLA_AMX_END

namespace tessella::cpu {
namespace {

// Of fewer rows the vector kernel's products take less time than w does to come from memory.
constexpr int64_t kFewestRows = 5;

std::string unavailable(core::Device) {
  const std::string& reason = amx_bf16_unavailable();
  return reason.empty() ? vector_unavailable(InstructionSet::avx512) : reason;
}

core::Offer offer(const core::Shape& any, int num_threads) {
  const core::LinearShape& shape = core::linear(any);
  if (shape.rows < kFewestRows && !shape.batch_invariant) {
    return {.ineligible = core::message("takes at least ", kFewestRows,
                                        " rows of x, or batch_invariant, and there are ", shape.rows)};
  }
  return {.workspace = {.scratch_bytes = amx::LinearTiles(shape, nullptr).bytes +
                                         num_threads * amx::LinearTileScratch(nullptr).bytes}};
}

std::string describe(const core::Plan& plan) {
  return core::message("w is read once for ", kWaveRows, " rows of x; units of ", amx::kUnitColumns, " columns, ",
                       threads_string(plan.num_threads));
}

}  // namespace

constinit const core::Kernel kLinearAmx = {
    .name = "cpu.linear_amx",
    .operation = core::Operation::linear,
    .summary = "bf16 on AMX tiles, rows of w as they lie",
    .architectures = "amx",
    .dtypes = core::dtype_bit(core::DType::bf16),
    .max_head_dim = std::numeric_limits<int32_t>::max(),
    .unavailable = unavailable,
    .offer = offer,
    .threads = threads_for,
    .describe = describe,
    .run = run,
};

}  // namespace tessella::cpu

#endif
