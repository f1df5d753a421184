#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "commands/attend_inputs.hpp"
#include "commands/commands.hpp"
#include "commands/result_files.hpp"
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
  tessella linear x.npy w.npy --bias b.npy --out y.npy --check
  tessella linear x.npy layer.safetensors:up --activation swiglu --out y.npy --check=0
  tessella linear x.npy w8.npz:w --w-scale w8.npz:w_scale --residual x.npy --explain)";

struct Settings {
  std::vector<std::string> files;  // x and w
  std::string bias, w_scale, residual;
  std::string activation = "none";
  std::string dtype, w_dtype, out_dtype;
  std::string out;
  bool batch_invariant = false;
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
  tessella_dtype dtype = TESSELLA_DTYPE_DEFAULT;      // of raw elements of two bytes
  tessella_dtype w_dtype = TESSELLA_DTYPE_DEFAULT;    // of bytes of w
  tessella_dtype out_dtype = TESSELLA_DTYPE_DEFAULT;  // that of x
  int64_t check_rows = 0;
  tessella_linear_options options = TESSELLA_LINEAR_OPTIONS_INIT;
};

// Everything that can be wrong with an option is said before anything large is read or computed.
Parsed parse(const Settings& settings) {
  const auto count = [](const char* option, const std::string& string) {
    return static_cast<int32_t>(parse_integer_between(option, string, 0, INT32_MAX));
  };
  expect_no_rows_behind_check(settings.check, settings.files);
  if (settings.files.size() != 2) {
    throw InputError(fmt::format("linear has {} files, expected two: x and w", settings.files.size()));
  }
  Parsed parsed{.placement = parse_placement(settings.device)};
  if (parsed.placement.gpu) Gpu::open(*parsed.placement.gpu);
  if (settings.activation == "swiglu") {
    parsed.options.activation = TESSELLA_SWIGLU;
  } else if (settings.activation != "none") {
    throw InputError(fmt::format("--activation is '{}', expected none or swiglu", settings.activation));
  }
  if (!settings.dtype.empty()) parsed.dtype = parse_dtype("--dtype", settings.dtype);
  if (!settings.w_dtype.empty()) parsed.w_dtype = parse_dtype("--w-dtype", settings.w_dtype);
  if (!settings.w_dtype.empty() && parsed.w_dtype != TESSELLA_I8 && parsed.w_dtype != TESSELLA_F8E4M3FN) {
    throw InputError(fmt::format("--w-dtype is '{}', expected i8 or f8e4m3fn", settings.w_dtype));
  }
  if (!settings.out_dtype.empty()) parsed.out_dtype = parse_float_dtype("--out-dtype", settings.out_dtype);
  if (is_float8(parsed.out_dtype)) {
    throw InputError(fmt::format("--out-dtype is '{}', expected f64, f32, bf16 or f16", settings.out_dtype));
  }
  parsed.options.batch_invariant = settings.batch_invariant ? 1 : 0;
  parsed.options.kernel = settings.kernel.empty() ? nullptr : settings.kernel.c_str();
  parsed.options.num_threads = count("--num-threads", settings.num_threads);
  parsed.options.num_sms = count("--num-sms", settings.num_sms);
  if (!settings.check.empty()) parsed.check_rows = parse_integer_between("--check", settings.check, 0, INT64_MAX);
  if (!settings.out.empty()) check_writable(settings.out, 1);
  return parsed;
}

// Reads the arrays of a call.
class Reader {
 public:
  Reader(const Parsed& parsed, const std::string& out) : parsed_(parsed), out_(out) {}

  Array x(const std::string& where) const {
    Array array = read(where, TESSELLA_DTYPE_DEFAULT);
    if (array.tensor.ndim > 0) return array;
    throw InputError(fmt::format("{}: has no axes, expected (..., in_features)", array.source));
  }
  Array w(const std::string& where) const { return with_contiguous_rows(read(where, parsed_.w_dtype)); }
  // Numbers of a dtype; those that have the other one stay as they are.
  Array numbers(const std::string& where, tessella_dtype dtype, tessella_dtype other) const {
    Array array = read(where, TESSELLA_DTYPE_DEFAULT);
    return array.tensor.dtype == other ? array : converted(array, dtype);
  }

