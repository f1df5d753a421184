#include <fmt/core.h>

#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "commands/attend_inputs.hpp"
#include "commands/commands.hpp"
#include "device/placement.hpp"
#include "files/array_file.hpp"
#include "files/conversion.hpp"
#include "files/input_error.hpp"
#include "files/printable.hpp"
#include "options/dtype_string.hpp"
#include "options/number_string.hpp"
#include "options/option_words.hpp"
#include "report/machine.hpp"
#include "report/output.hpp"
#include "report/results.hpp"
#include "report/timing.hpp"

namespace tessella::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  tessella quantize layer.safetensors:k --scale block --out k8.safetensors --check   # k, k_scale
  tessella quantize keys.npy --hadamard 42 --smooth --out k8.npz --check=0           # x, x_scale, x_mean)";

struct Settings {
  std::vector<std::string> files;  // one
  std::string layout = "bshd";
  std::string dtype;
  std::string to = "f8e4m3fn";
  std::string scale = "tensor";
  std::string scale_block = "128";
  std::string hadamard;  // a seed; "" = none
  bool smooth = false;
  std::string out;
  std::string kernel;
  std::string num_threads = "0";
  std::string num_sms = "0";
  std::string device = "cpu";
  std::string check;  // rows; "" = no check
  bool explain = false;
  bool json = false;
};

// What the options say, beside files.
struct Parsed {
  Placement placement;
  Layout layout;
  tessella_dtype dtype = TESSELLA_DTYPE_DEFAULT;  // of raw elements
  tessella_dtype to;
  int64_t scale_block = 0;
  int64_t check_rows = 0;
  tessella_quantize_options options = TESSELLA_QUANTIZE_OPTIONS_INIT;
};

// Everything that can be wrong with an option is said before anything large is read or computed.
Parsed parse(const Settings& settings) {
  const auto count = [](const char* option, const std::string& string) {
    return static_cast<int32_t>(parse_integer_between(option, string, 0, INT32_MAX));
  };
  if (settings.files.size() != 1) {
    throw InputError(fmt::format("quantize has {} files, expected one", settings.files.size()));
  }
  Parsed parsed{.placement = parse_placement(settings.device),
                .layout = settings.layout == "bhsd" ? Layout::bhsd : Layout::bshd,
                .to = parse_dtype("--to", settings.to)};
  if (parsed.placement.gpu) Gpu::open(*parsed.placement.gpu);
  if (settings.layout != "bshd" && settings.layout != "bhsd") {
    throw InputError(fmt::format("--layout is '{}', expected bshd or bhsd", settings.layout));
  }
  if (!is_float8(parsed.to)) {
    throw InputError(fmt::format("--to is '{}', expected f8e4m3fn or f8e5m2", settings.to));
  }
  if (!settings.dtype.empty()) parsed.dtype = parse_dtype("--dtype", settings.dtype);
  if (settings.scale == "block") {
    parsed.options.scale_block = parse_integer_between("--scale-block", settings.scale_block, 1, INT32_MAX);
  } else if (settings.scale == "token") {
    parsed.options.scale_block = 1;
  } else if (settings.scale != "tensor" && settings.scale != "head") {
    throw InputError(fmt::format("--scale is '{}', expected tensor, head, block or token", settings.scale));
  }
  if (!settings.hadamard.empty()) {
    parsed.options.hadamard = 1;
    parsed.options.hadamard_seed = parse_unsigned("--hadamard", settings.hadamard);
  }
  parsed.options.kernel = settings.kernel.empty() ? nullptr : settings.kernel.c_str();
  parsed.options.num_threads = count("--num-threads", settings.num_threads);
  parsed.options.num_sms = count("--num-sms", settings.num_sms);
  if (!settings.check.empty()) parsed.check_rows = parse_integer_between("--check", settings.check, 0, INT64_MAX);
  if (!settings.out.empty()) {
    check_writable(settings.out, settings.smooth ? 3 : 2);
    if (is_same_file(settings.out, settings.files[0]))
      throw InputError(fmt::format("--out is {}, an input", settings.out));
  }
  expect_no_rows_behind_check(settings.check, settings.files);
  return parsed;
}

