// A command as it declares itself: options, subcommands, what it runs. What parses them is command_line.cpp's.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessella::cli {

// Exit codes.
inline constexpr int kDone = 0;
inline constexpr int kCheckFailed = 1;
inline constexpr int kBadInput = 2;

// Values land in variables of the caller, which outlive the command.
class Command {
 public:
  // The program itself.
  Command(std::string_view summary, std::string_view version);
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  Command& add_command(std::string_view name, std::string_view summary);
  // What --help shows at its end.
  void set_footer(std::string_view footer);

  // "--layout bshd|bhsd [bshd]": type says what a value is, and what the variable holds is the default.
  void add_option(std::string_view name, std::string& value, std::string_view type, std::string_view help,
                  std::string_view group = "Options");
  // An option that may be given several times.
  void add_option(std::string_view name, std::vector<std::string>& values, std::string_view type,
                  std::string_view help);
  // Words that belong to no option, one at least.
  void add_words(std::string_view name, std::vector<std::string>& words, std::string_view help);
  void add_flag(std::string_view name, bool& value, std::string_view help, std::string_view group = "Options");
  // A flag that may have a value, "--check=0", and has `plain` without one.
  void add_flag(std::string_view name, std::string& value, std::string_view plain, std::string_view help);
  void set_help(std::string_view option, std::string_view help);

  // Once parsed: whether an option is given, and those that are in their order.
  bool is_given(std::string_view option) const;
  std::vector<std::string> given() const;

  // Throws InputError where options do not go together; called before the command runs.
  void set_condition(std::function<void()> condition);
  // What the command does; returns the exit code.
  void set_run(std::function<int()> run);

  // Runs the command that the arguments choose, or prints the help or version that they ask for. InputError for
  // arguments that cannot be used.
  int run(int argc, const char* const* argv) const;

 private:
  struct Parser;
  explicit Command(std::unique_ptr<Parser> parser);

  std::unique_ptr<Parser> parser_;
};

}  // namespace tessella::cli
