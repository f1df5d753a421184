#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "commands/bench_configuration.hpp"
#include "commands/commands.hpp"
#include "commands/kernel_list.hpp"
#include "commands/linear_calls.hpp"
#include "commands/not_measured.hpp"
#include "device/planned_call.hpp"
#include "device/read_rate.hpp"
#include "device/rotation.hpp"
#include "files/input_error.hpp"
#include "options/dtype_string.hpp"
#include "options/number_string.hpp"
#include "report/machine.hpp"
#include "report/progress.hpp"
#include "report/table.hpp"

namespace tessella::cli {
namespace {

constexpr const char* kExamples =
    R"(Every kernel of linear over a layer, for few rows and many (FlashDecoding++, sections 4 and 5): products by vectors,
flat ones, a BLAS; on Hopper also flat ones with one and two stages, and with rows padded to 64. Weights take turns, 400
MB or three copies of them, so that none is in a cache; on a GPU calls are one CUDA graph, timed by its own clock. The
rate counts the bytes of w once. Of read: beside a plain read of these bytes in the same run. Error: largest difference
from the float64 reference, over sampled rows and columns.

Examples:
  tessella ladder linear 12288x4096 --device cuda
  tessella ladder linear llama2-7b --device cuda --rows 1,8,16,64 --csv
  tessella ladder linear 22016x4096 --swiglu --w-dtype i8 --rows 1:128)";

struct Settings {
  std::vector<std::string> shapes;
  std::string rows = "1,8,16,64";
  std::string dtype = "bf16";
  std::string w_dtype;  // "" = dtype
  std::string device = "cpu";
  std::string num_threads = "0";
  std::string budget = "0.5";
  std::string check_rows = "16";
  bool swiglu = false;
  bool json = false;
  bool csv = false;
};

tessella_dtype parse_x_dtype(const std::string& name) {
  const tessella_dtype dtype = parse_float_dtype("--dtype", name);
  if (dtype == TESSELLA_BF16 || dtype == TESSELLA_F16 || dtype == TESSELLA_F32) return dtype;
  throw InputError(fmt::format("--dtype is '{}', expected bf16, f16 or f32", name));
}

tessella_dtype parse_w_dtype(const std::string& name, tessella_dtype dtype) {
  const tessella_dtype w_dtype = name.empty() ? dtype : parse_dtype("--w-dtype", name);
  if (w_dtype == dtype || w_dtype == TESSELLA_I8 || w_dtype == TESSELLA_F8E4M3FN) return w_dtype;
  throw InputError(fmt::format("--w-dtype is '{}', expected that of --dtype, i8 or f8e4m3fn", name));
}

std::string percent_string(const Json& value) { return fmt::format("{:.1f} %", value.number() * 100); }

Table make_table() {
  const auto error = [](const Json& value) { return error_string(value.number()); };
  return {{{"w", "w", {}, true},
           {"rows", "rows", {}},
           {"kernel", "kernel", {}, true},
           {"dtype", "", {}, true},
           {"w_dtype", "", {}, true},
           {"activation", "", {}, true},
           {"threads", "", {}},
           {"weight_bytes", "", {}},
           {"runs", "", {}},
           {"seconds", "us", [](const Json& value) { return fmt::format("{:.1f}", value.number() * 1e6); }},
           {"spread", "spread", percent_string},
           {"bytes_per_second", "GB/s", [](const Json& value) { return fmt::format("{:.1f}", value.number() / 1e9); }},
           {"read_seconds", "", {}},
           {"read_ratio", "of read", percent_string},
           {"max_error", "error", error},
           {"plain_error", "", {}},
           {"tolerance", "allowed", error},
           {"check", "check", {}, true}},
          {}};
}

// The kernels of a device over one layer.
class Rungs {
 public:
  Rungs(const LinearLayer& layer, const Placement& placement, double budget, int64_t check_rows)
      : layer_(layer),
        placement_(placement),
        budget_(budget),
        check_rows_(check_rows),
        calls_(layer, placement),
        num_threads_(placement.gpu ? 0 : cpu_threads(layer.num_threads)),
        read_seconds_(seconds_to_read(placement, calls_.weights(), calls_.layout().weight_bytes,
                                      calls_.layout().weight_stride, calls_.size(), num_threads_, budget)) {}

