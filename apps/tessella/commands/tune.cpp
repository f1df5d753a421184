#include <fmt/core.h>

#include <memory>
#include <string>
#include <vector>

#include "commands/commands.hpp"
#include "commands/weight_shapes.hpp"
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

struct Settings {
  std::vector<std::string> shapes;
  std::string dtype = "bf16";
  std::string w_dtype;  // "" = that of x
  bool swiglu = false;
  std::string device = "cpu";
  std::string num_threads = "0";
};

void show(int32_t, int32_t, const char* line, void* shape) {
  put("{} {}\n", *static_cast<const std::string*>(shape), line);
  std::fflush(stdout);  // it takes seconds until the next
}

int run(const Settings& settings) {
  const std::vector<WeightShape> shapes = parse_weight_shapes(settings.shapes, settings.swiglu);
  const Placement placement = parse_placement(settings.device);
  tessella_tune_options options = TESSELLA_TUNE_OPTIONS_INIT;
  options.device_type = placement.gpu ? TESSELLA_CUDA : TESSELLA_CPU;
  options.device_id = placement.gpu.value_or(0);
  options.dtype = parse_float_dtype("--dtype", settings.dtype);
  if (!settings.w_dtype.empty()) options.w_dtype = parse_dtype("--w-dtype", settings.w_dtype);
  options.activation = settings.swiglu ? TESSELLA_SWIGLU : TESSELLA_ACTIVATION_NONE;
  options.num_threads =
      static_cast<int32_t>(parse_integer_between("--num-threads", settings.num_threads, 0, INT32_MAX));
  for (const WeightShape& shape : shapes) {
    std::string name = shape.name();
    options.out_features = settings.swiglu ? shape.rows / 2 : shape.rows;
    options.in_features = shape.columns;
    detail::check(tessella_tune(&options, show, &name));
  }
  return kDone;
}

}  // namespace

void add_tune(Command& program) {
  Command& command =
      program.add_command("tune", "Measure which kernel of linear is the fastest for how many rows, and remember it");
  auto settings = std::make_shared<Settings>();
  command.set_footer(kExamples);
  command.add_words("SHAPES", settings->shapes, weight_shapes_help());
  command.add_option("--dtype", settings->dtype, "bf16|f16|f32", "of x");
  command.add_option("--w-dtype", settings->w_dtype, "bf16|f16|f32|i8|f8e4m3fn", "of w; default: that of x");
  command.add_flag("--swiglu", settings->swiglu, "w has the rows of both halves of SwiGLU");
  command.add_option("--device", settings->device, "cpu|cuda[:N]", "where");
  command.add_option("--num-threads", settings->num_threads, "N", "CPU; 0 = all that the process may use");
  command.set_run([settings] { return run(*settings); });
}

}  // namespace tessella::cli
