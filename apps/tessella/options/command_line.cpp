// Commands through CLI11, which no other file knows: its headers take longer to compile than a command.
#include <fmt/core.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <utility>

#include "files/input_error.hpp"
#include "options/command.hpp"

namespace tessella::cli {
namespace {

std::string commands_of(const CLI::App& app) {
  std::string names;
  for (const CLI::App* command : app.get_subcommands({}))
    names += (names.empty() ? "one of " : ", ") + command->get_name();
  return names;
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
        throw InputError(fmt::format("{} is '', expected a value", option->get_name()));
      }
    }
    expect_values(*command);
  }
}

// Options before a subcommand would be dropped.
void expect_no_options_before(const CLI::App& app, const CLI::App& subcommand) {
  for (const CLI::Option* given : app.parse_order()) {
    const std::string option = given->get_name();
    const std::string& name = subcommand.get_name();
    throw InputError(subcommand.get_option_no_throw(option) == nullptr
                         ? fmt::format("{} is given before {}, which has no such option", option, name)
                         : fmt::format("{} is given before {}, expected behind it", option, name));
  }
}

}  // namespace

struct Command::Parser {
  std::shared_ptr<CLI::App> app;  // of a subcommand a part of the program's
  std::vector<std::unique_ptr<Command>> commands = {};
  std::function<void()> condition = {};
  std::function<int()> run = {};

  // Itself, or the subcommand that was chosen.
  const Parser& chosen() const {
    for (const std::unique_ptr<Command>& command : commands) {
      const Parser& parser = *command->parser_;
      if (!parser.app->parsed()) continue;
      expect_no_options_before(*app, *parser.app);
      return parser.chosen();
    }
    return *this;
  }
};

Command::Command(std::string_view summary, std::string_view version)
    : parser_(new Parser{std::make_shared<CLI::App>(std::string(summary))}) {
  parser_->app->set_version_flag("--version", std::string(version));
  parser_->app->require_subcommand(0, 1);
}
Command::Command(std::unique_ptr<Parser> parser) : parser_(std::move(parser)) {}
Command::~Command() = default;

Command& Command::add_command(std::string_view name, std::string_view summary) {
  const std::shared_ptr<CLI::App>& app = parser_->app;
  std::unique_ptr<Parser> parser(
      new Parser{std::shared_ptr<CLI::App>(app, app->add_subcommand(std::string(name), std::string(summary)))});
  parser_->commands.emplace_back(new Command(std::move(parser)));
  return *parser_->commands.back();
}

void Command::set_footer(std::string_view footer) { parser_->app->footer(std::string(footer)); }

void Command::add_option(std::string_view name, std::string& value, std::string_view type, std::string_view help,
                         std::string_view group) {
  const std::string shown = value.empty() ? std::string(type) : fmt::format("{} [{}]", type, value);
  parser_->app->add_option(std::string(name), value, std::string(help))->option_text(shown)->group(std::string(group));
}

void Command::add_option(std::string_view name, std::vector<std::string>& values, std::string_view type,
                         std::string_view help) {
  parser_->app->add_option(std::string(name), values, std::string(help))
      ->allow_extra_args(false)
      ->type_name(std::string(type));
}

void Command::add_words(std::string_view name, std::vector<std::string>& words, std::string_view help) {
  parser_->app->add_option(std::string(name), words, std::string(help))->required()->type_name("");
}

void Command::add_flag(std::string_view name, bool& value, std::string_view help, std::string_view group) {
  parser_->app->add_flag(std::string(name), value, std::string(help))->group(std::string(group));
}

void Command::add_flag(std::string_view name, std::string& value, std::string_view plain, std::string_view help) {
  parser_->app->add_flag(fmt::format("{}{{{}}}", name, plain), value, std::string(help));
}

void Command::set_help(std::string_view option, std::string_view help) {
  parser_->app->get_option(std::string(option))->description(std::string(help));
}

bool Command::is_given(std::string_view option) const {
  return parser_->app->get_option(std::string(option))->count() > 0;
}

std::vector<std::string> Command::given() const {
  std::vector<std::string> names;
  for (const CLI::Option* option : parser_->app->parse_order()) names.push_back(option->get_name());
  return names;
}

void Command::set_condition(std::function<void()> condition) { parser_->condition = std::move(condition); }

void Command::set_run(std::function<int()> run) { parser_->run = std::move(run); }

int Command::run(int argc, const char* const* argv) const {
  CLI::App& app = *parser_->app;
  if (argc > 1 && argv[1][0] == '-' && app.get_option_no_throw(argv[1]) == nullptr) {
    throw InputError(
        fmt::format("the first word is '{}', expected {}, and options behind it", argv[1], commands_of(app)));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {  // --help
      app.exit(error);
      return kDone;
    }
    // Without a command, what CLI11 complains of is the first word.
    if (app.get_subcommands().empty()) {
      throw InputError(fmt::format("command is '{}', expected {}", argv[1], commands_of(app)));
    }
    throw InputError(sentence(error, app));
  }
  const Parser& chosen = parser_->chosen();
  if (chosen.condition) chosen.condition();
  if (!chosen.run) throw InputError(fmt::format("command is missing, expected {}", commands_of(app)));
  expect_values(app);
  return chosen.run();
}

}  // namespace tessella::cli
