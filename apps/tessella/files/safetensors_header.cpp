#include "files/safetensors_header.hpp"

#include <fmt/core.h>

#include <utility>

#include "files/input_error.hpp"
#include "files/json_reader.hpp"
#include "files/printable.hpp"

namespace tessella::cli {
namespace {

constexpr const char* kMetadata = "__metadata__";

template <typename... Values>
[[noreturn]] void fail(const std::string& source, fmt::format_string<Values...> string, Values&&... values) {
  throw InputError(fmt::format("{}: {}", source, fmt::format(string, std::forward<Values>(values)...)));
}

uint64_t natural_of(const std::string& source, const char* what, const Json& json) {
  if (!json.is_natural()) {
    const bool is_nested = json.is_list() || json.is_object();
    fail(source, "{} is {}, expected a whole number", what,
         is_nested ? fmt::format("a JSON {}", json.type_name()) : json.ascii().substr(0, 40));
  }
  return json.natural();
}

SafetensorsEntry parse_entry(const std::string& source, const std::string& name, const Json& json) {
  if (!json.is_object()) fail(source, "header entry is a JSON {}, expected an object", json.type_name());
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!json.has(key)) fail(source, "header entry lacks '{}'", key);
  }
  const Json &dtype = json["dtype"], &shape = json["shape"], &offsets = json["data_offsets"];
  if (!dtype.is_string()) fail(source, "dtype is a JSON {}, expected a string", dtype.type_name());
  if (!shape.is_list()) fail(source, "shape is a JSON {}, expected a list", shape.type_name());
  if (!offsets.is_list() || offsets.values().size() != 2) fail(source, "data_offsets is no list of two numbers");
  SafetensorsEntry entry{source,
                         name,
                         dtype.string(),
                         {},
                         natural_of(source, "data_offsets[0]", offsets.values()[0]),
                         natural_of(source, "data_offsets[1]", offsets.values()[1])};
  for (const Json& json_extent : shape.values()) {
    const uint64_t extent = natural_of(source, "extent", json_extent);
    if (extent > INT64_MAX) fail(source, "extent is {}, larger than memory can be", extent);
    entry.shape.push_back(static_cast<int64_t>(extent));
  }
  return entry;
}

}  // namespace

std::vector<SafetensorsEntry> parse_safetensors_header(const std::string& path, std::string_view string) {
  std::vector<SafetensorsEntry> entries;
  const std::string problem = read_members(string, [&](const std::string& name, const Json& json) {
    if (name == kMetadata) return;
    entries.push_back(parse_entry(fmt::format("{}:{}", path, shown_name(name)), name, json));
  });
  if (!problem.empty()) fail(path, "safetensors header {}", problem);
  return entries;
}

}  // namespace tessella::cli