  // Checked, then timed; of a wrong result there is no time.
  Json measure(int64_t rows, const KernelEntry& kernel) {
    calls_.begin(rows, kernel.info.name);
    const tessella_call first = calls_.at(0);
    const PlannedCall planned(placement_, &first);
    const auto run = [&](int64_t idx, void* stream) {
      const tessella_call call = calls_.at(idx);
      planned.run(&call, stream);
    };
    run(0, nullptr);
    tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
    check(tessella_check(&first, check_rows_, 1, &report));
    Json row = describe(rows, kernel);
    row["max_error"] = report.max_error;
    row["plain_error"] = report.plain_error;
    row["tolerance"] = report.tolerance;
    row["check"] = report.passed ? "ok" : "FAILED";
    if (!report.passed) return row;
    const Timing timing = measure_rotation(placement_, calls_.size(), run, budget_);
    row["runs"] = timing.runs;
    row["seconds"] = timing.median;
    row["spread"] = timing.spread;
    row["bytes_per_second"] = static_cast<double>(calls_.layout().weight_bytes) / timing.median;
    row["read_ratio"] = read_seconds_ / timing.median;
    return row;
  }

  // "" if the kernel would run so many rows.
  std::string why_not(int64_t rows, const KernelEntry& kernel) {
    calls_.begin(rows, nullptr);
    const tessella_call call = calls_.at(0);
    return ineligible(kernel, &call);
  }

 private:
  Json describe(int64_t rows, const KernelEntry& kernel) const {
    return {{"w", layer_.w.name()},
            {"rows", rows},
            {"kernel", kernel.info.name},
            {"dtype", dtype_name(layer_.dtype)},
            {"w_dtype", dtype_name(layer_.w_dtype)},
            {"activation", layer_.is_gated ? "swiglu" : "none"},
            {"threads", num_threads_ > 0 ? Json(num_threads_) : Json()},
            {"weight_bytes", static_cast<double>(calls_.layout().weight_bytes)},
            {"read_seconds", read_seconds_}};
  }