 private:
  Array read(const std::string& where, tessella_dtype of_bytes) const {
    const auto settle = [&](Array& array) {
      if (of_bytes != TESSELLA_DTYPE_DEFAULT) resolve_bytes(array, of_bytes, "--w-dtype");
      const bool is_raw = array.tensor.dtype == TESSELLA_DTYPE_DEFAULT;
      if (is_raw && parsed_.dtype != TESSELLA_DTYPE_DEFAULT) resolve_dtype(array, parsed_.dtype);
      if (array.tensor.dtype != TESSELLA_DTYPE_DEFAULT) return;
      throw InputError(fmt::format("{}: has elements of type {}, expected numbers{}", array.source, array.file_type,
                                   array.element_bytes == 2   ? "; raw bf16 wants --dtype bf16"
                                   : array.element_bytes == 1 ? "; raw bytes of w want --w-dtype f8e4m3fn"
                                                              : ""));
    };
    Array array = read_one_array(where, [&](Array described) { settle(described); });
    settle(array);
    if (!out_.empty() && is_same_file(out_, array.file)) {
      throw InputError(fmt::format("--out is {}, an input", out_));
    }
    return array;
  }

  const Parsed& parsed_;
  const std::string& out_;
};

// The leading axes of a dense array as one of rows.
Array as_matrix(Array array) {
  tessella_tensor& tensor = array.tensor;
  const int64_t columns = tensor.shape[tensor.ndim - 1];
  const bool is_empty = num_elements(tensor) == 0;
  const int64_t rows = is_empty ? 0 : num_elements(tensor) / columns;
  tensor.ndim = 2;
  tensor.shape[0] = rows;
  tensor.shape[1] = columns;
  tensor.strides[0] = columns;
  tensor.strides[1] = 1;
  return array;
}

Array dense(const Array& array) {
  Array copy = allocate_array(array.name, array.tensor.dtype,
                              std::span(array.tensor.shape, static_cast<size_t>(array.tensor.ndim)));
  copy_row_major(array, static_cast<std::byte*>(copy.tensor.data));
  return copy;
}

// The C structs, and the memory behind them.
struct LinearCall {
  Array x, w, out;  // as the files have them
  std::deque<Array> arrays;
  std::deque<tessella_tensor> tensors;
  std::deque<GpuMemory> memories;
  tessella_linear_args args = TESSELLA_LINEAR_ARGS_INIT;
  tessella_linear_options options;

  LinearCall(const Settings& settings, const Parsed& parsed) : options(parsed.options), placement_(parsed.placement) {
    const Reader reader(parsed, settings.out);
    x = reader.x(settings.files[0]);
    w = reader.w(settings.files[1]);
    const tessella_dtype dtype = x.tensor.dtype;
    const tessella_dtype wide = dtype == TESSELLA_F64 ? TESSELLA_F64 : TESSELLA_F32;
    place(as_matrix(dense(x)), args.x);
    place(w, args.w);
    if (!settings.w_scale.empty()) place(reader.numbers(settings.w_scale, TESSELLA_F32, TESSELLA_F32), args.w_scale);
    if (!settings.bias.empty()) place(reader.numbers(settings.bias, wide, dtype), args.bias);

    std::vector<int64_t> shape(x.tensor.shape, x.tensor.shape + x.tensor.ndim);
    const int64_t w_rows = w.tensor.ndim == 0 ? 0 : w.tensor.shape[0];
    shape.back() = options.activation == TESSELLA_SWIGLU ? w_rows / 2 : w_rows;
    out = allocate_array("out", parsed.out_dtype == TESSELLA_DTYPE_DEFAULT ? dtype : parsed.out_dtype, shape);
    if (!settings.residual.empty()) {
      const Array residual = reader.numbers(settings.residual, out.tensor.dtype, out.tensor.dtype);
      const tessella_tensor& t = residual.tensor;
      if (t.ndim != out.tensor.ndim || !std::equal(t.shape, t.shape + t.ndim, out.tensor.shape)) {
        throw InputError(fmt::format("{}: has shape {}, expected {}, that of out", residual.source, shape_string(t),
                                     shape_string(out.tensor)));
      }
      place(as_matrix(dense(residual)), args.residual);
    }
    place(as_matrix(out), args.out);
  }
  LinearCall(const LinearCall&) = delete;
  LinearCall& operator=(const LinearCall&) = delete;

  tessella_call tagged() const { return {sizeof(tessella_call), TESSELLA_LINEAR, &args, &options}; }

