#include "report/progress.hpp"

#include <unistd.h>

#include <cstdio>

#include "files/printable.hpp"

namespace tessella::cli {

void note(const std::string& string) { std::fputs((printable(string) + "\n").c_str(), stderr); }

Progress::Progress() : on_(::isatty(STDERR_FILENO) == 1) {}

void Progress::show(const std::string& string) {
  if (on_) std::fputs(("\r\x1b[K" + printable(string)).c_str(), stderr);
}

void Progress::clear() { show(""); }

}  // namespace tessella::cli
