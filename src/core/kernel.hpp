// The table of a backend's kernels, best first.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/arguments.hpp"
#include "core/features.hpp"
#include "core/shape.hpp"

namespace tessella::core {

struct Plan;

// Memory a run needs beyond its tensors. state: zeroed once, left zero by every run. scratch: any content.
struct WorkspaceSize {
  int64_t state_bytes = 0;
  int64_t scratch_bytes = 0;
};

struct Workspace {
  void* state = nullptr;
  void* scratch = nullptr;  // 64-byte aligned
};

// What a kernel offers calls of one shape.
struct Offer {
  std::string ineligible;  // why it does not take them, or "". The rest then says nothing
  // Why kernels behind it serve them better, or "": it is then not chosen unless named.
  std::string leaves;
  WorkspaceSize workspace;
  int64_t made_bytes = 0;              // of what is made before runs: a schedule, or the map of a mask; 0: nothing
  std::shared_ptr<const void> recipe;  // for the functions of this kernel alone, which find it in Plan::recipe
};

struct Cost {
  double score_passes = 0;
  double bytes_moved = 0;
  double extra_bytes = 0;
};

constexpr uint32_t dtype_bit(DType dtype) { return 1u << static_cast<int32_t>(dtype); }
inline constexpr uint32_t kAllDTypes = (dtype_bit(kLastDType) << 1) - dtype_bit(DType::f64);
// The dtype of the first tensor, whatever it is.
inline constexpr uint32_t kSameDType = 1u << 31;
// k and v as q, or with fewer bits; w as x, or of 8.
inline constexpr uint32_t kCacheDTypes =
    kSameDType | dtype_bit(DType::f8e4m3fn) | dtype_bit(DType::i8) | dtype_bit(DType::i4);
inline constexpr uint32_t kWeightDTypes = kSameDType | dtype_bit(DType::f8e4m3fn) | dtype_bit(DType::i8);

// Whether `dtypes` names the dtype, or says "as the first tensor" and the dtype is the first tensor's.
constexpr bool takes(uint32_t dtypes, DType dtype, DType first) {
  return (dtypes & (dtype_bit(dtype) | (dtype == first ? kSameDType : 0))) != 0;
}

// "f64, f32 or bf16", of bits per DType.
std::string names_of_dtypes(uint32_t dtypes);

struct Kernel {
  std::string_view name;  // "cpu.forward_avx512": file name, registry name, profiler name
  Operation operation = Operation::forward;
  std::string_view summary;  // one line for `tessella kernels`
  DeviceType device = DeviceType::cpu;
  std::string_view architectures = "any";  // what it is made for: "sm_90a", "avx2"
  // Of the first tensor (q, k_new, outs[0], pools[0], x): bit per DType, see dtype_bit().
  uint32_t dtypes = 0;
  int64_t max_head_dim = 0;
  Features features;                // those it supports
  uint32_t kv_dtypes = kSameDType;  // of k and v, or of w, beside each of `dtypes`
  uint32_t out_dtypes = kSameDType | dtype_bit(DType::f32);
  bool serves_few = false;   // is of query_class few; every kernel is of query_class many
  bool splits_keys = false;  // in as many as num_splits says
  uint32_t automatic = ~0u;  // bit per DType for which it may be chosen unnamed; 0: only by name (the ladder)

  // Why this device cannot run the kernel at all, or "" (instruction sets, permissions, drivers).
  std::string (*unavailable)(Device) = nullptr;
  // For a plan of this shape, whose dtypes, head dims and features the row has, and num_threads threads. Asked once for
  // a plan. Null: the kernel takes all such shapes, and needs nothing.
  Offer (*offer)(const Shape&, int num_threads) = nullptr;
  // Why a library that every run calls is not there, or "". Looking for it opens it, so this is asked last, of a kernel
  // that takes the call otherwise. Null: there is none.
  std::string (*missing)() = nullptr;
  // Threads a run uses when the caller asks for `requested` (0 = all). Null: one.
  int (*threads)(int requested) = nullptr;
  // Passes over the scores, bytes moved, extra memory, by the algorithm's own loops. Null: not counted.
  Cost (*cost)(const Arguments&) = nullptr;
  // One line: tiles, threads. May be null.
  std::string (*describe)(const Plan&) = nullptr;
  // Compiles and loads what runs of the plan need, so that run does nothing that a graph capture forbids. Its result
  // lives in Plan::prepared. May be null.
  std::shared_ptr<const void> (*prepare)(const Plan&) = nullptr;
  // Bytes of what is made before that a run reads, and what queues the making of it. Null: all; nothing is.
  int64_t (*made_needed)(const Arguments&) = nullptr;
  void (*make)(const Arguments&, const Plan&, void* stream) = nullptr;
  // stream: of the device; ignored on the CPU.
  void (*run)(const Arguments&, const Plan&, Workspace, void* stream) = nullptr;
};

// The offer of a kernel that takes every shape that its row has, and needs this workspace.
template <WorkspaceSize (*workspace)(const Shape&, int num_threads)>
Offer needs(const Shape& shape, int num_threads) {
  return {.workspace = workspace(shape, num_threads)};
}

using KernelTable = std::span<const Kernel>;

}  // namespace tessella::core
