#include <fmt/format.h>

#include <memory>

#include "commands/commands.hpp"
#include "report/machine.hpp"

namespace tessella::cli {

void add_info(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("info", "The library, this machine, and which kernels it can run");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "as JSON");
  command->callback([&run, json] {
    run = [json] {
      const Json about = about_run("info");
      if (*json) {
        fmt::print("{}\n", about.dump(2));
        return kDone;
      }
      fmt::print("processor: {}\n", about["processor"].get<std::string>());
      for (const auto& [name, value] : about["library"].items()) fmt::print("{}: {}\n", name, value.get<std::string>());
      return kDone;
    };
  });
}

}  // namespace tessella::cli
