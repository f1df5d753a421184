#include "toy/toy_recipe.hpp"

#include <fstream>
#include <iterator>

#include "operations/attention/arguments.hpp"
#include "portable/forward_params.hpp"

namespace tessella::tests {
namespace {

constexpr unsigned kThreads = 32;

cuda::Step step(const char* kernel, bool is_dependent, int64_t least_keys) {
  std::ifstream file(TESSELLA_TOY_SOURCE);
  const std::string source{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  return {.program = {.header = "user.hpp",
                      .expression = std::string("tessella::toy::") + kernel + "<" + std::to_string(kThreads) + ">",
                      .user_source = source},
          .threads = kThreads,
          .is_dependent = is_dependent,
          .launch = [least_keys](const core::Shape&, const core::Arguments& call, const cuda::Concurrency&,
                                 const core::Workspace&) -> std::optional<cuda::Launch> {
            const core::AttentionArguments& arguments = core::attention(call);
            if (arguments.seqlen_kv < least_keys) return std::nullopt;
            const core::Operand &v = arguments.v(), &out = arguments.out();
            portable::ForwardParams params{};
            params.inputs.v = {v.data, v.batch_stride, v.row_stride, v.head_stride};
            params.output.out = {out.data, out.batch_stride, out.row_stride, out.head_stride};
            params.inputs.head_dim_v = static_cast<int32_t>(arguments.head_dim_v);
            return cuda::Launch{{static_cast<unsigned>(arguments.seqlen_q), static_cast<unsigned>(arguments.heads_q),
                                 static_cast<unsigned>(arguments.batch)},
                                cuda::Parameters(params)};
          }};
}

}  // namespace

cuda::Recipe toy_recipe(const core::Shape& bounds, const cuda::DeviceInfo&) {
  if (core::attention(bounds).seqlen_kv > 1) return {.ineligible = "sees one key"};
  return {.description = "two steps", .steps = {step("clear", false, 0), step("add", true, 1)}};
}

}  // namespace tessella::tests
