// Notes and progress, on stderr.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <string>

#include "files/printable.hpp"

namespace tessella::cli {

// One line. Where stderr takes none there is nobody to tell.
inline void note(const std::string& string) { std::fputs((printable(string) + "\n").c_str(), stderr); }

// One line that is overwritten; nothing where stderr is no terminal.
class Progress {
 public:
  Progress() : on_(::isatty(STDERR_FILENO) == 1) {}
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const std::string& string) {
    if (on_) std::fputs(("\r\x1b[K" + printable(string)).c_str(), stderr);
  }
  void clear() { show(""); }

 private:
  const bool on_;
};

}  // namespace tessella::cli
