#include <memory>

#include "commands/commands.hpp"
#include "report/machine.hpp"
#include "report/output.hpp"

namespace tessella::cli {

void add_info(Command& program) {
  Command& command = program.add_command("info", "The library, this machine, and which kernels it can run");
  auto json = std::make_shared<bool>(false);
  command.add_flag("--json", *json, "as JSON");
  command.set_run([json] {
    const Json about = about_run("info");
    if (*json) {
      put("{}\n", about.dump(2));
      return kDone;
    }
    put("processor: {}\n", about["processor"].string());
    const Json& library = about["library"];
    for (const std::string& name : library.keys()) put("{}: {}\n", name, library[name].string());
    return kDone;
  });
}

}  // namespace tessella::cli
