// A C++ program with the other std::string ABI (_GLIBCXX_USE_CXX11_ABI=0): the C++ headers are inline and only C
// crosses the boundary, so it links and runs; exceptions and their messages are made in this program.
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "expect.h"
#include "tessella/attention.hpp"
#include "tessella/plan.hpp"

static_assert(_GLIBCXX_USE_CXX11_ABI == 0, "build this with _GLIBCXX_USE_CXX11_ABI=0");

namespace ts = tessella;

int main() {
  std::vector<float> q(8), k(8), v{1, 2, 3, 4, 5, 6, 7, 8}, out(8);
  ts::ForwardArgs args{.q = ts::view(q.data(), ts::f32, {2, 4}),
                       .k = ts::view(k.data(), ts::f32, {2, 4}),
                       .v = ts::view(v.data(), ts::f32, {2, 4}),
                       .out = ts::view(out.data(), ts::f32, {2, 4})};
  ts::forward(args, {.mask = ts::Mask::causal()});
  EXPECT(out[0] == 1 && out[4] == 3);
  const std::string message = ts::plan_forward(args, {}).explain();
  EXPECT(!message.empty());

  std::string what;
  args.k = ts::view(k.data(), ts::f32, {2, 3});
  try {
    ts::forward(args, {});
  } catch (const ts::Error& error) {
    what = error.what();
  }
  EXPECT(what.find("expected") != std::string::npos);
  return num_failures != 0;
}
