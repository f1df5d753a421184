// Hashes of out and lse on every CPU kernel that runs here: random cases with fixed seeds.
//
//   cpu_hashes [CASES]    of each kernel, 400 unless told
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "cases/call.hpp"
#include "cases/cases.hpp"
#include "hashes/hash.hpp"

namespace {

using tessella::tests::Call;
using tessella::tests::Case;

void print_case(const Case& c) {
  Call call(c);
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
      if (info.unavailable[0] != '\0' || std::string_view(info.operation) != "forward") continue;
      for (uint64_t seed = 1; seed <= cases; ++seed) {
        print_case(tessella::tests::random_case(seed, info.name, info.dtypes));
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cpu_hashes: %s\n", error.what());
    return 1;
  }
  return 0;
}