Array read_rows(const Parsed& parsed, const std::string& file) {
  const auto settle = [&](Array& array) {
    if (parsed.dtype != TESSELLA_DTYPE_DEFAULT) resolve_dtype(array, parsed.dtype);
    const tessella_dtype dtype = array.tensor.dtype;
    if (dtype == TESSELLA_F32 || dtype == TESSELLA_BF16 || dtype == TESSELLA_F16) return;
    const bool is_raw = dtype == TESSELLA_DTYPE_DEFAULT && array.element_bytes == 2;
    throw InputError(fmt::format("{}: has elements of type {}, expected f32, bf16 or f16{}", array.source,
                                 array.file_type, is_raw ? "; raw bf16 wants --dtype bf16" : ""));
  };
  Array array = with_contiguous_rows(read_one_array(file, [&](Array described) { settle(described); }));
  settle(array);
  if (array.tensor.ndim < 2 || array.tensor.ndim > 4) {
    throw InputError(fmt::format("{}: has shape {}, expected (batch, seqlen, heads, head_dim), or its last axes",
                                 array.source, shape_string(array.tensor)));
  }
  swap_layout(parsed.layout, array.tensor);
  return array;
}

// The C structs, and the memory behind them.
struct QuantizeCall {
  Array x;                                   // the library's view
  Array out, scale, mean;                    // as the files are laid out
  std::array<tessella_tensor, 4> tensors{};  // of these, where the call has them
  std::deque<GpuMemory> memories;
  tessella_quantize_args args = TESSELLA_QUANTIZE_ARGS_INIT;
  tessella_quantize_options options;

  QuantizeCall(const Settings& settings, const Parsed& parsed)
      : x(read_rows(parsed, settings.files[0])), options(parsed.options) {
    const std::string name = x.name.empty() ? "x" : x.name;
    const tessella_tensor& t = x.tensor;
    const int64_t batch = t.ndim == 4 ? t.shape[0] : 1, rows = t.shape[t.ndim == 4 ? 1 : 0];
    const int64_t heads = t.ndim == 2 ? 1 : t.shape[t.ndim - 2], block = options.scale_block;
    out = allocate_like(name, parsed.layout, t, parsed.to);
    const bool is_one = settings.scale == "tensor";
    const int64_t scales[] = {is_one ? 1 : batch, block == 0 ? 1 : (rows + block - 1) / block, is_one ? 1 : heads};
    scale = allocate_array(name + "_scale", TESSELLA_F32, scales);
    place(0, x.tensor, args.x, parsed.placement);
    place(1, swapped(parsed.layout, out), args.out, parsed.placement);
    place(2, scale.tensor, args.scale, parsed.placement);
    if (!settings.smooth) return;
    const tessella_tensor like = TESSELLA_TENSOR4(nullptr, TESSELLA_F32, batch, 1, heads, t.shape[t.ndim - 1]);
    mean = allocate_like(name + "_mean", parsed.layout, like, TESSELLA_F32);
    place(3, swapped(parsed.layout, mean), args.mean, parsed.placement);
  }
  QuantizeCall(const QuantizeCall&) = delete;
  QuantizeCall& operator=(const QuantizeCall&) = delete;

  tessella_call tagged() const { return {sizeof(tessella_call), TESSELLA_QUANTIZE, &args, &options}; }

  // What was written, as the files are laid out.
  std::vector<Array> results(const Parsed& parsed) const {
    std::vector<Array> arrays = {out, scale};
    if (args.mean != nullptr) arrays.push_back(mean);
    for (size_t i = 0; i < arrays.size(); ++i) {
      fetch(parsed.placement, tensors[i + 1], arrays[i]);
    }
    return arrays;
  }

 private:
  static tessella_tensor swapped(Layout layout, const Array& array) {
    tessella_tensor tensor = array.tensor;
    swap_layout(layout, tensor);
    return tensor;
  }
  void place(size_t idx, const tessella_tensor& tensor, const tessella_tensor*& arg, const Placement& placement) {
    tensors[idx] = placement.gpu ? copied_to_gpu(Gpu::open(*placement.gpu), tensor, memories) : tensor;
    arg = &tensors[idx];
  }
};