 private:
  void place(const Array& array, const tessella_tensor*& arg) {
    const tessella_tensor& tensor = arrays.emplace_back(array).tensor;
    arg = &tensors.emplace_back(placement_.gpu ? copied_to_gpu(Gpu::open(*placement_.gpu), tensor, memories) : tensor);
  }

  const Placement& placement_;
};

int linear(const Settings& settings) {
  const Parsed parsed = parse(settings);
  const LinearCall call(settings, parsed);
  const tessella_call tagged = call.tagged();
  const PlanHandle plan = make_plan(&tagged);
  const double seconds =
      seconds_at(parsed.placement, [&] { check(tessella_plan_run(plan.get(), &tagged, nullptr, nullptr)); });
  fetch(parsed.placement, *call.args.out, call.out);
  std::optional<tessella_check_report> report;
  if (!settings.check.empty()) {
    report = TESSELLA_CHECK_REPORT_INIT;
    check(tessella_check(&tagged, parsed.check_rows, 0, &*report));
  }
  if (!settings.out.empty()) {
    write_array_file(settings.out, std::span(&call.out, 1));
    note_raw(call.out, settings.out);
  }

  const std::string kernel = tessella_plan_kernel(plan.get());
  if (settings.json) {
    Json document = about_run("linear");
    document["x"] = describe_array(call.x);
    document["w"] = describe_array(call.w);
    document["out"] = describe_result(call.out, settings.out);
    document["kernel"] = kernel;
    document["seconds"] = seconds;
    if (settings.explain) document["explain"] = tessella_plan_explain(plan.get());
    if (report) document["check"] = describe_check(*report);
    put("{}\n", document.dump(2));
  } else {
    for (const auto& [name, array] : {std::pair{"x", &call.x}, {"w", &call.w}}) {
      put("{:<7} {} {}  {}\n", name, shape_string(array->tensor), dtype_name(array->tensor.dtype),
          printable(array->source));
    }
    put("kernel  {}, {} (first call)\n", kernel, seconds_string(seconds));
    if (settings.explain) put("{}", tessella_plan_explain(plan.get()));
    print_result(call.out, settings.out);
    if (report) print_check(*report, "fp32 product");
  }
  return report && !report->passed ? kCheckFailed : kDone;
}

}  // namespace

void add_linear(Command& program) {
  Command& command = program.add_command("linear", "Few rows times a matrix of weights, out of files");
  auto settings = std::make_shared<Settings>();
  command.set_footer(kExamples);
  command.add_words("FILE", settings->files,
                    "x (..., in_features) and w (out_features, in_features), two arrays; FILE:NAME");
  command.add_option("--bias", settings->bias, "FILE[:NAME]", "(rows of w), added to the sums");
  command.add_option("--w-scale", settings->w_scale, "FILE[:NAME]",
                     "(rows of w), what each row of w of 8 bits is a multiple of");
  command.add_option("--residual", settings->residual, "FILE[:NAME]", "(..., out_features), added to the result");
  command.add_option("--activation", settings->activation, "none|swiglu",
                     "swiglu = silu(a) b of the sums' first half a and their second half b");
  command.add_option("--dtype", settings->dtype, "DTYPE", "type of raw elements, such as bf16 in |V2");
  command.add_option("--w-dtype", settings->w_dtype, "DTYPE", "what bytes of w are: i8 or f8e4m3fn");
  command.add_option("--out", settings->out, "FILE", "write out: .npy, .npz or .safetensors");
  command.add_option("--out-dtype", settings->out_dtype, "DTYPE", "dtype of out: that of x, or f32 [that of x]");
  command.add_flag("--batch-invariant", settings->batch_invariant,
                   "bits of a row that do not depend on how many there are");
  command.add_option("--kernel", settings->kernel, "KERNEL", "a name of `tessella kernels` [automatic]");
  command.add_option("--num-threads", settings->num_threads, "N", "CPU: threads [0 = all]");
  command.add_option("--num-sms", settings->num_sms, "N", "GPU: multiprocessors [0 = all]");
  command.add_option("--device", settings->device, "cpu|cuda[:N]", "where the call runs");
  command.add_flag("--check", settings->check, "256", "compare rows with the float64 reference; --check=0 all of them");
  command.add_flag("--explain", settings->explain, "which kernel was chosen, and why each better one was not");
  command.add_flag("--json", settings->json, "results as JSON");
  command.set_run([settings] { return run_in_layout("bshd", [&] { return linear(*settings); }); });
}

}  // namespace tessella::cli
