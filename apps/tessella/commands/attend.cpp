#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>

#include "commands/attend_inputs.hpp"
#include "commands/commands.hpp"
#include "files/array_file.hpp"
#include "files/input_error.hpp"
#include "options/attention_options.hpp"
#include "options/number_text.hpp"
#include "report/machine.hpp"
#include "report/output.hpp"
#include "report/progress.hpp"
#include "report/timing.hpp"

namespace tessella::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  tessella attend examples/minilm_layer.safetensors --check
  tessella attend q.npy k.npy v.npy --layout bhsd --mask causal --out out.npy --lse lse.npy
  tessella attend layer.npz --names query,key,value --mask 'window:1024,0 & keep_first:4' --softcap 30
  tessella attend qkv.npz --dtype bf16 --mask document:ids.npy --sink 0.5,0.5 --explain
  tessella attend layer.npz --device cuda --check)";

struct Settings {
  AttendInputs inputs;
  AttentionOptionValues options;
  std::string layout = "bshd";
  std::string dtype;
  std::string names;
  std::string out;
  std::string lse;
  std::string check;  // rows; "" = no check
  bool explain = false;
  bool json = false;
};

struct OutputSummary {
  double min = std::numeric_limits<double>::infinity();
  double max = -std::numeric_limits<double>::infinity();
  double mean = 0;
  int64_t num_finite = 0;
  int64_t num_nan = 0;
  int64_t num_infinite = 0;
};

OutputSummary summarize(const Array& out) {
  OutputSummary summary;
  const int64_t size = num_elements(out.tensor);
  for (int64_t i = 0; i < size; ++i) {
    const double value = load_element(out.tensor.data, out.tensor.dtype, i);
    summary.num_nan += std::isnan(value);
    summary.num_infinite += std::isinf(value);
    if (!std::isfinite(value)) continue;
    ++summary.num_finite;
    summary.min = std::min(summary.min, value);
    summary.max = std::max(summary.max, value);
    summary.mean += value;
  }
  if (summary.num_finite > 0) summary.mean /= static_cast<double>(summary.num_finite);
  return summary;
}

// "min -1, max 1, mean 0, 3 NaN", of the finite elements; "all NaN".
std::string summary_text(const OutputSummary& summary) {
  const int64_t num_all = summary.num_finite + summary.num_nan + summary.num_infinite;
  if (num_all == 0) return "no elements";
  if (summary.num_nan == num_all) return "all NaN";
  if (summary.num_infinite == num_all) return "all infinite";
  std::string text = "nothing finite";
  if (summary.num_finite > 0)
    text = fmt::format("min {:.4g}, max {:.4g}, mean {:.4g}", summary.min, summary.max, summary.mean);
  if (summary.num_nan > 0) text += fmt::format(", {} NaN", summary.num_nan);
  if (summary.num_infinite > 0) text += fmt::format(", {} infinite", summary.num_infinite);
  return text;
}

Json describe_array(const Array& array) {
  return {{"shape", std::span(array.tensor.shape, static_cast<size_t>(array.tensor.ndim))},
          {"dtype", dtype_name(array.tensor.dtype)},
          {"from", array.source}};
}

Json describe_check(const tessella_check_report& report) {
  return {
      {"rows", report.rows},           {"max_error", report.max_error},          {"plain_error", report.plain_error},
      {"tolerance", report.tolerance}, {"passed", report.passed == 1},           {"worst_index", report.worst_index},
      {"worst_got", report.worst_got}, {"worst_expected", report.worst_expected}};
}

tessella_check_report run_check(const Settings& settings, const Call& call) {
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  const int64_t rows = parse_integer_between("--check", settings.check, 0, INT64_MAX);
  check(tessella_check(Tagged(call), rows, 0, &report));
  return report;
}

void print_check(const tessella_check_report& report) {
  put("check   {}: {} rows against the double reference, max error {} (plain fp32 softmax {}, allowed {})\n",
      report.passed ? "passed" : "FAILED", report.rows, error_text(report.max_error), error_text(report.plain_error),
      error_text(report.tolerance));
  if (!report.passed) {
    const int64_t* at = report.worst_index;
    put("        worst at batch {}, row {}, head {}, dim {}: got {}, expected {}\n", at[0], at[1], at[2], at[3],
        report.worst_got, report.worst_expected);
  }
}

bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return std::filesystem::equivalent(a, b, ignored) ||
         std::filesystem::weakly_canonical(a, ignored) == std::filesystem::weakly_canonical(b, ignored);
}

// A result is not written over what it is computed from.
void check_is_no_result(const std::string& input, const Settings& settings) {
  for (const auto& [option, path] : {std::pair{"--out", settings.out}, {"--lse", settings.lse}}) {
    if (!path.empty() && is_same_file(path, input)) throw InputError(fmt::format("{} is {}, an input", option, path));
  }
}

// Nor over the other.
void check_distinct(const Settings& settings) {
  for (const std::string& file : settings.inputs.files) check_is_no_result(file, settings);
  if (settings.out.empty() || settings.lse.empty() || settings.out == settings.lse) return;
  if (is_same_file(settings.out, settings.lse)) {
    throw InputError(fmt::format("--out is {} and --lse is {}, the same file: one name for both, or two files",
                                 settings.out, settings.lse));
  }
}

