// The collector's: TESSELLA_KERNELS_FILE gets a line "HEADER EXPRESSION" for each kernel.
#include <cstdlib>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>

#include "emulated_step.hpp"

namespace tessella::tests {

void run_step(const cuda::Step& step, const cuda::Launch&, uint64_t) {
  static std::set<std::string> written;
  if (!written.insert(step.program.expression).second) return;
  const char* file = std::getenv("TESSELLA_KERNELS_FILE");
  if (file == nullptr) throw std::runtime_error("TESSELLA_KERNELS_FILE is not set");
  std::ofstream(file, std::ios::app) << step.program.header << " " << step.program.expression << "\n";
}

void set_kernel_before(std::function<void()> rest) {
  if (rest != nullptr) rest();
}

void finish(Call& call) {
  if (call.run_plain() != TESSELLA_OK) throw std::runtime_error(tessella_last_error());
}

void finish(MergeCall& call) {
  if (call.run() != TESSELLA_OK) throw std::runtime_error(tessella_last_error());
}

void finish(AppendCall& call) {
  if (call.run() != TESSELLA_OK) throw std::runtime_error(tessella_last_error());
}

void finish(CopyPagesCall& call) {
  if (call.run() != TESSELLA_OK) throw std::runtime_error(tessella_last_error());
}

void finish(QuantizeCall& call) {
  if (call.run() != TESSELLA_OK) throw std::runtime_error(tessella_last_error());
}

void finish_back(QuantizeCall& call) {
  if (call.run_back("") != TESSELLA_OK) throw std::runtime_error(tessella_last_error());
}

void finish(BackwardCall& call) {
  if (call.run() != TESSELLA_OK) throw std::runtime_error(tessella_last_error());
}

void finish(LinearCall& call) {
  if (call.run() != TESSELLA_OK) throw std::runtime_error(tessella_last_error());
}

}  // namespace tessella::tests
