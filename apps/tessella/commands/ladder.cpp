#include <fmt/core.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "commands/bench_configuration.hpp"
#include "commands/commands.hpp"
#include "commands/kernel_list.hpp"
#include "files/input_error.hpp"
#include "options/dtype_string.hpp"
#include "options/number_string.hpp"
#include "report/machine.hpp"
#include "report/progress.hpp"
#include "report/table.hpp"

namespace tessella::cli {
namespace {

constexpr const char* kExamples =
    R"(From standard attention to FlashDecoding++ and this machine's kernels, over one problem. Passes: how often each score is
produced or read. Moved: bytes between memory and the tile that is worked on. Extra: memory beyond inputs and outputs.
Error: largest difference from the float64 reference, over sampled rows. Beside a forward of bf16 or f16 the kernels of 8 bits are shown.

Examples:
  tessella ladder
  tessella ladder --backward
  tessella ladder --decode
  tessella ladder --decode --queries 4 --seqlen 64k --heads 32/4 --dtype bf16
  tessella ladder --seqlen 4096 --head-dim 128 --dtype bf16 --mask causal --heads 4
  tessella ladder linear 12288x4096 --device cuda)";

struct Settings {
  AttentionOptionValues options;
  std::string dtype = "f32";
  std::string head_dim = "64";
  std::string seqlen = "2048";
  std::string heads = "2";
  std::string batch = "1";
  std::string mask = "none";
  std::string budget = "1";
  std::string queries = "1";
  bool backward = false;
  bool decode = false;
  bool json = false;
  bool csv = false;
};

RandomCase problem_of(const Settings& settings) {
  RandomCase problem;
  problem.dtype = parse_float_dtype("--dtype", settings.dtype);
  parse_heads("--heads", settings.heads, problem.heads_q, problem.heads_kv);
  problem.batch = parse_integer_between("--batch", settings.batch, 1, 1 << 20);
  problem.seqlen_q = problem.seqlen_kv = parse_integer_between("--seqlen", settings.seqlen, 1, 1 << 30);
  problem.head_dim = parse_integer_between("--head-dim", settings.head_dim, 1, 1 << 20);
  if (settings.decode) problem.seqlen_q = parse_integer_between("--queries", settings.queries, 1, problem.seqlen_kv);
  problem.mask = settings.mask;
  problem.is_backward = settings.backward;
  return problem;
}

// Of --decode: the last queries of one sequence over a cache of grouped heads.
constexpr struct {
  std::string Settings::*member;
  const char* option;
  const char* value;
} kDecodeDefaults[] = {{&Settings::seqlen, "--seqlen", "32768"},
                       {&Settings::heads, "--heads", "8/2"},
                       {&Settings::mask, "--mask", "causal"}};

// Values where the command line gives none.
void apply_decode(const Command& command, Settings& settings) {
  if (!settings.decode) {
    if (command.is_given("--queries")) {
      throw InputError("--queries is given without --decode, expected beside it");
    }
    return;
  }
  if (settings.backward) throw InputError("--decode and --backward are both given, expected one");
  for (const auto& value : kDecodeDefaults) {
    if (!command.is_given(value.option)) settings.*value.member = value.value;
  }
}

// Null where the kernel does not count its passes and bytes.
void add_cost(const KernelEntry& kernel, const Call& call, Json& row) {
  tessella_kernel_cost cost = TESSELLA_KERNEL_COST_INIT;
  const tessella_status status = tessella_kernel_cost_of(kernel.idx, Tagged(call), &cost);
  if (status == TESSELLA_UNSUPPORTED) return;
  check(status);
  row["score_passes"] = cost.score_passes;
  row["bytes_moved"] = cost.bytes_moved;
  row["extra_bytes"] = cost.extra_bytes;
}

Table make_table() {
  const auto bytes = [](const Json& value) { return bytes_string(value.number()); };
  const auto error = [](const Json& value) { return error_string(value.number()); };
  return {{{"kernel", "algorithm", {}, true},
           {"dtype", "dtype", {}, true},
           {"score_passes", "passes", [](const Json& value) { return fmt::format("{:.3g}", value.number()); }},
           {"bytes_moved", "moved", bytes},
           {"extra_bytes", "extra", bytes},
           {"seconds", "time", [](const Json& value) { return seconds_string(value.number()); }},
           {"spread", "", {}},
           {"max_error", "error", error},
           {"plain_error", "", {}},
           {"tolerance", "allowed", error},
           {"check", "check", {}, true}},
          {}};
}

struct Rungs {
  std::vector<Json> compared, chosen;  // by kernels that are there to be compared, and by those that run automatically
  bool ran = true, passed = true;
};

// The device's kernels on the problem. is_asked: the command line's, of which kernels that do not compute it say why;
// beside it the oracle has no rung.
void climb(const Settings& settings, const RandomCase& problem, double budget, bool is_asked, Rungs& rungs) {
  const Call call = make_random_call(problem, settings.options, false);
  Progress progress;
  for (const KernelEntry& kernel : kernels_of(problem.operation())) {
    const std::string name = kernel.info.name;
    if (std::string_view(kernel.info.device) != settings.options.placement().kind()) continue;
    progress.show(name);
    if (const std::string reason = ineligible(kernel, call); !reason.empty()) {
      if (is_asked) note(fmt::format("{}: {}", name, reason));
      continue;
    }
    if (!is_asked && name.starts_with("reference.")) continue;
    NotMeasured missing;
    const std::optional<BenchResult> result =
        bench_configuration(problem, name, settings.options, budget, 256, missing);
    if (!result) {
      note(fmt::format("{}: {}", name, missing.why));
      rungs.ran = rungs.ran && !missing.failed;
      continue;
    }
    Json row = {{"kernel", name}, {"dtype", dtype_name(problem.dtype)}};
    add_cost(kernel, call, row);
    // Where fewer heads were run than asked, the time is that of all of them.
    row["seconds"] = result->seconds_per_head * static_cast<double>(problem.batch * problem.heads_q);
    row["spread"] = result->timing.spread;
    row["max_error"] = result->check.max_error;
    row["plain_error"] = result->check.plain_error;
    row["tolerance"] = result->check.tolerance;
    row["check"] = result->check.passed ? "ok" : "FAILED";
    rungs.passed = rungs.passed && result->check.passed;
    (kernel.info.automatic[0] == '\0' ? rungs.compared : rungs.chosen).push_back(row);
  }
}

int ladder(Settings settings) {
  if (const std::string kernel = settings.options.take_kernel(); !kernel.empty()) {
    throw InputError(fmt::format("--kernel is {}: ladder compares every kernel of a device", kernel));
  }
  const RandomCase problem = problem_of(settings);
  const double budget = parse_budget(settings.budget);
  if (settings.json && settings.csv) throw InputError("--json and --csv are both given, expected one");
  Rungs rungs;
  climb(settings, problem, budget, true, rungs);
  const bool is_half = problem.dtype == TESSELLA_BF16 || problem.dtype == TESSELLA_F16;
  if (is_half && !settings.backward && !settings.decode) {
    RandomCase in_8_bits = problem;
    in_8_bits.dtype = TESSELLA_F8E4M3FN;
    climb(settings, in_8_bits, budget, false, rungs);
  }
  // Kernels come best first; a ladder is climbed from the other end, by those that are there to be compared.
  Table table = make_table();
  table.rows = rungs.compared;
  table.rows.insert(table.rows.end(), rungs.chosen.begin(), rungs.chosen.end());
  if (table.rows.empty()) throw InputError("nothing could be measured");
  note(fmt::format("batch {}, {}seqlen {}, heads {}, head_dim {}, {}, mask {}", problem.batch,
                   settings.decode ? fmt::format("queries {}, ", problem.seqlen_q) : "", problem.seqlen_kv,
                   settings.heads, problem.head_dim, dtype_name(problem.dtype), problem.mask));
  Json about = about_run("ladder");
  about["operation"] = problem.operation();
  about["problem"] = {{"batch", problem.batch},
                      {"queries", problem.seqlen_q},
                      {"seqlen", problem.seqlen_kv},
                      {"heads_q", problem.heads_q},
                      {"heads_kv", problem.heads_kv},
                      {"head_dim", problem.head_dim},
                      {"dtype", dtype_name(problem.dtype)},
                      {"mask", problem.mask}};
  print_table(table, settings.json ? TableFormat::json : settings.csv ? TableFormat::csv : TableFormat::text, about);
  return !rungs.ran ? kBadInput : rungs.passed ? kDone : kCheckFailed;
}

}  // namespace

