// tessella: the command line. Results on stdout, all else on stderr; exit codes 0 done, 1 a check failed, 2 bad input.
#include <fmt/core.h>

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

// The exit code, once the results are written: a disk may be full only when the last of the buffer goes out.
int finished(int code) {
  return std::fflush(stdout) == 0 && !std::ferror(stdout) ? code : complain(tessella::cli::stdout_error().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  namespace cli = tessella::cli;
  cli::Command program("tessella: exact attention, tile by tile",
                       fmt::format("{}.{}.{}", TESSELLA_VERSION_MAJOR, TESSELLA_VERSION_MINOR, TESSELLA_VERSION_PATCH));
  program.set_footer("Exit codes: 0 done, 1 a check failed, 2 bad input.  `tessella COMMAND --help` shows examples.");
  cli::add_attend(program);
  cli::add_merge(program);
  cli::add_quantize(program);
  cli::add_linear(program);
  cli::add_bench(program);
  cli::add_ladder(program);
  cli::add_kernels(program);
  cli::add_tune(program);
  cli::add_info(program);
  try {
    return finished(program.run(argc, argv));
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
