#include "cuda/compile/program.hpp"

#include <algorithm>

namespace tessella::cuda {
namespace {

constexpr std::string_view kPrelude = "cuda/device/prelude.cuh";
constexpr std::string_view kUser = "user.hpp";

// The names in lines `#include "name"`, in order, even in comments or strings: one too many does no harm.
std::vector<std::string_view> included_names(std::string_view source) {
  std::vector<std::string_view> names;
  constexpr std::string_view kInclude = "#include \"";
  for (size_t at = source.find(kInclude); at != source.npos; at = source.find(kInclude, at + 1)) {
    const size_t begin = at + kInclude.size();
    const size_t end = source.find('"', begin);
    if (end != source.npos) names.push_back(source.substr(begin, end - begin));
  }
  return names;
}

}  // namespace

std::string main_source(const Program& program) {
  std::string source;
  for (const std::string_view name : {kPrelude, std::string_view(program.header)}) {
    source.append("#include \"").append(name).append("\"\n");
  }
  return source;
}

std::vector<DeviceSource> headers_of(const Program& program) {
  std::vector<DeviceSource> headers{{kUser, program.user_source}};
  std::vector<std::string_view> wanted{kPrelude, program.header};
  for (const std::string_view name : included_names(program.user_source)) wanted.push_back(name);
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto has_name = [&](const DeviceSource& source) { return source.name == wanted[i]; };
    if (std::ranges::any_of(headers, has_name)) continue;
    const auto source = std::ranges::find_if(device_sources(), has_name);
    if (source == device_sources().end()) continue;  // the compiler says so better, with the line
    headers.push_back(*source);
    for (const std::string_view name : included_names(source->content)) wanted.push_back(name);
  }
  return headers;
}

std::vector<std::string> compile_options(const Target& target) {
  std::vector<std::string> options{"-std=c++20", "-default-device", "--gpu-architecture=" + target.name()};
  if (!target.ptx) options.emplace_back("--ptxas-options=-v");
#ifdef TESSELLA_DELAYS
  options.emplace_back("-DTESSELLA_DELAYS");
#endif
  return options;
}

Hash128 program_key(const Program& program, const Target& target) {
  Hash128 hash;
  for (const DeviceSource& header : headers_of(program)) {
    hash.add_field(header.name);
    hash.add_field(header.content);
  }
  hash.add_field(main_source(program));
  hash.add_field(program.expression);
  for (const std::string& option : compile_options(target)) hash.add_field(option);
  return hash;
}

}  // namespace tessella::cuda
