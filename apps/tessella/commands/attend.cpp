#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "commands/attend_backward.hpp"
#include "commands/attend_inputs.hpp"
#include "commands/cache_type.hpp"
#include "commands/commands.hpp"
#include "commands/kernel_list.hpp"
#include "commands/result_files.hpp"
#include "files/array_names.hpp"
#include "files/input_error.hpp"
#include "files/printable.hpp"
#include "options/attention_options.hpp"
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
  tessella attend examples/minilm_layer.safetensors --check
  tessella attend q.npy k.npy v.npy --layout bhsd --mask causal --out out.npy --lse lse.npy
  tessella attend layer.npz --names query,key,value --mask 'window:1024,0 & keep_first:4' --softcap 30
  tessella attend qkv.npz --dtype bf16 --mask document:ids.npy --sink 0.5,0.5 --explain
  tessella attend layer.npz --device cuda --check
  tessella attend cache.npz --kv-dtype i4 --k-scale k_scale.npy --v-scale v_scale.npy --scale-block 1
  tessella attend layer.npz --mask causal --backward d_out.npy --gradients gradients.npz --check)";

struct Settings {
  AttendInputs inputs;
  AttentionOptionValues options;
  std::string layout = "bshd";
  std::string dtype;
  std::string kv_dtype;
  std::string names;
  ResultFiles results;
  BackwardFiles backward;
  std::string check;  // rows; "" = no check
  bool explain = false;
  bool json = false;
};

// What one operation of the call did.
struct Ran {
  std::string kernel;
  std::string explain;
  double seconds = 0;
  std::optional<tessella_check_report> check;

  bool is_right() const { return !check || check->passed; }
};

Ran run_operation(const Settings& settings, const Call& call, tessella_operation operation) {
  const Tagged tagged(call, operation);
  const PlanHandle plan = make_plan(tagged);
  Ran ran{tessella_plan_kernel(plan.get()), tessella_plan_explain(plan.get())};
  ran.seconds = seconds_at(settings.options.placement(),
                           [&] { cli::check(tessella_plan_run(plan.get(), tagged, nullptr, nullptr)); });
  if (settings.check.empty()) return ran;
  ran.check = TESSELLA_CHECK_REPORT_INIT;
  const int64_t rows = parse_integer_between("--check", settings.check, 0, INT64_MAX);
  cli::check(tessella_check(tagged, rows, 0, &*ran.check));
  return ran;
}

// --kernel names one of the forward or one of the backward; the library chooses the other.
bool is_of_backward(const char* kernel) {
  const std::vector<KernelEntry> kernels = kernels_of("backward");
  return kernel != nullptr &&
         std::ranges::any_of(kernels, [&](const KernelEntry& entry) { return entry.info.name == std::string(kernel); });
}

void check_is_no_result(const Settings& settings, const std::string& input) {
  settings.results.check_is_none(input);
  settings.backward.check_is_none(input);
}

// Everything that can be wrong with an option is said before anything large is read or computed.
void settle(Settings& settings) {
  if (const Placement placement = settings.options.placement(); placement.gpu) Gpu::open(*placement.gpu);
  if (settings.layout != "bshd" && settings.layout != "bhsd") {
    throw InputError(fmt::format("--layout is '{}', expected bshd or bhsd", settings.layout));
  }
  expect_no_rows_behind_check(settings.check, settings.inputs.files);
  settings.inputs.layout = settings.layout == "bhsd" ? Layout::bhsd : Layout::bshd;
  if (!settings.dtype.empty()) settings.inputs.dtype = parse_dtype("--dtype", settings.dtype);
  if (!settings.kv_dtype.empty()) {
    const CacheType& type = cache_type_named(settings.kv_dtype);
    if (!type.is_quantized) {
      throw InputError(fmt::format("--kv-dtype is '{}', expected f8e4m3fn, i8 or i4: bytes of k and v", type.name));
    }
    settings.inputs.kv_dtype = type.dtype;
  }
  if (!settings.names.empty()) {
    settings.inputs.names = split(settings.names, ',');
    if (settings.inputs.names.size() != 3) {
      throw InputError(fmt::format("--names is '{}', expected three: Q,K,V", settings.names));
    }
  }
  settings.results.check_writable();
  settings.backward.check_writable(settings.results);
  for (const std::string& file : settings.inputs.files) check_is_no_result(settings, file);
}

void describe(const Settings& settings, const Ran& ran, Json& document) {
  document["kernel"] = ran.kernel;
  document["seconds"] = ran.seconds;
  if (settings.explain) document["explain"] = ran.explain;
  if (ran.check) document["check"] = describe_check(*ran.check);
}

void print(const Settings& settings, const Ran& ran) {
  put("kernel  {}, {} (first call)\n", ran.kernel, seconds_string(ran.seconds));
  if (settings.explain) put("{}", ran.explain);
}

