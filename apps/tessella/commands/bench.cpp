#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "commands/bench_configuration.hpp"
#include "commands/commands.hpp"
#include "commands/kernel_list.hpp"
#include "files/input_error.hpp"
#include "options/dtype_string.hpp"
#include "options/mask_string.hpp"
#include "options/number_string.hpp"
#include "options/preset.hpp"
#include "report/machine.hpp"
#include "report/progress.hpp"
#include "report/table.hpp"

namespace tessella::cli {
namespace {

constexpr const char* kExamples =
    R"(Times every problem, and checks rows drawn from each result (--check-rows) against the float64 reference.
The default is the protocol of the FlashAttention papers: 16k tokens x 2048 hidden (batch = 16k / seqlen, heads = 2048 / head_dim).
Where that takes longer than --budget seconds on a CPU, fewer sequences and heads are run, and the table says how many: attention is
linear in both. What takes more than 20 times that for one head, or half of the memory, is left out. A GPU runs all of it, in
windows of half a second and more, timed by its own clock.
FLOP/s count 4 * batch * heads * seqlen^2 * head_dim, half of it for causal, 2.5 times that for --backward. Spread = distance of the quartiles / median.

Examples:
  tessella bench --dtype bf16 --head-dim 64,128 --seqlen 512:16384 --mask none,causal --json > results.json
  tessella bench --preset llama --baseline none
  tessella bench --backward --dtype bf16 --head-dim 64 --seqlen 1024:4096
  tessella bench --device cuda --json > results.json
  tessella bench decode --help
  tessella bench fp8-error --help
  tessella bench --heads 32/8 --batch 1 --seqlen 4k --mask causal --kernel cpu.forward_avx2,reference.flash_2)";

struct Settings {
  AttentionOptionValues options;
  std::string dtype = "bf16";
  std::string head_dim = "64,128";
  std::string seqlen = "512:16384";
  std::string mask = "none,causal";
  std::string heads;  // "" = 2048 / head_dim
  std::string batch;  // "" = 16k / seqlen
  std::string kernels;
  std::string baseline = "reference.standard";  // the CPU's
  std::string budget = "2";
  std::string check_rows = "16";
  std::string preset;
  bool backward = false;
  bool json = false;
  bool csv = false;
};

const Preset<Settings> kPresets[] = {
    {"paper",
     "16k tokens x 2048 hidden",
     {{&Settings::head_dim, "--head-dim", "64,128"},
      {&Settings::seqlen, "--seqlen", "512:16384"},
      {&Settings::mask, "--mask", "none,causal"}}},
    {"gpt2",
     "12 heads x 64, 1024 tokens, batch 8, causal",
     {{&Settings::head_dim, "--head-dim", "64"},
      {&Settings::seqlen, "--seqlen", "1024"},
      {&Settings::mask, "--mask", "causal"},
      {&Settings::heads, "--heads", "12"},
      {&Settings::batch, "--batch", "8"}}},
    {"llama",
     "32/8 heads x 128, 2k to 8k tokens, causal",
     {{&Settings::head_dim, "--head-dim", "128"},
      {&Settings::seqlen, "--seqlen", "2048:8192"},
      {&Settings::mask, "--mask", "causal"},
      {&Settings::heads, "--heads", "32/8"},
      {&Settings::batch, "--batch", "1"}}},
};

tessella_dtype dtype_of_problem(const std::string& name) {
  if (const std::string_view spelled = short_name(name); spelled == "i4" || spelled == "i8") {
    throw InputError(
        fmt::format("--dtype is '{}', expected a float; caches of 8 and 4 bits are timed by "
                    "`tessella bench decode --kv-dtype`",
                    name));
  }
  return parse_float_dtype("--dtype", name);
}

std::vector<RandomCase> list_problems(const Settings& settings) {
  constexpr int64_t kTokens = 16384;
  constexpr int64_t kHidden = 2048;
  constexpr int64_t kMost = 1 << 20;
  std::vector<RandomCase> problems;
  for (const std::string& name : split(settings.dtype, ',')) {
    const tessella_dtype dtype = dtype_of_problem(name);
    for (const int64_t head_dim : parse_sizes("--head-dim", settings.head_dim)) {
      for (const std::string& mask : split_masks(settings.mask)) {
        for (const int64_t seqlen : parse_sizes("--seqlen", settings.seqlen)) {
          RandomCase problem{.dtype = dtype,
                             .seqlen_q = seqlen,
                             .seqlen_kv = seqlen,
                             .head_dim = head_dim,
                             .mask = mask,
                             .is_backward = settings.backward};
          problem.heads_q = problem.heads_kv = std::max<int64_t>(1, kHidden / head_dim);
          problem.batch = std::max<int64_t>(1, kTokens / seqlen);
          if (!settings.heads.empty()) parse_heads("--heads", settings.heads, problem.heads_q, problem.heads_kv);
          if (!settings.batch.empty()) problem.batch = parse_integer_between("--batch", settings.batch, 1, kMost);
          problems.push_back(problem);
        }
      }
    }
  }
  return problems;
}

Json describe(const RandomCase& problem, const BenchResult& result) {
  // Other masks than causal leave out what the formula counts; a rate would flatter or libel them.
  const bool has_rate = problem.mask == "none" || problem.mask == "causal";
  const double heads = static_cast<double>(problem.batch * problem.heads_q);
  const Json rate = has_rate ? Json(problem.flops() / heads / result.seconds_per_head) : Json();
  return {{"kernel", result.kernel},
          {"dtype", dtype_name(problem.dtype)},
          {"head_dim", problem.head_dim},
          {"mask", problem.mask},
          {"seqlen", problem.seqlen_q},
          {"batch", result.batch},
          {"heads", result.heads_q == result.heads_kv ? fmt::format("{}", result.heads_q)
                                                      : fmt::format("{}/{}", result.heads_q, result.heads_kv)},
          {"asked_batch", problem.batch},
          {"asked_heads", problem.heads_q},
          {"runs", result.timing.runs},
          {"seconds", result.timing.median},
          {"min_seconds", result.timing.min},
          {"max_seconds", result.timing.max},
          {"spread", result.timing.spread},
          {"flops", rate},
          {"max_error", result.check.max_error},
          {"tolerance", result.check.tolerance},
          {"check_seqlen", result.check_seqlen},
          {"check", result.check.passed ? "ok" : "FAILED"}};
}

Table make_table(const std::string& baseline) {
  const auto seconds = [](const Json& value) { return seconds_string(value.number()); };
  return {{{"kernel", "kernel", {}, true},
           {"dtype", "dtype", {}, true},
           {"head_dim", "head_dim", {}},
           {"mask", "mask", {}, true},
           {"seqlen", "seqlen", {}},
           {"batch", "batch", {}},
           {"heads", "heads", {}},
           {"asked_batch", "", {}},
           {"asked_heads", "", {}},
           {"runs", "runs", {}},
           {"seconds", "time", seconds},
           {"min_seconds", "", {}},
           {"max_seconds", "", {}},
           {"spread", "spread", [](const Json& value) { return fmt::format("{:.1f} %", value.number() * 100); }},
           {"flops", "GFLOP/s", [](const Json& value) { return fmt::format("{:.1f}", value.number() / 1e9); }},
           {"baseline", "", {}},
           {"baseline_seconds_per_head", "", {}},
           {"speedup", fmt::format("x {}", baseline),
            [](const Json& value) { return fmt::format("{:.1f}", value.number()); }},
           {"max_error", "", {}},
           {"tolerance", "", {}},
           {"check_seqlen", "", {}},
           {"check", "check", {}, true}},
          {}};
}

// The baseline's option is named.
std::string of_baseline(const std::string& why) {
  constexpr std::string_view kKernel = "--kernel ";
  return why.starts_with(kKernel) ? "--baseline " + why.substr(kKernel.size()) : why;
}

// Everything measured for one problem: each kernel, over the same baseline. False where a kernel failed.
bool bench_problem(const Settings& settings, const RandomCase& problem, double budget, int64_t check_rows,
                   Table& table) {
  NotMeasured missing;
  bool ran = true;
  const auto run = [&](const std::string& kernel) {
    return bench_configuration(problem, kernel, settings.options, budget, check_rows, missing);
  };
  const std::string where = fmt::format("{}, head_dim {}, {}, seqlen {}", dtype_name(problem.dtype), problem.head_dim,
                                        problem.mask, problem.seqlen_q);
  std::vector<BenchResult> results;
  for (const std::string& kernel : split(settings.kernels, ',')) {
    const std::optional<BenchResult> result = run(kernel);
    if (!result) {
      note(fmt::format("not run at {}: {}", where, missing.why));
      ran = ran && !missing.failed;
    } else {
      results.push_back(*result);
    }
  }
  // After the kernels: it may take minutes, and is of no use where none of them computes the problem.
  std::optional<BenchResult> baseline;
  if (settings.baseline != "none" && !results.empty()) {
    baseline = run(settings.baseline);
    if (!baseline) note(fmt::format("no baseline at {}: {}", where, of_baseline(missing.why)));
  }
  for (const BenchResult& result : results) {
    Json row = describe(problem, result);
    if (baseline) {
      row["baseline"] = baseline->kernel;
      row["baseline_seconds_per_head"] = baseline->seconds_per_head;
      row["speedup"] = baseline->seconds_per_head / result.seconds_per_head;
    }
    table.rows.push_back(row);
  }
  return ran;
}

void check_kernels(const Settings& settings) {
  const char* operation = settings.backward ? "backward" : "forward";
  if (settings.baseline != "none") kernel_named("--baseline", settings.baseline, operation);
  for (const std::string& kernel : split(settings.kernels, ',')) {
    if (!kernel.empty()) kernel_named("--kernel", kernel, operation);
  }
}

int bench(const Settings& settings) {
  const std::vector<RandomCase> problems = list_problems(settings);
  const double budget = parse_budget(settings.budget);
  const int64_t check_rows = parse_integer_between("--check-rows", settings.check_rows, 1, INT64_MAX);
  if (settings.json && settings.csv) throw InputError("--json and --csv are both given, expected one");
  check_kernels(settings);
  if (const Placement placement = settings.options.placement(); placement.gpu) Gpu::open(*placement.gpu);
  Table table = make_table(settings.baseline);
  bool ran = true;
  {
    Progress progress;
    for (size_t i = 0; i < problems.size(); ++i) {
      progress.show(fmt::format("{}/{}: {} head_dim {} {} seqlen {}", i + 1, problems.size(),
                                dtype_name(problems[i].dtype), problems[i].head_dim, problems[i].mask,
                                problems[i].seqlen_q));
      ran &= bench_problem(settings, problems[i], budget, check_rows, table);
    }
  }
  if (table.rows.empty()) throw InputError("nothing could be measured");
  const bool is_scaled = std::ranges::any_of(table.rows, [](const Json& row) {
    return row["batch"].integer() != row["asked_batch"].integer() ||
           std::stoll(row["heads"].string()) != row["asked_heads"].integer();
  });
  if (is_scaled)
    note(fmt::format("scaled down: fewer sequences and heads than asked, to {} s a problem (--budget)", budget));
  if (settings.baseline != "none")
    note(fmt::format("x {}: time per head of that kernel in this run over ours", settings.baseline));
  Json about = about_run("bench");
  about["operation"] = settings.backward ? "backward" : "forward";
  about["budget_seconds"] = budget;
  print_table(table, settings.json ? TableFormat::json : settings.csv ? TableFormat::csv : TableFormat::text, about);
  const bool passed = std::ranges::all_of(table.rows, [](const Json& row) { return row["check"].string() == "ok"; });
  return !ran ? kBadInput : passed ? kDone : kCheckFailed;
}

}  // namespace

