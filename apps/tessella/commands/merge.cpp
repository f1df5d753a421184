#include <fmt/core.h>

#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "commands/attend_inputs.hpp"
#include "commands/commands.hpp"
#include "commands/result_files.hpp"
#include "device/placement.hpp"
#include "files/array_file.hpp"
#include "files/array_names.hpp"
#include "files/conversion.hpp"
#include "files/input_error.hpp"
#include "files/printable.hpp"
#include "options/dtype_string.hpp"
#include "options/number_string.hpp"
#include "options/option_words.hpp"
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
  ResultFiles results;
  std::string out_dtype;
  std::string kernel;
  std::string num_threads = "0";
  std::string num_sms = "0";
  std::string device = "cpu";
  std::string check;  // rows; "" = no check
  bool explain = false;
  bool json = false;
};

// A state as its file has it.
struct FileState {
  Array out, lse;
};

int32_t parse_count(const char* option, const std::string& string) {
  return static_cast<int32_t>(parse_integer_between(option, string, 0, INT32_MAX));
}

// What the options say, beside files.
struct Parsed {
  Placement placement;
  Layout layout;
  tessella_dtype dtype = TESSELLA_DTYPE_DEFAULT;      // of raw elements of out
  tessella_dtype out_dtype = TESSELLA_DTYPE_DEFAULT;  // the states'
  int32_t num_threads, num_sms;
  int64_t check_rows = 0;
};

// One state twice would count its keys twice.
void expect_different(const std::vector<std::string>& files) {
  for (size_t i = 0; i < files.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (!is_same_file(files[j], files[i])) continue;
      throw InputError(
          fmt::format("{} and {} are the same file, expected states of disjoint sets of keys", files[j], files[i]));
    }
  }
}

// Everything that can be wrong with an option is said before anything large is read or computed.
Parsed parse(const Settings& settings) {
  Parsed parsed{.placement = parse_placement(settings.device),
                .layout = settings.layout == "bhsd" ? Layout::bhsd : Layout::bshd,
                .num_threads = parse_count("--num-threads", settings.num_threads),
                .num_sms = parse_count("--num-sms", settings.num_sms)};
  if (parsed.placement.gpu) Gpu::open(*parsed.placement.gpu);
  if (settings.layout != "bshd" && settings.layout != "bhsd") {
    throw InputError(fmt::format("--layout is '{}', expected bshd or bhsd", settings.layout));
  }
  if (!settings.dtype.empty()) parsed.dtype = parse_dtype("--dtype", settings.dtype);
  if (!settings.out_dtype.empty()) parsed.out_dtype = parse_float_dtype("--out-dtype", settings.out_dtype);
  if (is_float8(parsed.out_dtype)) {
    throw InputError(fmt::format("--out-dtype is '{}', expected f64, f32, bf16 or f16", settings.out_dtype));
  }
  if (!settings.check.empty()) parsed.check_rows = parse_integer_between("--check", settings.check, 0, INT64_MAX);
  settings.results.check_writable();
  for (const std::string& file : settings.files) settings.results.check_is_none(file);
  expect_no_rows_behind_check(settings.check, settings.files);
  expect_different(settings.files);
  return parsed;
}

