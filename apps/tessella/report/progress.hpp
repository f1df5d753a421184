// Notes and progress, on stderr.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <string>

namespace tessella::cli {

inline void note(const std::string& text) { fmt::print(stderr, "{}\n", text); }

// One line that is overwritten; nothing where stderr is no terminal.
class Progress {
 public:
  Progress() : on_(::isatty(STDERR_FILENO) == 1) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const std::string& text) {
    if (on_) fmt::print(stderr, "\r\x1b[K{}", text);
  }
  void clear() { show(""); }

 private:
  const bool on_;
};

}  // namespace tessella::cli
