#include <fmt/core.h>

#include <cmath>
#include <memory>

#include "commands/commands.hpp"
#include "commands/fp8_schemes.hpp"
#include "files/input_error.hpp"
#include "options/number_string.hpp"
#include "report/machine.hpp"
#include "report/progress.hpp"
#include "report/table.hpp"

namespace tessella::cli {
namespace {

constexpr const char* kExamples =
    R"(What quantisation to 8 bits (f8e4m3fn) does to the result of attention, of a few queries that see every key: the root of
the mean squared error (RMSE) against float64 of the bf16 inputs, by kind of scale, with and without incoherent
processing of q and k. Kernels of a GPU's matrix units round the probabilities to 8 bits too; a CPU's do not.
emulated: FlashAttention-3's kernel with a scale a head and incoherent processing, in loops on the CPU, whose sums are
those of Hopper's matrix unit.

Examples:
  tessella bench fp8-error --seqlen 1k
  tessella bench fp8-error --device cuda --seqlen 1k,16k,128k
  tessella bench fp8-error --data normal,needle-50 --seqlen 128k
  tessella bench fp8-error --file examples/minilm_layer.safetensors)";

struct Settings {
  std::string data = "normal,outliers";
  std::string file;  // instead of data
  std::string seqlen = "1024,16384";
  std::string queries = "256";
  std::string heads = "8";
  std::string head_dim = "128";
  std::string seed = "1";
  std::string device = "cpu";
  bool json = false;
  bool csv = false;
};

std::vector<Fp8Scheme> list_schemes() {
  std::vector<Fp8Scheme> schemes = {{}};
  for (const char* scale : {"tensor", "head", "block", "token"}) {
    schemes.push_back({.scale = scale});
    schemes.push_back({.scale = scale, .hadamard = true});
  }
  schemes.push_back({.scale = "head", .hadamard = true, .emulates_flash_3 = true});
  return schemes;
}

double root_mean_square(const std::vector<double>& values, const std::vector<double>& from) {
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) sum += (values[i] - from[i]) * (values[i] - from[i]);
  return std::sqrt(sum / static_cast<double>(values.size()));
}

std::string rounded(const Json& value) { return fmt::format("{:.3g}", value.number()); }

Table make_table() {
  return {{{"data", "data", {}, true},
           {"seqlen", "seqlen", {}},
           {"queries", "queries", {}},
           {"head_dim", "head_dim", {}},
           {"dtype", "dtype", {}, true},
           {"scale", "scale", {}, true},
           {"hadamard", "hadamard", {}, true},
           {"kernel", "kernel", {}, true},
           {"rmse", "RMSE", rounded},
           {"relative", "of out", rounded},
           {"of_tensor", "of tensor's", rounded}},
          {}};
}

// Every scheme on one set of inputs.
void measure(const std::string& data, const Fp8Inputs& inputs, const Placement& placement, uint64_t seed,
             Table& table) {
  const std::vector<double> exact = exact_out(inputs);
  const double size = root_mean_square(exact, std::vector<double>(exact.size()));
  const auto over = [](double error, double of) { return of > 0 ? Json(error / of) : Json(); };
  double of_tensor = -1;
  for (const Fp8Scheme& scheme : list_schemes()) {
    const Fp8Result result = run_scheme(scheme, inputs, placement, seed);
    const double error = root_mean_square(result.out, exact);
    const bool is_fp8 = !scheme.scale.empty();
    if (is_fp8 && of_tensor < 0) of_tensor = error;
    table.rows.push_back({{"data", data},
                          {"seqlen", inputs.k.tensor.shape[1]},
                          {"queries", inputs.q.tensor.shape[1]},
                          {"head_dim", inputs.k.tensor.shape[3]},
                          {"dtype", is_fp8 ? "f8e4m3fn" : "bf16"},
                          {"scale", is_fp8 ? Json(scheme.scale) : Json()},
                          {"hadamard", scheme.hadamard ? "yes" : "no"},
                          {"kernel", result.kernel},
                          {"rmse", error},
                          {"relative", over(error, size)},
                          {"of_tensor", is_fp8 ? over(error, of_tensor) : Json()}});
  }
}

int bench_fp8_error(const Settings& settings, bool has_sizes) {
  if (settings.json && settings.csv) throw InputError("--json and --csv are both given, expected one");
  if (has_sizes && !settings.file.empty())
    throw InputError(
        "--file is given, expected no --data, --seqlen, --heads or --head-dim beside it: the file says them");
  const uint64_t seed = parse_unsigned("--seed", settings.seed);
  const int64_t queries = parse_integer_between("--queries", settings.queries, 1, 1 << 20);
  const int64_t heads = parse_integer_between("--heads", settings.heads, 1, 1 << 10);
  const int64_t head_dim = parse_integer_between("--head-dim", settings.head_dim, 1, 1 << 10);
  if (head_dim % 16 != 0) throw InputError(fmt::format("--head-dim is {}, expected a multiple of 16", head_dim));
  const std::vector<int64_t> lengths = parse_sizes("--seqlen", settings.seqlen);
  const std::vector<std::string> names = split(settings.data, ',');
  for (const std::string& name : names) check_fp8_data("--data", name);
  const Placement placement = parse_placement(settings.device);
  if (placement.gpu) Gpu::open(*placement.gpu);
  Table table = make_table();
  {
    Progress progress;
    if (!settings.file.empty()) {
      measure("file", read_fp8_inputs(settings.file, queries), placement, seed, table);
    } else {
      for (const std::string& data : names) {
        for (const int64_t seqlen : lengths) {
          progress.show(fmt::format("{}, seqlen {}", data, seqlen));
          measure(data, random_fp8_inputs(data, {queries, seqlen, heads, head_dim}, seed), placement, seed, table);
        }
      }
    }
  }
  Json about = about_run("bench fp8-error");
  about["seed"] = seed;
  print_table(table, settings.json ? TableFormat::json : settings.csv ? TableFormat::csv : TableFormat::text, about);
  return kDone;
}

std::string data_help() {
  std::string help = "list of";
  for (const Fp8Data& data : fp8_data()) help += fmt::format("\n{} = {}", data.name, data.meaning);
  return help;
}

}  // namespace

void add_bench_fp8_error(Command& bench) {
  Command& command = bench.add_command("fp8-error", "Errors of attention in 8 bits, by kind of scale");
  auto settings = std::make_shared<Settings>();
  command.set_footer(kExamples);
  command.add_option("--data", settings->data, "NAME,...", data_help());
  command.add_option("--file", settings->file, "FILE", "q, k and v of one sequence out of a file instead");
  command.add_option("--seqlen", settings->seqlen, "N,...", "keys: 1k,16k or 1k:128k");
  command.add_option("--queries", settings->queries, "N", "queries of each head; of a file the last ones");
  command.add_option("--heads", settings->heads, "N", "heads");
  command.add_option("--head-dim", settings->head_dim, "D", "of q, k and v");
  command.add_option("--seed", settings->seed, "N", "of the data and of incoherent processing");
  command.add_option("--device", settings->device, "cpu|cuda[:N]", "where the calls run");
  command.add_flag("--json", settings->json, "results as JSON");
  command.add_flag("--csv", settings->csv, "results as CSV");
  command.set_run([settings, &command] {
    bool has_sizes = false;
    for (const char* option : {"--data", "--seqlen", "--heads", "--head-dim"}) has_sizes |= command.is_given(option);
    return bench_fp8_error(*settings, has_sizes);
  });
}

}  // namespace tessella::cli
