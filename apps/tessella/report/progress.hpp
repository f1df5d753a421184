// Notes and progress, on stderr.
#pragma once

#include <string>

namespace tessella::cli {

// One line. Where stderr takes none there is nobody to tell.
void note(const std::string& string);

// One line that is overwritten; nothing where stderr is no terminal.
class Progress {
 public:
  Progress();
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void show(const std::string& string);
  void clear();

 private:
  const bool on_;
};

}  // namespace tessella::cli
