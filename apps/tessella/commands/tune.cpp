#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "commands/commands.hpp"
#include "device/placement.hpp"
#include "files/input_error.hpp"
#include "options/dtype_string.hpp"
#include "options/number_string.hpp"
#include "report/output.hpp"
#include "tessella/error.hpp"
#include "tessella/tessella.h"

namespace tessella::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  tessella tune 12288x4096 4096x4096 --device cuda
  tessella tune llama2-7b --w-dtype i8)";

// The four matrices of a model's layer: q, k and v together, their output, gate and up together, down.
struct Model {
  std::string name;
  std::vector<std::string> shapes;
};
const std::vector<Model>& models() {
  static const std::vector<Model> models = {{"llama2-7b", {"12288x4096", "4096x4096", "11008x4096", "4096x11008"}},
                                            {"codellama-34b", {"10240x8192", "8192x8192", "44032x8192", "8192x22016"}}};
  return models;
}

std::string model_names() {
  std::string names;
  for (const Model& model : models()) names += fmt::format("{}{}", names.empty() ? "" : ", ", model.name);
  return names;
}

struct Settings {
  std::vector<std::string> shapes;
  std::string dtype = "bf16";
  std::string w_dtype;  // "" = that of x
  bool swiglu = false;
  std::string device = "cpu";
  std::string num_threads = "0";
};

// "12288x4096": out_features and in_features.
void parse_shape(const std::string& shape, tessella_tune_options& options) {
  const size_t x = shape.find('x');
  if (x == 0 || x == std::string::npos) {
    throw InputError(fmt::format("a shape is '{}', expected OUTxIN, the rows and columns of w, as 12288x4096, or {}",
                                 shape, model_names()));
  }
  options.out_features = parse_integer_between("a shape's rows", shape.substr(0, x), 1, INT32_MAX);
  options.in_features = parse_integer_between("a shape's columns", shape.substr(x + 1), 1, INT32_MAX);
  if (options.activation != TESSELLA_SWIGLU) return;
  if (options.out_features % 2 != 0) {
    throw InputError(fmt::format("a shape is '{}' with --swiglu, expected an even number of rows", shape));
  }
  options.out_features /= 2;
}

void show(int32_t, int32_t, const char* line, void* shape) {
  put("{} {}\n", *static_cast<const std::string*>(shape), line);
}

int run(const Settings& settings) {
  std::vector<std::string> shapes;
  for (const std::string& word : settings.shapes) {
    const auto model = std::ranges::find(models(), word, &Model::name);
    if (model == models().end()) {
      shapes.push_back(word);
    } else {
      shapes.insert(shapes.end(), model->shapes.begin(), model->shapes.end());
    }
  }
  const Placement placement = parse_placement(settings.device);
  tessella_tune_options options = TESSELLA_TUNE_OPTIONS_INIT;
  options.device_type = placement.gpu ? TESSELLA_CUDA : TESSELLA_CPU;
  options.device_id = placement.gpu.value_or(0);
  options.dtype = parse_float_dtype("--dtype", settings.dtype);
  if (!settings.w_dtype.empty()) options.w_dtype = parse_dtype("--w-dtype", settings.w_dtype);
  options.activation = settings.swiglu ? TESSELLA_SWIGLU : TESSELLA_ACTIVATION_NONE;
  options.num_threads =
      static_cast<int32_t>(parse_integer_between("--num-threads", settings.num_threads, 0, INT32_MAX));
  for (const std::string& shape : shapes) parse_shape(shape, options);
  for (std::string& shape : shapes) {
    parse_shape(shape, options);
    detail::check(tessella_tune(&options, show, &shape));
  }
  return kDone;
}

}  // namespace

void add_tune(Command& program) {
  Command& command =
      program.add_command("tune", "Measure which kernel of linear is the fastest for how many rows, and remember it");
  auto settings = std::make_shared<Settings>();
  command.set_footer(kExamples);
  command.add_words("SHAPES", settings->shapes,
                    fmt::format("rows and columns of w, as 12288x4096, or all of a model: {}", model_names()));
  command.add_option("--dtype", settings->dtype, "bf16|f16|f32", "of x");
  command.add_option("--w-dtype", settings->w_dtype, "bf16|f16|f32|i8|f8e4m3fn", "of w; default: that of x");
  command.add_flag("--swiglu", settings->swiglu, "w has the rows of both halves of SwiGLU");
  command.add_option("--device", settings->device, "cpu|cuda[:N]", "where");
  command.add_option("--num-threads", settings->num_threads, "N", "CPU; 0 = all that the process may use");
  command.set_run([settings] { return run(*settings); });
}

}  // namespace tessella::cli
