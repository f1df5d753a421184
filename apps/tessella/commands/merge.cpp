#include <fmt/format.h>

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "commands/attend_inputs.hpp"
#include "commands/commands.hpp"
#include "device/placement.hpp"
#include "files/array_file.hpp"
#include "files/input_error.hpp"
#include "files/printable.hpp"
#include "options/number_text.hpp"
#include "report/machine.hpp"
#include "report/output.hpp"
#include "report/progress.hpp"
#include "report/results.hpp"
#include "report/timing.hpp"

namespace tessella::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  tessella attend part_1.npz --out a.npz --lse a.npz      # each over its own keys
  tessella attend part_2.npz --out b.npz --lse b.npz
  tessella merge a.npz b.npz --out out.npz --lse out.npz --check)";

struct Settings {
  std::vector<std::string> files;
  std::string layout = "bshd";
  std::string dtype;
  std::string out;
  std::string lse;
  std::string out_dtype;
  std::string kernel;
  std::string num_threads = "0";
  std::string num_sms = "0";
  std::string device = "cpu";
  std::string check;  // rows; "" = no check
  bool explain = false;
  bool json = false;

  Layout files_layout() const { return layout == "bhsd" ? Layout::bhsd : Layout::bshd; }
};

// A state as its file has it.
struct FileState {
  Array out, lse;
};

// Everything that can be wrong with an option is said before anything large is read or computed.
void settle(const Settings& settings) {
  if (const Placement placement = parse_placement(settings.device); placement.gpu) Gpu::open(*placement.gpu);
  if (settings.layout != "bshd" && settings.layout != "bhsd") {
    throw InputError(fmt::format("--layout is '{}', expected bshd or bhsd", settings.layout));
  }
  const bool same = !settings.lse.empty() && settings.lse == settings.out;
  for (const auto& [option, path] : {std::pair{"--out", settings.out}, {"--lse", settings.lse}}) {
    if (path.empty()) continue;
    check_writable(path, same ? 2 : 1);
    for (const std::string& file : settings.files) {
      if (is_same_file(path, file)) throw InputError(fmt::format("{} is {}, an input", option, path));
    }
  }
  if (!settings.out.empty() && !settings.lse.empty() && !same && is_same_file(settings.out, settings.lse)) {
    throw InputError(fmt::format("--out is {} and --lse is {}, the same file: one name for both, or two files",
                                 settings.out, settings.lse));
  }
}

FileState read_state(const Settings& settings, const std::string& file) {
  std::optional<Array> out, lse;
  std::string names;
  for (Array& array : read_array_file(file)) {
    names += (names.empty() ? "" : ", ") + shown_name(array.name);
    if (array.name == "out") out = std::move(array);
    if (array.name == "lse") lse = std::move(array);
  }
  if (!out || !lse) throw InputError(fmt::format("{}: has {}, expected arrays out and lse", file, names));
  if (!settings.dtype.empty()) {
    if (out->tensor.dtype == TESSELLA_DTYPE_DEFAULT) resolve_dtype(*out, element_type_named(settings.dtype).dtype);
  }
  for (const Array* array : {&*out, &*lse}) {
    if (array->tensor.dtype != TESSELLA_DTYPE_DEFAULT) continue;
    throw InputError(fmt::format("{}: has elements of type {}, expected f64, f32, bf16 or f16{}", array->source,
                                 array->file_type, array->element_bytes == 2 ? "; raw bf16 wants --dtype bf16" : ""));
  }
  swap_layout(settings.files_layout(), out->tensor);
  return {std::move(*out), std::move(*lse)};
}

// The C structs, and the memory behind them.
struct MergeCall {
  std::vector<FileState> states;
  Array out, lse;  // out as the files are laid out
  std::vector<tessella_tensor> outs, lses;
  tessella_tensor out_tensor{}, lse_tensor{};
  std::deque<GpuMemory> memories;
  tessella_merge_args args = TESSELLA_MERGE_ARGS_INIT;
  tessella_merge_options options = TESSELLA_MERGE_OPTIONS_INIT;

  MergeCall(const Settings& settings, const Placement& placement) {
    for (const std::string& file : settings.files) states.push_back(read_state(settings, file));
    const tessella_tensor& like = states.front().out.tensor;
    tessella_tensor shape = like;
    swap_layout(settings.files_layout(), shape);
    const tessella_dtype dtype = settings.out_dtype.empty() ? like.dtype : element_type_named(settings.out_dtype).dtype;
    out = allocate_array("out", dtype, std::span(shape.shape, static_cast<size_t>(shape.ndim)));
    const tessella_tensor& like_lse = states.front().lse.tensor;
    lse = allocate_array("lse", like_lse.dtype, std::span(like_lse.shape, static_cast<size_t>(like_lse.ndim)));
    tessella_tensor swapped = out.tensor;
    swap_layout(settings.files_layout(), swapped);
    for (const FileState& state : states) {
      outs.push_back(placed(placement, state.out.tensor));
      lses.push_back(placed(placement, state.lse.tensor));
    }
    out_tensor = placed(placement, swapped);
    lse_tensor = placed(placement, lse.tensor);
    args.outs = outs.data();
    args.lses = lses.data();
    args.num_states = static_cast<int32_t>(states.size());
    args.out = &out_tensor;
    args.lse = &lse_tensor;
    options.kernel = settings.kernel.empty() ? nullptr : settings.kernel.c_str();
    options.num_threads =
        static_cast<int32_t>(parse_integer_between("--num-threads", settings.num_threads, 0, INT32_MAX));
    options.num_sms = static_cast<int32_t>(parse_integer_between("--num-sms", settings.num_sms, 0, INT32_MAX));
  }
  MergeCall(const MergeCall&) = delete;
  MergeCall& operator=(const MergeCall&) = delete;