void add_bench(Command& program) {
  Command& command = program.add_command("bench", "Time, and check, a range of problems");
  auto settings = std::make_shared<Settings>();
  command.set_footer(kExamples);
  command.add_option("--preset", settings->preset, "NAME", preset_help<Settings>(kPresets));
  command.add_option("--dtype", settings->dtype, "DTYPE,...", "list of f32, bf16, f16, f64, f8e4m3fn, f8e5m2");
  command.add_option("--head-dim", settings->head_dim, "D,...", "list, or FIRST:LAST doubling");
  command.add_option("--seqlen", settings->seqlen, "N,...", "list, or FIRST:LAST doubling");
  command.add_option("--mask", settings->mask, "MASK,...", "list of masks as of `attend`");
  command.add_option("--heads", settings->heads, "N/M",
                     "query heads over KV heads, or one number of both [2048 / head_dim]");
  command.add_option("--batch", settings->batch, "N", "sequences [16k / seqlen]");
  command.add_option("--baseline", settings->baseline, "KERNEL", "kernel to compare with, or none [none on a GPU]");
  command.add_option("--budget", settings->budget, "SECONDS", "seconds a measurement may take");
  command.add_option("--check-rows", settings->check_rows, "N", "rows compared with the float64 reference");
  command.add_flag("--backward", settings->backward,
                   "time the gradients of q, k and v instead, by kernels of backward");
  command.add_flag("--json", settings->json, "results as JSON");
  command.add_flag("--csv", settings->csv, "results as CSV");
  settings->options.add_without_mask_to(command);
  command.set_help("--kernel", "list of names of `tessella kernels` [automatic]");
  add_bench_decode(command);
  add_bench_fp8_error(command);
  command.set_run([settings, &command] {
    apply_preset<Settings>(command, kPresets, *settings);
    const bool on_gpu = settings->options.placement().gpu.has_value();
    if (!command.is_given("--baseline")) {
      if (settings->backward) settings->baseline = "reference.standard_backward";
      if (on_gpu) settings->baseline = "none";
    }
    settings->kernels = settings->options.take_kernel();
    return bench(*settings);
  });
}

}  // namespace tessella::cli
