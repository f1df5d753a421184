#include "api/forward.hpp"

#include <array>
#include <bit>
#include <list>
#include <mutex>
#include <string>
#include <tuple>

#include "api/arena.hpp"
#include "api/host_copy.hpp"
#include "api/normalize.hpp"
#include "core/choose.hpp"
#include "core/environment.hpp"
#include "core/error.hpp"
#include "core/message.hpp"
#include "core/once.hpp"
#include "core/sequence.hpp"
#include "core/validate.hpp"
#include "cpu/kernels.hpp"
#include "cpu/parallel.hpp"
#include "cuda/driver/memory.hpp"
#include "cuda/kernels.hpp"
#include "reference/kernels.hpp"

namespace tessella::api {
namespace {

using core::invalid;
using core::message;
using core::Plan;
using core::Problem;

// What a plan depends on, with lengths rounded up.
struct PlanKey {
  std::array<int64_t, 20> numbers;
  std::string kernel, score, keep;
  bool operator==(const PlanKey&) const = default;
};

// To a quarter of a power of two: a sequence that grows meets few plans, and no workspace is over a quarter too large.
int64_t rounded_length(int64_t length) {
  const auto at_least = static_cast<uint64_t>(std::max<int64_t>(length, 64));
  const uint64_t step = std::bit_floor(at_least) / 4;
  return static_cast<int64_t>((at_least + step - 1) / step * step);
}

Problem with_bounds(Problem problem, int64_t max_seqlen_q, int64_t max_seqlen_kv) {
  problem.seqlen_q = std::max(problem.seqlen_q, max_seqlen_q);
  problem.seqlen_kv = std::max(problem.seqlen_kv, max_seqlen_kv);
  problem.total_q = std::max(problem.total_q, problem.seqlen_q);
  problem.total_kv = std::max(problem.total_kv, problem.seqlen_kv);
  return problem;
}

Problem with_rounded_lengths(const Problem& p) {
  Problem rounded = with_bounds(p, rounded_length(p.seqlen_q), rounded_length(p.seqlen_kv));
  if (p.cu_seqlens_q) rounded.total_q = rounded_length(p.total_q);
  if (p.cu_seqlens_kv) rounded.total_kv = rounded_length(p.total_kv);
  return rounded;
}

int64_t array_dtypes(const Problem& p) {
  int64_t dtypes = 0;
  for (int32_t i = 0; i < p.num_arrays; ++i) dtypes = dtypes << 4 | static_cast<int64_t>(p.arrays[i].dtype);
  return dtypes;
}

// num_threads counts as resolved: inside a small oneTBB arena all threads are few.
PlanKey key(const Problem& p, std::string_view kernel) {
  return {{static_cast<int64_t>(p.device.type),
           p.device.id,
           static_cast<int64_t>(p.dtype),
           static_cast<int64_t>(p.out_dtype),
           p.batch,
           p.heads_q,
           p.heads_kv,
           p.head_dim_qk,
           p.head_dim_v,
           rounded_length(p.seqlen_q) << 32 | rounded_length(p.seqlen_kv),
           rounded_length(p.total_q),
           rounded_length(p.total_kv),
           p.features.bits(),
           p.device.type == core::DeviceType::cpu ? cpu::threads_for(p.num_threads) : 0,
           p.alignment,
           int64_t{p.num_sms} << 1 | (p.batch_invariant ? 1 : 0),
           static_cast<int64_t>(p.bias_dtype),
           array_dtypes(p),
           p.page_size,
           rounded_length(core::most_keys(p)) << 1 | (core::rows_grow(p) ? 1 : 0)},
          std::string(kernel),
          std::string(p.score),
          std::string(p.keep)};
}

// The most recently used plans of the process, newest first. A lock that is taken counts as a miss: a child forked
// while another thread held it would wait forever.
class PlanCache {
 public:
  std::shared_ptr<const Plan> find(const PlanKey& key) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return nullptr;
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->key == key) {
        entries_.splice(entries_.begin(), entries_, entry);
        return entry->plan;
      }
    }
    return nullptr;
  }
  void insert(PlanKey key, std::shared_ptr<const Plan> plan) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return;
    entries_.push_front({std::move(key), std::move(plan)});
    if (entries_.size() > kCapacity) entries_.pop_back();
  }

 private:
  static constexpr size_t kCapacity = 64;
  struct Entry {
    PlanKey key;
    std::shared_ptr<const Plan> plan;
  };
  std::mutex mutex_;
  std::list<Entry> entries_;
};

PlanCache& plan_cache() {
  return *core::once([] { return new PlanCache; });
}

Plan prepared(Plan plan) {
  if (plan.kernel->prepare != nullptr) plan.prepared = plan.kernel->prepare(plan.bounds);
  return plan;
}

}  // namespace

std::span<const core::KernelTable> kernel_tables() {
  return core::once([] {
    return std::array<core::KernelTable, 3>{cuda::cuda_kernels(), cpu::cpu_kernels(), reference::reference_kernels()};
  });
}

Problem read_problem(const tessella_forward_args* args, const tessella_attention_options& options, const char* function,
                     void* stream, Memory memory) {
  const Problem problem = normalize(grown(args, function), options, function, memory);
  const bool checks_values = problem.device.type != core::DeviceType::cpu &&
                             (options.check_device_values != 0 || core::environment_check_device_values());
  core::validate(checks_values ? HostCopy(problem, Copied::tables, stream).problem() : problem, function);
  return problem;
}

std::string_view forced_kernel(const tessella_attention_options& options) {
  return options.kernel != nullptr ? std::string_view(options.kernel) : core::environment_kernel();
}

