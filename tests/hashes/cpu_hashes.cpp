// Hashes of out and lse, or of gradients, on every CPU kernel that runs here: random cases with fixed seeds.
//
//   cpu_hashes [CASES]    of each kernel, 400 unless told
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "cases/backward_call.hpp"
#include "cases/call.hpp"
#include "cases/cases.hpp"
#include "hashes/hash.hpp"

namespace {

using tessella::tests::BackwardCall;
using tessella::tests::Call;
using tessella::tests::Case;

template <class AnyCall>
void print_case(const Case& c) {
  AnyCall call(c);
  const std::string line = to_string(c);
  if (call.run() == TESSELLA_OK) {
    tessella::tests::print_hash(call.results(), line);
  } else {
    std::printf("%-16s %s\n", "refused", line.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  const uint64_t cases = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 400;
  try {
    for (int32_t idx = 0; idx < tessella_kernel_count(); ++idx) {
      tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
      if (tessella_kernel_describe(idx, &info) != TESSELLA_OK || std::string_view(info.device) != "cpu") continue;
      const std::string_view operation = info.operation;
      if (info.unavailable[0] != '\0' || (operation != "forward" && operation != "backward")) continue;
      for (uint64_t seed = 1; seed <= cases; ++seed) {
        if (operation == "forward") {
          print_case<Call>(tessella::tests::random_case(seed, info.name, info.dtypes));
        } else {
          print_case<BackwardCall>(tessella::tests::random_backward_case(seed, info.name, info.dtypes));
        }
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cpu_hashes: %s\n", error.what());
    return 1;
  }
  return 0;
}
