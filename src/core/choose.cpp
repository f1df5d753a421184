#include "core/choose.hpp"

#include "core/error.hpp"
#include "core/message.hpp"

namespace tessella::core {
namespace {

std::string names(Features features) {
  std::string text;
  for (const FeatureName& entry : kFeatureNames) {
    if (features.has(entry.feature)) text += (text.empty() ? "" : " ") + std::string(entry.name);
  }
  return text;
}

std::string explain(const Plan& plan, std::string_view forced) {
  const Problem& p = plan.bounds;
  std::string text =
      message("batch=", p.batch, " seqlen_q=", p.seqlen_q, " seqlen_kv=", p.seqlen_kv, " heads_q=", p.heads_q,
              " heads_kv=", p.heads_kv, " head_dim_qk=", p.head_dim_qk, " head_dim_v=", p.head_dim_v,
              p.page_size == 0 ? std::string() : message(" page_size=", p.page_size), " dtype=", name(p.dtype),
              " out_dtype=", name(p.out_dtype), " device=", name(p.device), "\n",
              "features: ", p.features.empty() ? "none" : names(p.features), "\n", "kernel: ", plan.kernel->name, " (",
              plan.kernel->summary, ")", forced.empty() ? "" : ", named by the caller", "\n");
  if (p.device.type == DeviceType::cpu) text += message("threads: at most ", plan.num_threads, "\n");
  if (plan.kernel->describe != nullptr) text += plan.kernel->describe(p, plan.num_threads) + "\n";
  text += message("workspace: state ", plan.workspace.state_bytes, " bytes, scratch ", plan.workspace.scratch_bytes,
                  " bytes\n");
  for (const Refusal& refused : plan.refusals) text += message("refused: ", refused.kernel, ": ", refused.reason, "\n");
  return text;
}

Problem without_pointers(const Problem& problem) {
  Problem bounds = problem;
  bounds.q.data = bounds.k.data = bounds.v.data = bounds.out.data = bounds.lse.data = nullptr;
  bounds.q_scale.data = bounds.k_scale.data = bounds.v_scale.data = nullptr;
  bounds.out_scale.data = bounds.amax.data = nullptr;
  bounds.cancel = nullptr;
  bounds.seqlens_q = bounds.seqlens_kv = bounds.leftpad_kv = bounds.cu_seqlens_q = bounds.cu_seqlens_kv = {};
  bounds.page_table = {};
  bounds.bias = bounds.dense_mask = bounds.block_map = {};
  bounds.alibi_slopes = bounds.sink = {};
  bounds.document_q = bounds.document_kv = bounds.prefix = {};
  bounds.seed_data = bounds.offset_data = nullptr;
  for (UserArray& array : bounds.arrays) array.data = nullptr;
  return bounds;
}

// The plan outlives the caller's source.
void keep_source(Plan& plan) {
  Problem& p = plan.bounds;
  if (p.score_mod.empty() && p.mask_mod.empty()) return;
  plan.source = std::make_shared<const std::string>(std::string(p.score_mod) + std::string(p.mask_mod));
  const std::string_view all = *plan.source;
  p.mask_mod = all.substr(p.score_mod.size());
  p.score_mod = all.substr(0, p.score_mod.size());
}

}  // namespace

std::string refusal(const Kernel& kernel, const Problem& problem) {
  if (kernel.device != problem.device.type) {
    return message("runs on ", name(kernel.device), " tensors, and q is on ", place(problem.device));
  }
  if (kernel.unavailable != nullptr) {
    if (std::string reason = kernel.unavailable(problem.device); !reason.empty()) return reason;
  }
  if ((kernel.dtypes & dtype_bit(problem.dtype)) == 0) return message("does not compute ", name(problem.dtype));
  for (const auto& [argument, dtype] : {std::pair{"k.dtype", problem.k.dtype}, std::pair{"v.dtype", problem.v.dtype}}) {
    if (dtype != problem.dtype) {
      return message("does not compute ", argument, " ", name(dtype), " beside q.dtype ", name(problem.dtype));
    }
  }
  if (problem.out_dtype != problem.dtype && problem.out_dtype != DType::f32) {
    return message("does not write out.dtype ", name(problem.out_dtype), " beside q.dtype ", name(problem.dtype));
  }
  for (const auto& [argument, head_dim] :
       {std::pair{"head_dim_qk", problem.head_dim_qk}, std::pair{"head_dim_v", problem.head_dim_v}}) {
    if (head_dim > kernel.max_head_dim) {
      return message(argument, " is ", head_dim, ", at most ", kernel.max_head_dim);
    }
  }
  if (problem.query_class == QueryClass::few && !kernel.serves_few)
    return "is for many queries, and query_class is few";
  const Features missing = problem.features.without(kernel.features);
  if (!missing.empty()) return "does not support " + names(missing);
  return kernel.refuses == nullptr ? std::string() : kernel.refuses(problem);
}

Plan choose(const Problem& problem, std::span<const KernelTable> tables, std::string_view forced,
            const char* function) {
  Plan plan;
  for (const KernelTable& table : tables) {
    for (const Kernel& kernel : table) {
      if (forced.empty() ? kernel.device != problem.device.type : kernel.name != forced) continue;
      if (forced.empty() && kernel.automatic == 0) continue;  // the ladder is there to be named, not refused
      std::string reason = refusal(kernel, problem);
      if (reason.empty() && forced.empty() && (kernel.automatic & dtype_bit(problem.dtype)) == 0) {
        reason = message("is not chosen for ", name(problem.dtype), " unless named");
      }
      if (!reason.empty()) {
        plan.refusals.push_back({kernel.name, reason});
        continue;
      }
      plan.kernel = &kernel;
      plan.bounds = without_pointers(problem);
      keep_source(plan);
      plan.num_threads = kernel.threads == nullptr ? 1 : kernel.threads(problem.num_threads);
      if (kernel.workspace != nullptr) plan.workspace = kernel.workspace(plan.bounds, plan.num_threads);
      plan.explanation = explain(plan, forced);
      return plan;
    }
  }
  if (!forced.empty() && plan.refusals.empty()) {
    invalid(message(function, ": kernel is \"", forced, "\", expected a name that `tessella kernels` lists"));
  }
  std::string text = message(function, ": no kernel computes this call");
  for (const Refusal& refused : plan.refusals) text += message("; ", refused.kernel, ": ", refused.reason);
  unsupported(text);
}

}  // namespace tessella::core
