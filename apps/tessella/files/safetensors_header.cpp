#include "files/safetensors_header.hpp"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "files/input_error.hpp"
#include "files/printable.hpp"

namespace tessella::cli {
namespace {

using Json = nlohmann::json;

constexpr const char* kMetadata = "__metadata__";

constexpr int kMostDepth = 64;  // the format needs 3

template <typename... Values>
[[noreturn]] void fail(const std::string& source, fmt::format_string<Values...> string, Values&&... values) {
  throw InputError(fmt::format("{}: {}", source, fmt::format(string, std::forward<Values>(values)...)));
}

uint64_t unsigned_at(const std::string& source, const Json& list, size_t idx, const char* what) {
  if (!list[idx].is_number_unsigned()) {
    const Json& got = list[idx];
    fail(source, "{} is {}, expected a whole number", what,
         got.is_structured() ? fmt::format("a JSON {}", got.type_name())
                             : got.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 40));
  }
  return list[idx].get<uint64_t>();
}

SafetensorsEntry parse_entry(const std::string& path, const std::string& name, const Json& json) {
  const std::string source = fmt::format("{}:{}", path, shown_name(name));
  if (!json.is_object()) fail(source, "header entry is a JSON {}, expected an object", json.type_name());
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!json.contains(key)) fail(source, "header entry lacks '{}'", key);
  }
  if (!json["dtype"].is_string()) fail(source, "dtype is a JSON {}, expected a string", json["dtype"].type_name());
  const Json& shape = json["shape"];
  const Json& offsets = json["data_offsets"];
  if (!shape.is_array()) fail(source, "shape is a JSON {}, expected a list", shape.type_name());
  if (!offsets.is_array() || offsets.size() != 2) fail(source, "data_offsets is no list of two numbers");
  SafetensorsEntry entry{source, name,
              json["dtype"].get<std::string>(),
              {},
              unsigned_at(source, offsets, 0, "data_offsets[0]"),
              unsigned_at(source, offsets, 1, "data_offsets[1]")};
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const uint64_t extent = unsigned_at(source, shape, axis, "extent");
    if (extent > INT64_MAX) fail(source, "extent is {}, larger than memory can be", extent);
    entry.shape.push_back(static_cast<int64_t>(extent));
  }
  return entry;
}

}  // namespace

// Each tensor is taken out of the parsed JSON as soon as it ends, so the work is linear in their
// number.
std::vector<SafetensorsEntry> parse_safetensors_header(const std::string& path, std::string_view string) {
  std::vector<SafetensorsEntry> entries;
  std::string name;
  const auto take = [&](int depth, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    const bool begins = event == Event::object_start || event == Event::array_start;
    if (begins && depth >= kMostDepth) fail(path, "safetensors header nests deeper than {}", kMostDepth);
    if (depth == 0 && event != Event::object_start && event != Event::object_end) {
      fail(path, "safetensors header is a JSON {}, expected an object",
           event == Event::value ? parsed.type_name() : "array");
    }
    if (depth != 1) return true;
    if (event == Event::key) name = parsed.get<std::string>();
    if (begins || event == Event::key) return true;
    if (name != kMetadata) entries.push_back(parse_entry(path, name, parsed));
    return false;  // not kept
  };
  if (Json::parse(string, take, false).is_discarded()) fail(path, "safetensors header is no JSON");
  return entries;
}

}  // namespace tessella::cli