int quantize(const Settings& settings) {
  const Parsed parsed = parse(settings);
  const QuantizeCall call(settings, parsed);
  const tessella_call tagged = call.tagged();
  const PlanHandle plan = make_plan(&tagged);
  const double seconds =
      seconds_at(parsed.placement, [&] { check(tessella_plan_run(plan.get(), &tagged, nullptr, nullptr)); });
  std::optional<tessella_check_report> report;
  if (!settings.check.empty()) {
    report = TESSELLA_CHECK_REPORT_INIT;
    check(tessella_check(&tagged, parsed.check_rows, 0, &*report));
  }
  const std::vector<Array> results = call.results(parsed);
  if (!settings.out.empty()) write_array_file(settings.out, results);

  const std::string kernel = tessella_plan_kernel(plan.get());
  Array x = call.x;
  swap_layout(parsed.layout, x.tensor);
  if (settings.json) {
    Json document = about_run("quantize");
    document["x"] = describe_array(x);
    constexpr const char* kNames[] = {"out", "scale", "mean"};
    for (size_t i = 0; i < results.size(); ++i) document[kNames[i]] = describe_result(results[i], settings.out);
    document["kernel"] = kernel;
    document["seconds"] = seconds;
    if (settings.explain) document["explain"] = tessella_plan_explain(plan.get());
    if (report) document["check"] = describe_check(*report);
    put("{}\n", document.dump(2));
  } else {
    put("x       {} {}  {}\n", shape_string(x.tensor), dtype_name(x.tensor.dtype), printable(x.source));
    put("kernel  {}, {} (first call)\n", kernel, seconds_string(seconds));
    if (settings.explain) put("{}", tessella_plan_explain(plan.get()));
    for (const Array& result : results) print_result(result, settings.out);
    if (report) print_check(*report, "fp32 quantization");
  }
  return report && !report->passed ? kCheckFailed : kDone;
}

}  // namespace

void add_quantize(Command& program) {
  Command& command =
      program.add_command("quantize", "q, k or v out of a file as elements of 8 bits, with their scales");
  auto settings = std::make_shared<Settings>();
  command.set_footer(kExamples);
  command.add_words("FILE", settings->files, "an array (batch, seqlen, heads, head_dim), or its last axes; FILE:NAME");
  command.add_option("--layout", settings->layout, "bshd|bhsd", "bshd = (batch, seqlen, heads, head_dim)");
  command.add_option("--dtype", settings->dtype, "DTYPE", "type of raw elements, such as bf16 in |V2");
  command.add_option("--to", settings->to, "DTYPE", "f8e4m3fn or f8e5m2");
  command.add_option("--scale", settings->scale, "tensor|head|block|token", "what has a scale of its own");
  command.add_option("--scale-block", settings->scale_block, "N", "rows of a block, of --scale block");
  command.add_option("--hadamard", settings->hadamard, "SEED", "random signs and an orthogonal Hadamard matrix");
  command.add_flag("--smooth", settings->smooth, "subtract the mean of a sequence's rows, and write it");
  command.add_option("--out", settings->out, "FILE", "write elements, scales and means: .npz or .safetensors");
  command.add_option("--kernel", settings->kernel, "KERNEL", "a name of `tessella kernels` [automatic]");
  command.add_option("--num-threads", settings->num_threads, "N", "CPU: threads [0 = all]");
  command.add_option("--num-sms", settings->num_sms, "N", "GPU: multiprocessors [0 = all]");
  command.add_option("--device", settings->device, "cpu|cuda[:N]", "where the call runs");
  command.add_flag("--check", settings->check, "256", "compare rows with the float64 reference; --check=0 all of them");
  command.add_flag("--explain", settings->explain, "which kernel was chosen, and why each better one was not");
  command.add_flag("--json", settings->json, "results as JSON");
  command.set_run([settings] { return run_in_layout(settings->layout, [&] { return quantize(*settings); }); });
}

}  // namespace tessella::cli
