#include <fmt/format.h>

#include <memory>
#include <string>

#include "commands/commands.hpp"
#include "report/progress.hpp"
#include "tessella/error.hpp"
#include "tessella/tessella.h"

namespace tessella::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  tessella kernels build
  TESSELLA_CACHE_DIR=/opt/kernels tessella kernels build --arch sm_90)";

struct Settings {
  std::string arch;
  std::string kernel;
};

void show(int32_t num_done, int32_t num_total, const char* string, void*) {
  note(fmt::format("{}/{} {}", num_done, num_total, string));
}

}  // namespace

void add_kernels_build(CLI::App& kernels, Run& run) {
  CLI::App* command = kernels.add_subcommand("build", "Compile GPU kernels before they are needed; needs no GPU");
  auto settings = std::make_shared<Settings>();
  command->footer(kExamples);
  command->add_option("--arch", settings->arch, "as sm_80,sm_90; default: this machine's GPUs, else all")
      ->type_name("sm_XX,...");
  command->add_option("--kernel", settings->kernel, "one of the table; default: all")->type_name("KERNEL");
  command->callback([&run, settings] {
    run = [settings] {
      detail::check(tessella_kernels_build(settings->arch.c_str(), settings->kernel.c_str(), show, nullptr));
      return kDone;
    };
  });
}

}  // namespace tessella::cli