Plan plan_forward(const Problem& problem, const tessella_attention_options& options) {
  const Problem bounds = with_bounds(problem, options.max_seqlen_q, options.max_seqlen_kv);
  core::validate_sizes(bounds, "plan_forward");
  return prepared(core::choose(bounds, kernel_tables(), forced_kernel(options), "plan_forward"));
}

std::shared_ptr<const Plan> cached_plan(const Problem& problem, const tessella_attention_options& options) {
  const std::string_view forced = forced_kernel(options);
  PlanKey wanted = key(problem, forced);
  if (std::shared_ptr<const Plan> plan = plan_cache().find(wanted)) return plan;
  auto plan = std::make_shared<const Plan>(
      prepared(core::choose(with_rounded_lengths(problem), kernel_tables(), forced, "forward")));
  plan_cache().insert(std::move(wanted), plan);
  return plan;
}

void check_fits(const Plan& plan, const Problem& problem) {
  const Problem& made_for = plan.bounds;
  const auto same = [](const char* what, const auto& got, const auto& expected) {
    if (got != expected) {
      invalid(message("plan_run: ", what, " is ", got, ", expected ", expected, ", what the plan was made for"));
    }
  };
  // Names are made only to be shown.
  const auto same_name = [&](const char* what, const auto& got, const auto& expected) {
    if (got != expected) same(what, std::string(name(got)), std::string(name(expected)));
  };
  same_name("device of q", problem.device, made_for.device);
  same_name("dtype of q", problem.dtype, made_for.dtype);
  same_name("dtype of out", problem.out_dtype, made_for.out_dtype);
  same("batch", problem.batch, made_for.batch);
  same("heads_q", problem.heads_q, made_for.heads_q);
  same("heads_kv", problem.heads_kv, made_for.heads_kv);
  same("head_dim_qk", problem.head_dim_qk, made_for.head_dim_qk);
  same("head_dim_v", problem.head_dim_v, made_for.head_dim_v);
  for (const core::FeatureName& entry : core::kFeatureNames) {
    const bool has = problem.features.has(entry.feature);
    if (has != made_for.features.has(entry.feature)) {
      invalid(message("plan_run: ", entry.name, has ? " is given" : " is absent", ", and the plan was made ",
                      has ? "without it" : "with it"));
    }
  }
  same("page size", problem.page_size, made_for.page_size);
  same_name("dtype of bias", problem.bias_dtype, made_for.bias_dtype);
  same("num_sms", problem.num_sms, made_for.num_sms);
  if (problem.num_threads != 0) same("num_threads", problem.num_threads, made_for.num_threads);
  same("batch_invariant", problem.batch_invariant, made_for.batch_invariant);
  same("num_mod_args", problem.num_arrays, made_for.num_arrays);
  for (int32_t i = 0; i < problem.num_arrays; ++i) {
    same_name("dtype in mod_args", problem.arrays[i].dtype, made_for.arrays[i].dtype);
  }
  for (const auto& [what, got, expected] :
       {std::tuple{"score_mod", problem.score, made_for.score}, std::tuple{"mask_mod", problem.keep, made_for.keep}}) {
    if (got != expected) invalid(message("plan_run: ", what, " is another source than what the plan was made for"));
  }
  if (problem.alignment < made_for.alignment) {
    invalid(message("plan_run: q, k and v are aligned to ", problem.alignment, " bytes, expected ", made_for.alignment,
                    ", as the plan was made for"));
  }
  const auto within = [](const char* what, int64_t got, int64_t most) {
    if (got > most)
      invalid(message("plan_run: ", what, " is ", got, ", expected at most ", most, ", the plan's bound"));
  };
  within("seqlen_q", problem.seqlen_q, made_for.seqlen_q);
  within("seqlen_kv", problem.seqlen_kv, made_for.seqlen_kv);
  within("rows of q", problem.total_q, made_for.total_q);
  within("rows of k", problem.total_kv, made_for.total_kv);
}

void run(const Plan& plan, const Problem& problem, const tessella_workspace* workspace,
         const tessella_allocator* allocator, void* stream, const char* function) {
  if (workspace == nullptr) {
    const RunMemory memory(plan.workspace, problem.device, allocator, stream, function);
    plan.kernel->run(problem, plan, memory.workspace(), stream);
    return;
  }
  const auto holds = [](const char* what, const void* data, size_t got, int64_t expected) {
    if (expected == 0) return;
    if (data == nullptr || got < static_cast<size_t>(expected)) {
      invalid(message("plan_run: workspace.", what, " has ", data == nullptr ? 0 : got, " bytes, expected ", expected));
    }
    if (reinterpret_cast<uintptr_t>(data) % 64 != 0) {
      invalid(message("plan_run: workspace.", what, " is not aligned, expected a multiple of 64 bytes"));
    }
  };
  holds("state", workspace->state, workspace->state_bytes, plan.workspace.state_bytes);
  holds("scratch", workspace->scratch, workspace->scratch_bytes, plan.workspace.scratch_bytes);
  plan.kernel->run(problem, plan, {workspace->state, workspace->scratch}, stream);
}

reference::CheckReport check_forward(const Problem& problem, int64_t num_rows, uint64_t seed) {
  if (problem.features.has_any(core::kTextFeatures)) {
    core::unsupported("check_forward: score_mod or mask_mod is given, and the reference does not compile source");
  }
  if (problem.device.type == core::DeviceType::cpu) return reference::check_forward(problem, num_rows, seed);
  cuda::synchronize(problem.device);
  const HostCopy copy(problem, Copied::all, nullptr);
  core::validate(copy.problem(), "check_forward");
  return reference::check_forward(copy.problem(), num_rows, seed);
}

}  // namespace tessella::api