int attend(Settings settings) {
  settle(settings);
  Call call;
  std::vector<ListedArray> others = read_inputs(settings.inputs, call);
  Array q = call.arrays[0], k = call.arrays[1], v = call.arrays[2];
  for (Array* array : {&q, &k, &v}) swap_layout(settings.inputs.layout, array->tensor);  // as the files have them
  settings.options.apply(call);
  const bool wants_backward = settings.backward.is_wanted();
  std::vector<Array> gradients;
  if (wants_backward) gradients = settings.backward.prepare(settings.inputs, call);
  for (const Array& array : call.arrays) {
    if (!array.file.empty()) check_is_no_result(settings, array.file);
  }
  const Array out = allocate_out(settings.inputs.layout, call);
  std::optional<Array> lse;
  if (!settings.results.lse.empty() || wants_backward) lse = allocate_lse(call);

  const Placement placement = settings.options.placement();
  place(placement, call);

  const char* kernel = call.options.kernel;
  const bool backward_named = wants_backward && is_of_backward(kernel);
  if (backward_named) call.options.kernel = nullptr;
  const Ran forward = run_operation(settings, call, TESSELLA_FORWARD);
  fetch(placement, *call.args.out, out);
  if (lse) fetch(placement, *call.args.lse, *lse);
  std::optional<Ran> backward;
  if (wants_backward) {
    call.options.kernel = backward_named ? kernel : nullptr;
    backward = run_operation(settings, call, TESSELLA_BACKWARD);
    fetch_gradients(placement, call, gradients);
  }
  settings.results.write(out, lse ? &*lse : nullptr);
  if (backward) settings.backward.write(gradients);

  std::erase_if(others, [&](const ListedArray& array) {
    return std::ranges::find(call.arrays, array.source, &Array::source) != call.arrays.end();
  });
  if (!others.empty()) note(fmt::format("not used: {}", names_of(others)));
  std::vector<std::pair<const Array*, std::string>> results = {{&out, settings.results.out}};
  if (!settings.results.lse.empty()) results.emplace_back(&*lse, settings.results.lse);
  if (settings.json) {
    Json document = about_run("attend");
    document["q"] = describe_array(q);
    document["k"] = describe_array(k);
    document["v"] = describe_array(v);
    for (const auto& [array, file] : results) document[array->name] = describe_result(*array, file);
    describe(settings, forward, document);
    if (backward) {
      for (const Array& gradient : gradients) {
        document["backward"][gradient.name] = describe_result(gradient, settings.backward.file_of(gradient.name));
      }
      describe(settings, *backward, document["backward"]);
    }
    put("{}\n", document.dump(2));
  } else {
    for (const auto& [name, array] : {std::pair{"q", &q}, {"k", &k}, {"v", &v}}) {
      put("{:<7} {} {}  {}\n", name, shape_string(array->tensor), dtype_name(array->tensor.dtype),
          printable(array->source));
    }
    print(settings, forward);
    for (const auto& [array, file] : results) print_result(*array, file);
    if (forward.check) print_check(*forward.check, "fp32 softmax");
    if (backward) {
      print(settings, *backward);
      for (const Array& gradient : gradients) print_result(gradient, settings.backward.file_of(gradient.name));
      if (backward->check) print_backward_check(*backward->check);
    }
  }
  return forward.is_right() && (!backward || backward->is_right()) ? kDone : kCheckFailed;
}

}  // namespace

void add_attend(Command& program) {
  Command& command = program.add_command("attend", "Attention over q, k and v out of files");
  auto settings = std::make_shared<Settings>();
  command.set_footer(kExamples);
  command.add_words("FILE", settings->inputs.files, ".npy, .npz or .safetensors: one file with q, k and v, or several");
  command.add_option("--names", settings->names, "Q,K,V",
                     "names of q, k and v in the files [q,k,v, else common ones: query, key_states, attn.v_proj, xq; "
                     "arrays without names, as .npy and arr_0 are, by their order]");
  command.add_option("--layout", settings->layout, "bshd|bhsd",
                     "bshd = (batch, seqlen, heads, head_dim), of q, k, v and out");
  command.add_option("--dtype", settings->dtype, "DTYPE", "type of raw .npy elements, such as bf16 in |V2");
  command.add_option("--kv-dtype", settings->kv_dtype, "DTYPE",
                     "what the bytes of k and v are: f8e4m3fn, i8, or i4, two in each of uint8");
  command.add_option("--out", settings->results.out, "FILE", "write out: .npy, .npz or .safetensors");
  command.add_option("--lse", settings->results.lse, "FILE",
                     "write the log of the softmax's sum; the same .npz as --out holds both");
  command.add_flag("--check", settings->check, "256",
                   "compare rows with the float64 reference; --check=0 all of them [256]");
  command.add_flag("--explain", settings->explain, "which kernel was chosen, and why each better one was not");
  command.add_flag("--json", settings->json, "results as JSON");
  settings->backward.add_to(command);
  settings->options.add_to(command);
  command.set_run([settings] { return run_in_layout(settings->layout, [&] { return attend(*settings); }); });
}

}  // namespace tessella::cli
