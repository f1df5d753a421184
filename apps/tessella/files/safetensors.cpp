#include "files/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "files/input_error.hpp"
#include "files/printable.hpp"

namespace tessella::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr const char* kMetadata = "__metadata__";

struct Extent {
  uint64_t begin;
  uint64_t end;
  std::string name;
};

template <typename... Values>
[[noreturn]] void fail(const std::string& source, fmt::format_string<Values...> string, Values&&... values) {
  throw InputError(fmt::format("{}: {}", source, fmt::format(string, std::forward<Values>(values)...)));
}

// Checks the string before it is parsed: whatever walks a parsed header does so by recursion.
void check_depth(const std::string& source, std::string_view string) {
  constexpr int kMost = 64;  // the format needs 3
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < string.size(); ++i) {
    const char c = string[i];
    if (c == '"') in_string = !in_string;
    if (in_string) {
      if (c == '\\') ++i;
    } else if (c == '[' || c == '{') {
      if (++depth > kMost) fail(source, "safetensors header nests deeper than {}", kMost);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

Json parse_header(const std::string& source, std::string_view string) {
  check_depth(source, string);
  Json header = Json::parse(string, nullptr, false);
  if (header.is_discarded()) fail(source, "safetensors header is no JSON");
  if (!header.is_object()) fail(source, "safetensors header is a JSON {}, expected an object", header.type_name());
  return header;
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

// Members of one tensor's entry, their JSON types checked.
struct Entry {
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

Entry parse_entry(const std::string& source, const Json& json) {
  if (!json.is_object()) fail(source, "header entry is a JSON {}, expected an object", json.type_name());
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!json.contains(key)) fail(source, "header entry lacks '{}'", key);
  }
  if (!json["dtype"].is_string()) fail(source, "dtype is a JSON {}, expected a string", json["dtype"].type_name());
  const Json& shape = json["shape"];
  const Json& offsets = json["data_offsets"];
  if (!shape.is_array()) fail(source, "shape is a JSON {}, expected a list", shape.type_name());
  if (!offsets.is_array() || offsets.size() != 2) fail(source, "data_offsets is no list of two numbers");
  Entry entry{json["dtype"].get<std::string>(),
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

// The format wants every byte of the data to belong to exactly one tensor.
void check_extents(const std::string& source, std::vector<Extent> extents, uint64_t data_bytes) {
  std::ranges::sort(
      extents, [](const Extent& a, const Extent& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  uint64_t end = 0;
  for (const Extent& extent : extents) {
    if (extent.begin < end)
      fail(source, "'{}' begins at byte {} of the data, inside another tensor", shown_name(extent.name), extent.begin);
    if (extent.begin > end) fail(source, "bytes {} to {} of the data belong to no tensor", end, extent.begin);
    end = extent.end;
  }
  if (end != data_bytes) fail(source, "{} bytes of data, the header describes {}", data_bytes, end);
}

}  // namespace

std::vector<Array> read_safetensors(const std::string& source, std::span<const std::byte> bytes,
                                    const std::shared_ptr<const void>& storage) {
  if (bytes.size() < 8) fail(source, "truncated: {} bytes, expected the 8 of the header's length", bytes.size());
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  if (length > kMaxHeaderBytes) fail(source, "header's length is {}, expected at most {}", length, kMaxHeaderBytes);
  if (length > bytes.size() - 8) fail(source, "truncated: header of {} bytes, {} are left", length, bytes.size() - 8);
  const auto data = bytes.subspan(8 + length);
  const Json header = parse_header(source, {reinterpret_cast<const char*>(bytes.data()) + 8, length});

  std::vector<Array> arrays;
  std::vector<Extent> extents;
  for (const auto& [name, json] : header.items()) {
    if (name == kMetadata) continue;
    const std::string where = fmt::format("{}:{}", source, shown_name(name));
    const Entry entry = parse_entry(where, json);
    if (entry.begin > entry.end || entry.end > data.size()) {
      fail(where, "data_offsets [{}, {}] lie outside the {} bytes of data", entry.begin, entry.end, data.size());
    }
    const auto elements = data.subspan(entry.begin, entry.end - entry.begin);
    const ElementType* type = find_element_type_by_safetensors(entry.dtype);
    if (type) {
      const int64_t expected = checked_num_elements(where, entry.shape, type->bytes) * type->bytes;
      if (static_cast<int64_t>(elements.size()) != expected) {
        fail(where, "data_offsets cover {} bytes, the shape of {} needs {}", elements.size(), entry.dtype, expected);
      }
    } else {
      checked_num_elements(where, entry.shape, 1);
    }
    arrays.push_back(
        make_array(where, name, entry.dtype, type, type ? type->bytes : 1, entry.shape, false, elements, storage));
    extents.push_back({entry.begin, entry.end, name});
  }
  check_extents(source, std::move(extents), data.size());
  return arrays;
}

std::vector<std::byte> to_safetensors(std::span<const Array> arrays) {
  Json header = Json::object();
  uint64_t end = 0;
  for (const Array& array : arrays) {
    const ElementType& type = *find_element_type(array.tensor.dtype);
    const uint64_t begin = end;
    end += static_cast<uint64_t>(num_elements(array.tensor) * type.bytes);
    header[array.name] = {{"dtype", type.safetensors},
                          {"shape", std::span(array.tensor.shape, static_cast<size_t>(array.tensor.ndim))},
                          {"data_offsets", {begin, end}}};
  }
  std::string string = header.dump();
  string.append((8 - string.size() % 8) % 8, ' ');
  std::vector<std::byte> file(8 + string.size() + end);
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<std::byte>(string.size() >> (8 * i) & 255);
  std::memcpy(file.data() + 8, string.data(), string.size());
  std::byte* out = file.data() + 8 + string.size();
  for (const Array& array : arrays) {
    const auto size = static_cast<size_t>(array.element_bytes);
    for (int64_t i = 0; i < num_elements(array.tensor); ++i, out += size) {
      std::memcpy(
          out, static_cast<const std::byte*>(array.tensor.data) + element_index(array.tensor, i) * array.element_bytes,
          size);
    }
  }
  return file;
}

}  // namespace tessella::cli