  LinearLayer layer_;
  Placement placement_;
  double budget_;
  int64_t check_rows_;
  LinearCalls calls_;
  int num_threads_;
  double read_seconds_;
};

struct Problem {
  LinearLayer layer;
  std::vector<WeightShape> shapes;
  std::vector<int64_t> rows;
  Placement placement;
  double budget;
  int64_t check_rows;
};

Problem problem_of(const Settings& settings) {
  Problem problem;
  LinearLayer& layer = problem.layer;
  layer.dtype = parse_x_dtype(settings.dtype);
  layer.w_dtype = parse_w_dtype(settings.w_dtype, layer.dtype);
  layer.is_gated = settings.swiglu;
  layer.num_threads = static_cast<int32_t>(parse_integer_between("--num-threads", settings.num_threads, 0, INT32_MAX));
  problem.shapes = parse_weight_shapes(settings.shapes, settings.swiglu);
  problem.rows = parse_sizes("--rows", settings.rows);
  layer.most_rows = std::ranges::max(problem.rows);
  if (constexpr int64_t kMostRows = 1 << 20; layer.most_rows > kMostRows) {
    throw InputError(fmt::format("--rows is {}, expected at most {}", layer.most_rows, kMostRows));
  }
  problem.placement = parse_placement(settings.device);
  problem.budget = parse_budget(settings.budget);
  problem.check_rows = parse_integer_between("--check-rows", settings.check_rows, 1, INT64_MAX);
  if (settings.json && settings.csv) throw InputError("--json and --csv are both given, expected one");
  if (problem.placement.gpu) Gpu::open(*problem.placement.gpu);
  return problem;
}

// Kernels that are there to be compared, then those that run automatically, for each number of rows. The oracle has no
// rung. False where one failed.
bool climb(const Problem& problem, const WeightShape& w, Table& table) {
  LinearLayer layer = problem.layer;
  layer.w = w;
  const double needed = LinearCallsLayout(layer, problem.placement).total_bytes();
  if (const double have = usable_memory(problem.placement); needed > have) {
    note(fmt::format("not run at {}: it takes {} of memory, {} may be used", w.name(), bytes_string(needed),
                     bytes_string(have)));
    return true;
  }
  NotMeasured missing;
  const auto rungs = attempt(
      missing, [&] { return std::make_unique<Rungs>(layer, problem.placement, problem.budget, problem.check_rows); });
  if (rungs == nullptr) {
    note(fmt::format("not run at {}: {}", w.name(), missing.why));
    return false;
  }
  std::vector<KernelEntry> kernels = kernels_of("linear");
  std::erase_if(kernels, [&](const KernelEntry& kernel) {
    return std::string_view(kernel.info.device) != problem.placement.kind() ||
           std::string_view(kernel.info.name).starts_with("reference.");
  });
  std::stable_partition(kernels.begin(), kernels.end(),
                        [](const KernelEntry& kernel) { return kernel.info.automatic[0] == '\0'; });
  Progress progress;
  std::set<std::string> said;
  bool ran = true;
  for (const int64_t rows : problem.rows) {
    for (const KernelEntry& kernel : kernels) {
      const std::string name = kernel.info.name;
      progress.show(fmt::format("{}, {} rows: {}", w.name(), rows, name));
      if (const std::string reason = rungs->why_not(rows, kernel); !reason.empty()) {
        if (said.insert(name + reason).second) note(fmt::format("{}: {}", name, reason));
        continue;
      }
      const auto row = attempt(missing, [&] { return std::optional(rungs->measure(rows, kernel)); });
      if (row) {
        table.rows.push_back(*row);
      } else {
        note(fmt::format("{}, {} rows: {}", name, rows, missing.why));
        ran = false;
      }
    }
  }
  return ran;
}

int ladder_linear(const Settings& settings) {
  const Problem problem = problem_of(settings);
  Table table = make_table();
  bool ran = true;
  for (const WeightShape& w : problem.shapes) ran &= climb(problem, w, table);
  if (table.rows.empty()) throw InputError("nothing could be measured");
  Json about = about_run("ladder linear");
  about["budget_seconds"] = problem.budget;
  print_table(table, settings.json ? TableFormat::json : settings.csv ? TableFormat::csv : TableFormat::text, about);
  const bool passed = std::ranges::all_of(table.rows, [](const Json& row) { return row["check"].string() == "ok"; });
  return !ran ? kBadInput : passed ? kDone : kCheckFailed;
}

}  // namespace

void add_ladder_linear(Command& ladder) {
  Command& command = ladder.add_command("linear", "Every kernel of linear side by side, weights in rotation");
  auto settings = std::make_shared<Settings>();
  command.set_footer(kExamples);
  command.add_words("SHAPES", settings->shapes, weight_shapes_help());
  command.add_option("--rows", settings->rows, "N,...", "list of rows of x: 1,8 or 1:64");
  command.add_option("--dtype", settings->dtype, "bf16|f16|f32", "of x and out");
  command.add_option("--w-dtype", settings->w_dtype, "bf16|f16|f32|i8|f8e4m3fn", "of w; default: that of x");
  command.add_flag("--swiglu", settings->swiglu, "w has the rows of both halves of SwiGLU");
  command.add_option("--device", settings->device, "cpu|cuda[:N]", "where the calls run");
  command.add_option("--num-threads", settings->num_threads, "N", "CPU; 0 = all that the process may use");
  command.add_option("--budget", settings->budget, "SECONDS", "seconds a measurement may take");
  command.add_option("--check-rows", settings->check_rows, "N", "rows compared with the float64 reference");
  command.add_flag("--json", settings->json, "results as JSON");
  command.add_flag("--csv", settings->csv, "results as CSV");
  command.set_run([settings] { return run_in_layout("bshd", [&] { return ladder_linear(*settings); }); });
}

}  // namespace tessella::cli
