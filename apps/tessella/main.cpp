// tessella: the command line. Results on stdout, all else on stderr; exit codes 0 done, 1 a check failed, 2 bad input.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <new>
#include <string>

#include "commands/commands.hpp"
#include "files/input_error.hpp"
#include "tessella/error.hpp"

namespace {

int complain(const char* what) {
  fmt::print(stderr, "tessella: {}\n", what);
  return tessella::cli::kBadInput;
}

std::string commands_of(const CLI::App& app) {
  std::string names;
  for (const CLI::App* command : app.get_subcommands({}))
    names += (names.empty() ? "one of " : ", ") + command->get_name();
  return names;
}

}  // namespace

int main(int argc, char** argv) {
  namespace cli = tessella::cli;
  CLI::App app{"tessella: exact attention, tile by tile"};
  app.set_version_flag("--version",
                       fmt::format("{}.{}.{}", TESSELLA_VERSION_MAJOR, TESSELLA_VERSION_MINOR, TESSELLA_VERSION_PATCH));
  app.footer("Exit codes: 0 done, 1 a check failed, 2 bad input.  `tessella COMMAND --help` shows examples.");
  cli::Run run;
  cli::add_attend(app, run);
  cli::add_bench(app, run);
  cli::add_ladder(app, run);
  cli::add_kernels(app, run);
  cli::add_info(app, run);
  try {
    app.parse(argc, argv);
    if (!run) throw cli::InputError(fmt::format("command is missing, expected {}", commands_of(app)));
    return run();
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);  // --help
    // Without a command, what CLI11 complains of is the first word.
    if (app.get_subcommands().empty() && argv[1][0] != '-') {
      return complain(fmt::format("command is '{}', expected {}", argv[1], commands_of(app)).c_str());
    }
    return complain(error.what());
  } catch (const cli::InputError& error) {
    return complain(error.what());
  } catch (const tessella::Error& error) {
    return complain(error.what());
  } catch (const std::bad_alloc&) {
    return complain("out of memory");
  } catch (const std::exception& error) {
    return complain(error.what());
  }
}
