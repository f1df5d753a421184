#include "commands/bench_configuration.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <string>

#include "commands/kernel_list.hpp"
#include "device/memory.hpp"
#include "files/element_type.hpp"
#include "files/input_error.hpp"
#include "options/number_string.hpp"

namespace tessella::cli {
namespace {

constexpr double kRunsWanted = 5;  // in the budget: a median of fewer says little

// As many KV heads, then sequences, as fit; never less than one head.
RandomCase scaled(RandomCase problem, double units) {
  const int64_t fit = std::max<int64_t>(1, static_cast<int64_t>(units));
  const int64_t group = problem.heads_q / problem.heads_kv;
  if (fit < problem.heads_kv) {
    problem.batch = 1;
    problem.heads_kv = fit;
    problem.heads_q = fit * group;
  } else {
    problem.batch = std::min(problem.batch, fit / problem.heads_kv);
  }
  return problem;
}

double extra_bytes(const Call& call, const std::string& kernel) {
  tessella_kernel_cost cost = TESSELLA_KERNEL_COST_INIT;
  const KernelEntry entry = kernel_named("kernel", kernel, call.backward ? "backward" : "forward");
  const tessella_status status = tessella_kernel_cost_of(entry.idx, Tagged(call), &cost);
  if (status == TESSELLA_UNSUPPORTED) return 0;  // counts none: linear memory
  check(status);
  return cost.extra_bytes;
}

Call make_call(const RandomCase& problem, const std::string& kernel, const AttentionOptionValues& options) {
  Call call = make_random_call(problem, options);
  if (!kernel.empty()) call.options.kernel = call.strings.emplace_back(kernel).c_str();
  return call;
}

void run_plan(const PlanHandle& plan, const Call& call) {
  check(tessella_plan_run(plan.get(), Tagged(call), nullptr, nullptr));
}

// Masks whose values belong to sequences, heads or rows.
bool has_tensors(const std::string& mask) {
  return std::ranges::any_of(std::array{"prefix:", "document:", "dense:", "block_map:"},
                             [&](const char* part) { return mask.find(part) != std::string::npos; });
}

double tensor_bytes(const RandomCase& problem) {
  const int64_t rows = problem.heads_q * problem.seqlen_q + problem.heads_kv * problem.seqlen_kv;
  return (problem.is_backward ? 4.0 : 2.0) * static_cast<double>(problem.batch) * static_cast<double>(rows) *
         static_cast<double>(problem.head_dim) * static_cast<double>(find_element_type(problem.dtype)->bytes);
}

// About what a run of the problem takes, judged by one that is shorter; 0 where the problem is short itself. Under
// masks whose rows may see no more keys in longer sequences it is the least that it can be.
double foreseen_seconds(const RandomCase& problem, const std::string& kernel, const AttentionOptionValues& options) {
  constexpr int64_t kShort = 1024;
  if (problem.seqlen_q <= 4 * kShort) return 0;
  RandomCase shorter = problem;
  shorter.seqlen_q = shorter.seqlen_kv = kShort;
  const Call call = make_call(shorter, kernel, options);
  const PlanHandle plan = make_plan(call);
  run_plan(plan, call);  // warm
  const double growth = static_cast<double>(problem.seqlen_q) / kShort;
  const bool is_square = problem.mask == "none" || problem.mask == "causal";
  return seconds_of([&] { run_plan(plan, call); }) * growth * (is_square ? growth : 1);
}

// Gradients of a key are sums over all queries, so those of whole heads are checked; the reference's time grows with
// the square of their length: of long ones the same kernel is checked over a shorter problem.
void check_result(const RandomCase& problem, const Call& call, const AttentionOptionValues& options, int64_t check_rows,
                  BenchResult& result) {
  constexpr int64_t kLongest = 512;
  result.check_seqlen = problem.seqlen_q;
  if (!problem.is_backward || problem.seqlen_q <= kLongest || options.has_tensors() || has_tensors(problem.mask)) {
    return check(tessella_check(Tagged(call), check_rows, 1, &result.check));
  }
  RandomCase shorter = scaled(problem, 1);
  shorter.seqlen_q = shorter.seqlen_kv = result.check_seqlen = kLongest;
  const Call checked = make_call(shorter, result.kernel, options);
  run_plan(make_plan(checked), checked);
  check(tessella_check(Tagged(checked), check_rows, 1, &result.check));
}

// What was asked, whole: a GPU is fast enough.
BenchResult measure_on_gpu(const RandomCase& problem, const std::string& kernel, const AttentionOptionValues& options,
                           double budget, int64_t check_rows) {
  const Call call = make_call(problem, kernel, options);
  const PlanHandle plan = make_plan(call);
  BenchResult result{tessella_plan_kernel(plan.get()), problem.batch, problem.heads_q, problem.heads_kv, {}};
  result.timing = measure_at(
      options.placement(), [&] { run_plan(plan, call); }, budget);
  result.seconds_per_head = result.timing.median / static_cast<double>(problem.batch * problem.heads_q);
  check_result(problem, call, options, check_rows, result);
  return result;
}

std::optional<BenchResult> measure_configuration(const RandomCase& problem, const std::string& kernel,
                                                 const AttentionOptionValues& options, double budget,
                                                 int64_t check_rows, NotMeasured& missing) {
  if (options.placement().gpu) return measure_on_gpu(problem, kernel, options, budget, check_rows);
  // Fewer heads or sequences than asked would not fit values given for each.
  const bool whole = options.has_tensors() || has_tensors(problem.mask);
  const RandomCase one = whole ? problem : scaled(problem, 1);
  const char* of_what = whole ? "" : " per head";
  if (const double bytes = tensor_bytes(one); bytes > available_memory(Placement{}) / 2) {
    missing.why =
        fmt::format("{} would take {} of memory{}", one.is_backward ? "inputs and gradients" : "q, k, v and out",
                    bytes_string(bytes), of_what);
    return std::nullopt;
  }
  constexpr double kMostOfBudget = 20;
  if (const double seconds = whole ? 0 : foreseen_seconds(one, kernel, options); seconds > kMostOfBudget * budget) {
    missing.why = fmt::format("one head would take about {}, more than {} times --budget", seconds_string(seconds),
                              kMostOfBudget);
    return std::nullopt;
  }
  Call probe = make_call(one, kernel, options);
  PlanHandle plan = make_plan(probe);
  const std::string name = tessella_plan_kernel(plan.get());
  const double extra = extra_bytes(probe, name);
  if (extra > available_memory(Placement{}) / 2) {
    missing.why = fmt::format("{} would take {} of memory{}", name, bytes_string(extra), of_what);
    return std::nullopt;
  }
  double unit_seconds = seconds_of([&] { run_plan(plan, probe); });
  if (unit_seconds < budget / kRunsWanted) unit_seconds = seconds_of([&] { run_plan(plan, probe); });  // warm

  const RandomCase sized = whole ? problem : scaled(problem, budget / kRunsWanted / unit_seconds);
  Call call = make_call(sized, kernel, options);
  plan = make_plan(call);
  BenchResult result{tessella_plan_kernel(plan.get()), sized.batch, sized.heads_q, sized.heads_kv, {}};
  if (unit_seconds >= budget) {
    // One head takes more than the budget already: its one run is the measurement, and left the output to check.
    result.timing = {1, unit_seconds, unit_seconds, unit_seconds, 0};
    call = std::move(probe);
  } else {
    const double call_seconds = unit_seconds * (whole ? 1 : static_cast<double>(sized.batch * sized.heads_kv));
    if (call_seconds < budget / 2) run_plan(plan, call);  // warm
    result.timing = measure([&] { run_plan(plan, call); }, budget);
  }
  result.seconds_per_head = result.timing.median / static_cast<double>(sized.batch * sized.heads_q);
  check_result(sized, call, options, check_rows, result);
  return result;
}

}  // namespace

double parse_budget(const std::string& string) {
  const double budget = parse_number("--budget", string);
  if (!(budget > 0 && budget < 1e6)) throw InputError(fmt::format("--budget is {}, expected seconds above 0", string));
  return budget;
}

std::optional<BenchResult> bench_configuration(const RandomCase& problem, const std::string& kernel,
                                               const AttentionOptionValues& options, double budget, int64_t check_rows,
                                               NotMeasured& missing) {
  return attempt(missing, [&] { return measure_configuration(problem, kernel, options, budget, check_rows, missing); });
}

}  // namespace tessella::cli