void add_ladder(Command& program) {
  Command& command = program.add_command("ladder", "Every algorithm of the family side by side");
  auto settings = std::make_shared<Settings>();
  command.set_footer(kExamples);
  command.add_option("--seqlen", settings->seqlen, "N", "queries, and keys");
  command.add_option("--head-dim", settings->head_dim, "D", "of q, k and v");
  command.add_option("--heads", settings->heads, "N/M", "query heads over KV heads, or one number of both");
  command.add_option("--batch", settings->batch, "N", "sequences");
  command.add_option("--dtype", settings->dtype, "DTYPE", "f32, bf16, f16, f64, f8e4m3fn or f8e5m2");
  command.add_option("--mask", settings->mask, "MASK", "as of `attend`");
  command.add_option("--budget", settings->budget, "SECONDS", "seconds a measurement may take");
  command.add_flag("--backward", settings->backward,
                   "the gradients of q, k and v: with N x N matrices in memory, and by recomputation");
  command.add_flag("--decode", settings->decode,
                   "few queries over a long cache [--seqlen 32768 --heads 8/2 --mask causal]");
  command.add_option("--queries", settings->queries, "N", "of --decode: the last tokens of each sequence");
  command.add_flag("--json", settings->json, "results as JSON");
  command.add_flag("--csv", settings->csv, "results as CSV");
  settings->options.add_without_mask_to(command);
  add_ladder_linear(command);
  command.set_run([settings, &command] {
    apply_decode(command, *settings);
    return ladder(*settings);
  });
}

}  // namespace tessella::cli
