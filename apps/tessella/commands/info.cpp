#include <fmt/format.h>

#include <memory>

#include "commands/commands.hpp"
#include "report/machine.hpp"
#include "report/output.hpp"

namespace tessella::cli {

void add_info(CLI::App& app, Run& run) {
  CLI::App* command = app.add_subcommand("info", "The library, this machine, and which kernels it can run");
  auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "as JSON");
  command->callback([&run, json] {
    run = [json] {
      const Json about = about_run("info");
      if (*json) {
        put("{}\n", json_string(about));
        return kDone;
      }
      put("processor: {}\n", about["processor"].get<std::string>());
      for (const auto& [name, value] : about["library"].items()) put("{}: {}\n", name, value.get<std::string>());
      return kDone;
    };
  });
}

}  // namespace tessella::cli
