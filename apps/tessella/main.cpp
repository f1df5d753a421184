// tessella: the command line. Results on stdout, all else on stderr; exit codes 0 done, 1 a check failed, 2 bad input.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <new>
#include <string>

#include "commands/commands.hpp"
#include "files/input_error.hpp"
#include "options/option_words.hpp"
#include "report/output.hpp"
#include "report/progress.hpp"
#include "tessella/error.hpp"

namespace {

int complain(const char* what) {
  tessella::cli::note(fmt::format("tessella: {}", what));
  return tessella::cli::kBadInput;
}

std::string commands_of(const CLI::App& app) {
  std::string names;
  for (const CLI::App* command : app.get_subcommands({}))
    names += (names.empty() ? "one of " : ", ") + command->get_name();
  return names;
}

// The exit code, once the results are written: a disk may be full only when the last of the buffer goes out.
int finished(int code) {
  return std::fflush(stdout) == 0 && !std::ferror(stdout) ? code : complain(tessella::cli::stdout_error().c_str());
}

// The command that was given, "tessella bench decode".
std::string command_of(const CLI::App& app) {
  std::string name = "tessella";
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    name += " " + command->get_name();
  }
  return name;
}

// What CLI11 found, as the other messages say it.
std::string sentence(const CLI::ParseError& error, const CLI::App& app) {
  const std::string said = error.what();
  const size_t colon = said.find(": ");
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && colon != said.npos) {
    const std::string command = command_of(app);
    return fmt::format("'{}' is not taken, expected what `{} --help` shows", said.substr(colon + 2), command);
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr && colon != said.npos) {
    const std::string option = said.substr(0, colon);
    if (said.ends_with(" missing")) return fmt::format("{} has no value, expected one behind it", option);
    if (said.find("At Most 1 ") != said.npos) return fmt::format("{} is given twice, expected once", option);
  }
  return said;
}

// An empty value is a script's unset variable more often than a wish.
void expect_values(const CLI::App& app) {
  for (const CLI::App* command : app.get_subcommands()) {
    for (const CLI::Option* option : command->get_options()) {
      const bool takes_value = option->get_items_expected_max() > 0;
      if (takes_value &&
          std::ranges::any_of(option->results(), [](const std::string& string) { return string.empty(); })) {
        throw tessella::cli::InputError(fmt::format("{} is '', expected a value", option->get_name()));
      }
    }
    expect_values(*command);
  }
}

}  // namespace

int main(int argc, char** argv) {
  namespace cli = tessella::cli;
  CLI::App app{"tessella: exact attention, tile by tile"};
  app.set_version_flag("--version",
                       fmt::format("{}.{}.{}", TESSELLA_VERSION_MAJOR, TESSELLA_VERSION_MINOR, TESSELLA_VERSION_PATCH));
  app.footer("Exit codes: 0 done, 1 a check failed, 2 bad input.  `tessella COMMAND --help` shows examples.");
  app.require_subcommand(0, 1);
  cli::Run run;
  cli::add_attend(app, run);
  cli::add_merge(app, run);
  cli::add_bench(app, run);
  cli::add_ladder(app, run);
  cli::add_kernels(app, run);
  cli::add_info(app, run);
  try {
    if (argc > 1 && argv[1][0] == '-' && app.get_option_no_throw(argv[1]) == nullptr) {
      throw cli::InputError(
          fmt::format("the first word is '{}', expected {}, and options behind it", argv[1], commands_of(app)));
    }
    app.parse(argc, argv);
    if (!run) throw cli::InputError(fmt::format("command is missing, expected {}", commands_of(app)));
    expect_values(app);
    return finished(run());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {  // --help
      app.exit(error);
      return finished(cli::kDone);
    }
    // Without a command, what CLI11 complains of is the first word.
    if (app.get_subcommands().empty()) {
      return complain(fmt::format("command is '{}', expected {}", argv[1], commands_of(app)).c_str());
    }
    return complain(sentence(error, app).c_str());
  } catch (const cli::InputError& error) {
    return complain(error.what());
  } catch (const tessella::Error& error) {
    return complain(cli::in_options(error).c_str());
  } catch (const std::bad_alloc&) {
    return complain("out of memory");
  } catch (const std::exception& error) {
    return complain(error.what());
  }
}