  tessella_call tagged() const { return {sizeof(tessella_call), TESSELLA_MERGE, &args, &options}; }

  void fetch(const Placement& placement) const {
    if (!placement.gpu) return;
    const Gpu& gpu = Gpu::open(*placement.gpu);
    gpu.copy_to_host(out.tensor.data, out_tensor.data, bytes(out.tensor), nullptr);
    gpu.copy_to_host(lse.tensor.data, lse_tensor.data, bytes(lse.tensor), nullptr);
  }

 private:
  static size_t bytes(const tessella_tensor& t) {
    return static_cast<size_t>(num_elements(t) * find_element_type(t.dtype)->bytes);
  }
  tessella_tensor placed(const Placement& placement, const tessella_tensor& tensor) {
    return placement.gpu ? copied_to_gpu(Gpu::open(*placement.gpu), tensor, memories) : tensor;
  }
};

void write_outputs(const Settings& settings, const MergeCall& call) {
  if (!settings.lse.empty() && settings.lse == settings.out) {
    const Array both[] = {call.out, call.lse};
    write_array_file(settings.out, both);
    return;
  }
  if (!settings.out.empty()) write_array_file(settings.out, std::span(&call.out, 1));
  if (!settings.lse.empty()) write_array_file(settings.lse, std::span(&call.lse, 1));
}

int merge(const Settings& settings) {
  settle(settings);
  const Placement placement = parse_placement(settings.device);
  const MergeCall call(settings, placement);
  const tessella_call tagged = call.tagged();
  const PlanHandle plan = make_plan(&tagged);
  const double seconds =
      seconds_at(placement, [&] { check(tessella_plan_run(plan.get(), &tagged, nullptr, nullptr)); });
  call.fetch(placement);
  std::optional<tessella_check_report> report;
  if (!settings.check.empty()) {
    report = TESSELLA_CHECK_REPORT_INIT;
    check(tessella_check(&tagged, parse_integer_between("--check", settings.check, 0, INT64_MAX), 0, &*report));
  }
  write_outputs(settings, call);

  const std::string kernel = tessella_plan_kernel(plan.get());
  if (settings.json) {
    Json document = about_run("merge");
    for (const FileState& state : call.states) document["states"].push_back(describe_array(state.out));
    document["out"] = describe_array(call.out);
    document["out"]["from"] = settings.out.empty() ? Json() : Json(settings.out);
    document["kernel"] = kernel;
    document["seconds"] = seconds;
    if (settings.explain) document["explain"] = tessella_plan_explain(plan.get());
    if (report) document["check"] = describe_check(*report);
    put("{}\n", json_text(document));
  } else {
    for (const FileState& state : call.states) {
      put("state   {} {}  {}\n", shape_text(state.out.tensor), dtype_name(state.out.tensor.dtype),
          printable(state.out.source));
    }
    put("kernel  {}, {} (first call)\n", kernel, seconds_text(seconds));
    if (settings.explain) put("{}", tessella_plan_explain(plan.get()));
    put("out     {} {}  {}{}\n", shape_text(call.out_tensor), dtype_name(call.out.tensor.dtype), summary_text(call.out),
        settings.out.empty() ? "" : "  -> " + printable(settings.out));
    if (report) print_check(*report, "fp32 merge");
  }
  return report && !report->passed ? kCheckFailed : kDone;
}

}  // namespace

void add_merge(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("merge", "Attention over disjoint sets of keys, merged, out of files");
  auto settings = std::make_shared<Settings>();
  command->footer(kExamples);
  command->add_option("FILE", settings->files, ".npz or .safetensors: out and lse of one set of keys each")
      ->required()
      ->type_name("");
  const auto text = [&](const char* name, std::string& value, const char* help, const char* type = "") {
    return command->add_option(name, value, help)->type_name(type);
  };
  text("--layout", settings->layout, "bshd = (batch, seqlen, heads, head_dim), or bhsd, of every out")
      ->capture_default_str();
  text("--dtype", settings->dtype, "type of raw elements of out, such as bf16 in |V2");
  text("--out", settings->out, "write out: .npy, .npz or .safetensors", "FILE");
  text("--lse", settings->lse, "write lse; the same .npz as --out holds both", "FILE");
  text("--out-dtype", settings->out_dtype, "dtype of out [that of the states]");
  text("--kernel", settings->kernel, "a name of `tessella kernels` [automatic]");
  text("--num-threads", settings->num_threads, "CPU: threads [0 = all]");
  text("--num-sms", settings->num_sms, "GPU: multiprocessors [0 = all]");
  text("--device", settings->device, "cpu, cuda or cuda:N")->capture_default_str();
  command->add_flag("--check{256}", settings->check,
                    "compare rows with the double reference; --check=0 all of them [256]");
  command->add_flag("--explain", settings->explain, "which kernel was chosen, and why each better one was not");
  command->add_flag("--json", settings->json, "results as JSON");
  command->callback([&run, settings] { run = [settings] { return merge(*settings); }; });
}

}  // namespace tessella::cli
