#include "files/safetensors.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "files/conversion.hpp"
#include "files/input_error.hpp"
#include "files/json.hpp"
#include "files/printable.hpp"
#include "files/safetensors_header.hpp"

namespace tessella::cli {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

template <typename... Values>
[[noreturn]] void fail(const std::string& source, fmt::format_string<Values...> string, Values&&... values) {
  throw InputError(fmt::format("{}: {}", source, fmt::format(string, std::forward<Values>(values)...)));
}

// The format wants every byte of the data to belong to exactly one tensor.
void check_extents(const std::string& source, const std::vector<SafetensorsEntry>& entries, uint64_t data_bytes) {
  std::vector<const SafetensorsEntry*> sorted;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin > entry.end || entry.end > data_bytes) {
      fail(entry.source, "data_offsets [{}, {}] lie outside the {} bytes of data", entry.begin, entry.end, data_bytes);
    }
    sorted.push_back(&entry);
  }
  std::ranges::sort(sorted, {}, [](const SafetensorsEntry* entry) { return std::pair(entry->begin, entry->end); });
  uint64_t end = 0;
  for (const SafetensorsEntry* entry : sorted) {
    if (entry->begin < end)
      fail(source, "'{}' begins at byte {} of the data, inside another tensor", shown_name(entry->name), entry->begin);
    if (entry->begin > end) fail(source, "bytes {} to {} of the data belong to no tensor", end, entry->begin);
    end = entry->end;
  }
  if (end != data_bytes) fail(source, "{} bytes of data, the header describes {}", data_bytes, end);
}

struct Header {
  SharedBytes file;
  std::vector<SafetensorsEntry> entries;
  std::span<const std::byte> data;
};

Array read_tensor(const Header& header, const SafetensorsEntry& entry, const ListedArray& listed,
                  const ArrayCheck& check) {
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
  std::vector<SafetensorsEntry> entries =
      parse_safetensors_header(path, {reinterpret_cast<const char*>(bytes.data()) + 8, length});
  const auto header = std::make_shared<const Header>(Header{file, std::move(entries), bytes.subspan(8 + length)});
  check_extents(path, header->entries, header->data.size());

  std::vector<ListedArray> arrays;
  for (size_t i = 0; i < header->entries.size(); ++i) {
    const SafetensorsEntry& entry = header->entries[i];
    arrays.push_back({entry.source, entry.name, path, [header, i](const ListedArray& listed, const ArrayCheck& check) {
                        return read_tensor(*header, header->entries[i], listed, check);
                      }});
  }
  return arrays;
}

std::vector<std::byte> to_safetensors(std::span<const Array> arrays) {
  Json header = Json::object();
  int64_t end = 0;
  for (const Array& array : arrays) {
    const ElementType& type = *find_element_type(array.tensor.dtype);
    const int64_t begin = end;
    end += num_elements(array.tensor) * type.bytes;
    const int64_t offsets[] = {begin, end};
    header[array.name] = {
        {"dtype", type.safetensors},
        {"shape", std::span<const int64_t>(array.tensor.shape, static_cast<size_t>(array.tensor.ndim))},
        {"data_offsets", std::span<const int64_t>(offsets)}};
  }
  std::string string = header.dump();
  string.append((8 - string.size() % 8) % 8, ' ');
  std::vector<std::byte> file(8 + string.size() + static_cast<size_t>(end));
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
