#include "files/safetensors.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "files/conversion.hpp"
#include "files/input_error.hpp"
#include "files/printable.hpp"

namespace tessella::cli {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr const char* kMetadata = "__metadata__";

constexpr int kMostDepth = 64;  // the format needs 3

template <typename... Values>
[[noreturn]] void fail(const std::string& source, fmt::format_string<Values...> string, Values&&... values) {
  throw InputError(fmt::format("{}: {}", source, fmt::format(string, std::forward<Values>(values)...)));
}

std::string where_of(const std::string& path, const std::string& name) {
  return fmt::format("{}:{}", path, shown_name(name));
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

// What the header says of one tensor, JSON types checked.
struct Entry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t begin = 0;
  uint64_t end = 0;
};

Entry parse_entry(const std::string& source, const std::string& name, const Json& json) {
  if (!json.is_object()) fail(source, "header entry is a JSON {}, expected an object", json.type_name());
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!json.contains(key)) fail(source, "header entry lacks '{}'", key);
  }
  if (!json["dtype"].is_string()) fail(source, "dtype is a JSON {}, expected a string", json["dtype"].type_name());
  const Json& shape = json["shape"];
  const Json& offsets = json["data_offsets"];
  if (!shape.is_array()) fail(source, "shape is a JSON {}, expected a list", shape.type_name());
  if (!offsets.is_array() || offsets.size() != 2) fail(source, "data_offsets is no list of two numbers");
  Entry entry{name,
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

// Tensors in the header's order. Each is taken out of the parsed JSON as soon as it ends, so the work is linear in
// their number.
std::vector<Entry> parse_header(const std::string& source, std::string_view string) {
  std::vector<Entry> entries;
  std::string name;
  const auto take = [&](int depth, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    const bool begins = event == Event::object_start || event == Event::array_start;
    if (begins && depth >= kMostDepth) fail(source, "safetensors header nests deeper than {}", kMostDepth);
    if (depth == 0 && event != Event::object_start && event != Event::object_end) {
      fail(source, "safetensors header is a JSON {}, expected an object",
           event == Event::value ? parsed.type_name() : "array");
    }
    if (depth != 1) return true;
    if (event == Event::key) name = parsed.get<std::string>();
    if (begins || event == Event::key) return true;
    if (name != kMetadata) entries.push_back(parse_entry(where_of(source, name), name, parsed));
    return false;  // not kept
  };
  if (Json::parse(string, take, false).is_discarded()) fail(source, "safetensors header is no JSON");
  return entries;
}

// The format wants every byte of the data to belong to exactly one tensor.
void check_extents(const std::string& source, const std::vector<Entry>& entries, uint64_t data_bytes) {
  std::vector<const Entry*> sorted;
  for (const Entry& entry : entries) {
    if (entry.begin > entry.end || entry.end > data_bytes) {
      fail(where_of(source, entry.name), "data_offsets [{}, {}] lie outside the {} bytes of data", entry.begin,
           entry.end, data_bytes);
    }
    sorted.push_back(&entry);
  }
  std::ranges::sort(sorted, {}, [](const Entry* entry) { return std::pair(entry->begin, entry->end); });
  uint64_t end = 0;
  for (const Entry* entry : sorted) {
    if (entry->begin < end)
      fail(source, "'{}' begins at byte {} of the data, inside another tensor", shown_name(entry->name), entry->begin);
    if (entry->begin > end) fail(source, "bytes {} to {} of the data belong to no tensor", end, entry->begin);
    end = entry->end;
  }
  if (end != data_bytes) fail(source, "{} bytes of data, the header describes {}", data_bytes, end);
}

struct Header {
  SharedBytes file;
  std::vector<Entry> entries;
  std::span<const std::byte> data;
};

Array read_tensor(const Header& header, const Entry& entry, const ListedArray& listed, const ArrayCheck& check) {
  const StoredType type = stored_type_of_safetensors(entry.dtype);
  Array array = described_array(listed.source, listed.name, type, entry.shape, false);
  admit(array, check);
  const auto elements = header.data.subspan(entry.begin, entry.end - entry.begin);
  const int64_t expected = num_elements(array.tensor) * type.bytes;
  if (static_cast<int64_t>(elements.size()) != expected) {
    fail(listed.source, "data_offsets cover {} bytes, the shape of {} needs {}", elements.size(), entry.dtype,
         expected);
  }
  set_elements(array, type, {elements, header.file.storage});
  return array;
}

uint64_t header_length(std::span<const std::byte> bytes) {
  uint64_t length = 0;
  for (size_t i = 0; i < 8; ++i) length |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  return length;
}

}  // namespace

bool is_safetensors(std::span<const std::byte> bytes) {
  return bytes.size() > 8 && header_length(bytes) <= bytes.size() - 8 && std::to_integer<char>(bytes[8]) == '{';
}

std::vector<ListedArray> list_safetensors(const std::string& path, const SharedBytes& file) {
  const std::span<const std::byte> bytes = file.bytes;
  if (bytes.size() < 8) fail(path, "truncated: {} bytes, expected the 8 of the header's length", bytes.size());
  const uint64_t length = header_length(bytes);
  if (length > kMaxHeaderBytes) fail(path, "header's length is {}, expected at most {}", length, kMaxHeaderBytes);
  if (length > bytes.size() - 8) fail(path, "truncated: header of {} bytes, {} are left", length, bytes.size() - 8);
  std::vector<Entry> entries = parse_header(path, {reinterpret_cast<const char*>(bytes.data()) + 8, length});
  const auto header = std::make_shared<const Header>(Header{file, std::move(entries), bytes.subspan(8 + length)});
  check_extents(path, header->entries, header->data.size());

  std::vector<ListedArray> arrays;
  for (size_t i = 0; i < header->entries.size(); ++i) {
    const std::string& name = header->entries[i].name;
    arrays.push_back(
        {where_of(path, name), name, path, [header, i](const ListedArray& listed, const ArrayCheck& check) {
           return read_tensor(*header, header->entries[i], listed, check);
         }});
  }
  return arrays;
}

std::vector<std::byte> to_safetensors(std::span<const Array> arrays) {
  auto header = nlohmann::ordered_json::object();
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
    copy_row_major(array, out);
    out += num_elements(array.tensor) * array.element_bytes;
  }
  return file;
}

}  // namespace tessella::cli