// Everything that can be wrong with an option is said before anything large is read or computed.
void settle(Settings& settings) {
  if (const Placement placement = settings.options.placement(); placement.gpu) Gpu::open(*placement.gpu);
  if (settings.layout != "bshd" && settings.layout != "bhsd") {
    throw InputError(fmt::format("--layout is '{}', expected bshd or bhsd", settings.layout));
  }
  settings.inputs.layout = settings.layout == "bhsd" ? Layout::bhsd : Layout::bshd;
  if (!settings.dtype.empty()) settings.inputs.dtype = element_type_named(settings.dtype).dtype;
  if (!settings.names.empty()) {
    settings.inputs.names = split(settings.names, ',');
    if (settings.inputs.names.size() != 3) {
      throw InputError(fmt::format("--names is '{}', expected three: Q,K,V", settings.names));
    }
  }
  const bool same = !settings.lse.empty() && settings.lse == settings.out;
  if (!settings.out.empty()) check_writable(settings.out, same ? 2 : 1);
  if (!settings.lse.empty()) check_writable(settings.lse, same ? 2 : 1);
  check_distinct(settings);
}

void write_outputs(const Settings& settings, const Array& out, const std::optional<Array>& lse) {
  if (lse && settings.lse == settings.out) {
    const Array both[] = {out, *lse};
    write_array_file(settings.out, both);
    return;
  }
  if (!settings.out.empty()) write_array_file(settings.out, std::span(&out, 1));
  if (lse) write_array_file(settings.lse, std::span(&*lse, 1));
  const bool raw =
      out.tensor.dtype == TESSELLA_BF16 && !settings.out.empty() && !settings.out.ends_with(".safetensors");
  if (raw) note("bf16 is written raw, as numpy's |V2: view it as ml_dtypes.bfloat16");
}

int attend(Settings settings) {
  settle(settings);
  Call call;
  read_inputs(settings.inputs, call);
  const Array q = call.arrays[0], k = call.arrays[1], v = call.arrays[2];
  settings.options.apply(call);
  for (const Array& array : call.arrays) {
    if (!array.file.empty()) check_is_no_result(array.file, settings);
  }
  const Array out = allocate_out(settings.inputs.layout, call);
  std::optional<Array> lse;
  if (!settings.lse.empty()) lse = allocate_lse(call);

  const Placement placement = settings.options.placement();
  place(placement, call);

  const PlanHandle plan = make_plan(call);
  const double seconds =
      seconds_at(placement, [&] { check(tessella_plan_run(plan.get(), Tagged(call), nullptr, nullptr)); });
  fetch(placement, call, &tessella_forward_args::out, out);
  if (lse) fetch(placement, call, &tessella_forward_args::lse, *lse);
  std::optional<tessella_check_report> report;
  if (!settings.check.empty()) report = run_check(settings, call);
  write_outputs(settings, out, lse);

  const OutputSummary summary = summarize(out);
  const std::string kernel = tessella_plan_kernel(plan.get());
  if (settings.json) {
    Json document = about_run("attend");
    document["q"] = describe_array(q);
    document["k"] = describe_array(k);
    document["v"] = describe_array(v);
    document["out"] = describe_array(out);
    document["out"]["from"] = settings.out.empty() ? Json() : Json(settings.out);
    document["kernel"] = kernel;
    document["seconds"] = seconds;
    if (settings.explain) document["explain"] = tessella_plan_explain(plan.get());
    if (report) document["check"] = describe_check(*report);
    put("{}\n", json_text(document));
  } else {
    for (const auto& [name, array] : {std::pair{"q", &q}, {"k", &k}, {"v", &v}}) {
      put("{:<7} {} {}  {}\n", name, shape_text(array->tensor), dtype_name(array->tensor.dtype),
          printable(array->source));
    }
    put("kernel  {}, {} (first call)\n", kernel, seconds_text(seconds));
    if (settings.explain) put("{}", tessella_plan_explain(plan.get()));
    put("out     {} {}  {}{}\n", shape_text(*call.args.out), dtype_name(out.tensor.dtype), summary_text(summary),
        settings.out.empty() ? "" : "  -> " + printable(settings.out));
    if (report) print_check(*report);
  }
  return report && !report->passed ? kCheckFailed : kDone;
}

}  // namespace

void add_attend(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("attend", "Attention over q, k and v out of files");
  auto settings = std::make_shared<Settings>();
  command->footer(kExamples);
  command
      ->add_option("FILE", settings->inputs.files, ".npy, .npz or .safetensors: one file with q, k and v, or several")
      ->required()
      ->type_name("");
  command->add_option("--names", settings->names, "names of q, k and v in the files [q,k,v, else by position]")
      ->type_name("Q,K,V");
  command
      ->add_option("--layout", settings->layout, "bshd = (batch, seqlen, heads, head_dim), or bhsd, of q, k, v and out")
      ->capture_default_str()
      ->type_name("");
  command->add_option("--dtype", settings->dtype, "type of raw .npy elements, such as bf16 in |V2")->type_name("");
  command->add_option("--out", settings->out, "write out: .npy, .npz or .safetensors")->type_name("FILE");
  command->add_option("--lse", settings->lse, "write the log of the softmax's sum; the same .npz as --out holds both")
      ->type_name("FILE");
  command->add_flag("--check{256}", settings->check,
                    "compare rows with the double reference; --check=0 all of them [256]");
  command->add_flag("--explain", settings->explain, "which kernel was chosen, and why each better one was not");
  command->add_flag("--json", settings->json, "results as JSON");
  settings->options.add_to(*command);
  command->callback([&run, settings] { run = [settings] { return attend(*settings); }; });
}

}  // namespace tessella::cli
