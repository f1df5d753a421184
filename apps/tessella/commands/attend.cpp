#include <fmt/format.h>

#include <memory>
#include <optional>

#include "commands/attend_inputs.hpp"
#include "commands/commands.hpp"
#include "commands/result_files.hpp"
#include "files/input_error.hpp"
#include "files/printable.hpp"
#include "options/attention_options.hpp"
#include "options/number_text.hpp"
#include "report/machine.hpp"
#include "report/output.hpp"
#include "report/results.hpp"
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
  ResultFiles results;
  std::string check;  // rows; "" = no check
  bool explain = false;
  bool json = false;
};

tessella_check_report run_check(const Settings& settings, const Call& call) {
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  const int64_t rows = parse_integer_between("--check", settings.check, 0, INT64_MAX);
  check(tessella_check(Tagged(call), rows, 0, &report));
  return report;
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
  settings.results.check_writable();
  for (const std::string& file : settings.inputs.files) settings.results.check_is_none(file);
}

int attend(Settings settings) {
  settle(settings);
  Call call;
  read_inputs(settings.inputs, call);
  const Array q = call.arrays[0], k = call.arrays[1], v = call.arrays[2];
  settings.options.apply(call);
  for (const Array& array : call.arrays) {
    if (!array.file.empty()) settings.results.check_is_none(array.file);
  }
  const Array out = allocate_out(settings.inputs.layout, call);
  std::optional<Array> lse;
  if (!settings.results.lse.empty()) lse = allocate_lse(call);

  const Placement placement = settings.options.placement();
  place(placement, call);

  const PlanHandle plan = make_plan(call);
  const double seconds =
      seconds_at(placement, [&] { check(tessella_plan_run(plan.get(), Tagged(call), nullptr, nullptr)); });
  fetch(placement, call, &tessella_forward_args::out, out);
  if (lse) fetch(placement, call, &tessella_forward_args::lse, *lse);
  std::optional<tessella_check_report> report;
  if (!settings.check.empty()) report = run_check(settings, call);
  settings.results.write(out, lse ? &*lse : nullptr);

  const std::string kernel = tessella_plan_kernel(plan.get());
  if (settings.json) {
    Json document = about_run("attend");
    document["q"] = describe_array(q);
    document["k"] = describe_array(k);
    document["v"] = describe_array(v);
    document["out"] = describe_array(out);
    document["out"]["from"] = settings.results.out.empty() ? Json() : Json(settings.results.out);
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
    put("out     {} {}  {}{}\n", shape_text(*call.args.out), dtype_name(out.tensor.dtype), summary_text(out),
        settings.results.out.empty() ? "" : "  -> " + printable(settings.results.out));
    if (report) print_check(*report, "fp32 softmax");
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
  command
      ->add_option("--names", settings->names,
                   "names of q, k and v in the files [q,k,v, else the usual ones: query, key_states, attn.v_proj, xq; "
                   "arrays without names, as .npy and arr_0 are, by position]")
      ->type_name("Q,K,V");
  command
      ->add_option("--layout", settings->layout, "bshd = (batch, seqlen, heads, head_dim), or bhsd, of q, k, v and out")
      ->capture_default_str()
      ->type_name("");
  command->add_option("--dtype", settings->dtype, "type of raw .npy elements, such as bf16 in |V2")->type_name("");
  command->add_option("--out", settings->results.out, "write out: .npy, .npz or .safetensors")->type_name("FILE");
  command
      ->add_option("--lse", settings->results.lse,
                   "write the log of the softmax's sum; the same .npz as --out holds both")
      ->type_name("FILE");
  command->add_flag("--check{256}", settings->check,
                    "compare rows with the double reference; --check=0 all of them [256]");
  command->add_flag("--explain", settings->explain, "which kernel was chosen, and why each better one was not");
  command->add_flag("--json", settings->json, "results as JSON");
  settings->options.add_to(*command);
  command->callback([&run, settings] { run = [settings] { return attend(*settings); }; });
}

}  // namespace tessella::cli