FileState read_state(const Parsed& parsed, const std::string& file) {
  constexpr std::string_view kOut[] = {"out", "output"}, kLse[] = {"lse", "softmax_lse", "logsumexp"};
  std::vector<ListedArray> arrays = list_array_file(file);
  ListedArray* const out = find_named(arrays, kOut);
  ListedArray* const lse = find_named(arrays, kLse);
  if (out == nullptr || lse == nullptr) {
    throw InputError(fmt::format("{}: has {}, expected arrays out and lse", file, names_of(arrays)));
  }
  const auto settle = [&](Array& array) {
    if (parsed.dtype != TESSELLA_DTYPE_DEFAULT) resolve_dtype(array, parsed.dtype);
    if (is_float(array.tensor.dtype)) return;
    const bool is_raw = array.tensor.dtype == TESSELLA_DTYPE_DEFAULT && array.element_bytes == 2;
    throw InputError(fmt::format("{}: has elements of type {}, expected f64, f32, bf16 or f16{}", array.source,
                                 array.file_type, is_raw ? "; raw bf16 wants --dtype bf16" : ""));
  };
  Array out_array = with_contiguous_rows(out->read([&](Array described) { settle(described); }));
  settle(out_array);
  swap_layout(parsed.layout, out_array.tensor);
  const bool keeps_f64 = out_array.tensor.dtype == TESSELLA_F64;
  Array lse_array = lse->read([](const Array& described) { check_convertible(described, TESSELLA_F32); });
  if (lse_array.tensor.dtype != TESSELLA_F64 || !keeps_f64) lse_array = converted(lse_array, TESSELLA_F32);
  return {std::move(out_array), std::move(lse_array)};
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

  MergeCall(const Settings& settings, const Parsed& parsed) {
    for (const std::string& file : settings.files) states.push_back(read_state(parsed, file));
    const tessella_tensor& like = states.front().out.tensor;
    tessella_tensor shape = like;
    swap_layout(parsed.layout, shape);
    const tessella_dtype dtype = parsed.out_dtype == TESSELLA_DTYPE_DEFAULT ? like.dtype : parsed.out_dtype;
    out = allocate_array("out", dtype, std::span(shape.shape, static_cast<size_t>(shape.ndim)));
    const tessella_tensor& like_lse = states.front().lse.tensor;
    lse = allocate_array("lse", like_lse.dtype, std::span(like_lse.shape, static_cast<size_t>(like_lse.ndim)));
    tessella_tensor swapped = out.tensor;
    swap_layout(parsed.layout, swapped);
    for (const FileState& state : states) {
      outs.push_back(placed(parsed.placement, state.out.tensor));
      lses.push_back(placed(parsed.placement, state.lse.tensor));
    }
    out_tensor = placed(parsed.placement, swapped);
    lse_tensor = placed(parsed.placement, lse.tensor);
    args.outs = outs.data();
    args.lses = lses.data();
    args.num_states = static_cast<int32_t>(states.size());
    args.out = &out_tensor;
    args.lse = &lse_tensor;
    options.kernel = settings.kernel.empty() ? nullptr : settings.kernel.c_str();
    options.num_threads = parsed.num_threads;
    options.num_sms = parsed.num_sms;
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

Array as_filed(const Parsed& parsed, Array array) {
  swap_layout(parsed.layout, array.tensor);
  return array;
}

int merge(const Settings& settings) {
  const Parsed parsed = parse(settings);
  const Placement& placement = parsed.placement;
  const MergeCall call(settings, parsed);
  const tessella_call tagged = call.tagged();
  const PlanHandle plan = make_plan(&tagged);
  const double seconds =
      seconds_at(placement, [&] { check(tessella_plan_run(plan.get(), &tagged, nullptr, nullptr)); });
  call.fetch(placement);
  std::optional<tessella_check_report> report;
  if (!settings.check.empty()) {
    report = TESSELLA_CHECK_REPORT_INIT;
    check(tessella_check(&tagged, parsed.check_rows, 0, &*report));
  }
  settings.results.write(call.out, &call.lse);

  const std::string kernel = tessella_plan_kernel(plan.get());
  if (settings.json) {
    Json document = about_run("merge");
    for (const FileState& state : call.states) document["states"].append(describe_array(as_filed(parsed, state.out)));
    document["out"] = describe_result(call.out, settings.results.out);
    if (!settings.results.lse.empty()) document["lse"] = describe_result(call.lse, settings.results.lse);
    document["kernel"] = kernel;
    document["seconds"] = seconds;
    if (settings.explain) document["explain"] = tessella_plan_explain(plan.get());
    if (report) document["check"] = describe_check(*report);
    put("{}\n", document.dump(2));
  } else {
    for (const FileState& state : call.states) {
      put("state   {} {}  {}\n", shape_string(as_filed(parsed, state.out).tensor), dtype_name(state.out.tensor.dtype),
          printable(state.out.source));
    }
    put("kernel  {}, {} (first call)\n", kernel, seconds_string(seconds));
    if (settings.explain) put("{}", tessella_plan_explain(plan.get()));
    print_result(call.out, settings.results.out);
    if (!settings.results.lse.empty()) print_result(call.lse, settings.results.lse);
    if (report) print_check(*report, "fp32 merge");
  }
  return report && !report->passed ? kCheckFailed : kDone;
}

}  // namespace

void add_merge(Command& program) {
  Command& command = program.add_command("merge", "Attention over disjoint sets of keys, merged, out of files");
  auto settings = std::make_shared<Settings>();
  command.set_footer(kExamples);
  command.add_words("FILE", settings->files,
                    ".npz or .safetensors: out and lse (output, softmax_lse) of one set of keys each");
  command.add_option("--layout", settings->layout, "bshd|bhsd",
                     "bshd = (batch, seqlen, heads, head_dim), of every out");
  command.add_option("--dtype", settings->dtype, "DTYPE", "type of raw elements of out, such as bf16 in |V2");
  command.add_option("--out", settings->results.out, "FILE", "write out: .npy, .npz or .safetensors");
  command.add_option("--lse", settings->results.lse, "FILE", "write lse; the same .npz as --out holds both");
  command.add_option("--out-dtype", settings->out_dtype, "DTYPE", "dtype of out [that of the states]");
  command.add_option("--kernel", settings->kernel, "KERNEL", "a name of `tessella kernels` [automatic]");
  command.add_option("--num-threads", settings->num_threads, "N", "CPU: threads [0 = all]");
  command.add_option("--num-sms", settings->num_sms, "N", "GPU: multiprocessors [0 = all]");
  command.add_option("--device", settings->device, "cpu|cuda[:N]", "where the call runs");
  command.add_flag("--check", settings->check, "256",
                   "compare rows with these states merged in float64; --check=0 all of them [256]; whether the "
                   "sets of keys are disjoint is yours to know");
  command.add_flag("--explain", settings->explain, "which kernel was chosen, and why each better one was not");
  command.add_flag("--json", settings->json, "results as JSON");
  command.set_run([settings] { return run_in_layout(settings->layout, [&] { return merge(*settings); }); });
}

}  // namespace tessella::cli
