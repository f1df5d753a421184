#include <fmt/core.h>

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

void add_kernels_build(Command& kernels) {
  Command& command = kernels.add_command("build", "Compile GPU kernels before they are needed; needs no GPU");
  auto settings = std::make_shared<Settings>();
  command.set_footer(kExamples);
  command.add_option("--arch", settings->arch, "sm_XX,...", "as sm_80,sm_90; default: this machine's GPUs, else all");
  command.add_option("--kernel", settings->kernel, "KERNEL", "one of the table; default: all");
  command.set_run([settings] {
    detail::check(tessella_kernels_build(settings->arch.c_str(), settings->kernel.c_str(), show, nullptr));
    return kDone;
  });
}

}  // namespace tessella::cli
