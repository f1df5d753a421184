#include "files/npy.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cctype>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "files/input_error.hpp"
#include "files/printable.hpp"

namespace tessella::cli {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";

struct Header {
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> shape;
};

// The one shape of Python literal that numpy writes: {'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }
class HeaderParser {
 public:
  HeaderParser(const std::string& source, std::string_view string) : source_(source), string_(string) {}

  Header parse() {
    Header header;
    expect('{');
    while (!accept('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr") {
        header.descr = peek() == '[' ? record() : quoted();
      } else if (key == "fortran_order") {
        header.fortran_order = boolean();
      } else if (key == "shape") {
        header.shape = tuple();
      } else {
        fail(fmt::format("key '{}'", key), "descr, fortran_order and shape");
      }
      if (!accept(',') && peek() != '}') fail(near(), "',' or '}'");
    }
    if (peek() != '\0') fail(near(), "the end of the header");
    return header;
  }

 private:
  char peek() {
    while (!string_.empty() && (string_.front() == ' ' || string_.front() == '\n' || string_.front() == '\t')) {
      string_.remove_prefix(1);
    }
    return string_.empty() ? '\0' : string_.front();
  }
  bool accept(char wanted) {
    if (peek() != wanted || wanted == '\0') return false;
    string_.remove_prefix(1);
    return true;
  }
  void expect(char wanted) {
    if (!accept(wanted)) fail(near(), fmt::format("'{}'", wanted));
  }
  std::string quoted() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') fail(near(), "a string in quotes");
    const size_t end = string_.find(quote, 1);
    if (end == std::string_view::npos) fail("a string without an end", "a closing quote");
    std::string value(string_.substr(1, end - 1));
    string_.remove_prefix(end + 1);
    return value;
  }
  // A record's list of fields, as it stands.
  std::string record() {
    int depth = 0;
    for (size_t i = 0; i < string_.size(); ++i) {
      if (string_[i] == '[') ++depth;
      if (string_[i] != ']' || --depth > 0) continue;
      const std::string fields(string_.substr(0, i + 1));
      string_.remove_prefix(i + 1);
      return fields;
    }
    fail("a record type without an end", "a closing ]");
  }
  bool boolean() {
    for (const auto& [word, value] : {std::pair{std::string_view("True"), true}, {"False", false}}) {
      if (peek() != '\0' && string_.starts_with(word)) {
        string_.remove_prefix(word.size());
        return value;
      }
    }
    fail(near(), "True or False");
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> values;
    expect('(');
    while (!accept(')')) {
      peek();
      int64_t value = 0;
      const auto [end, error] = std::from_chars(string_.data(), string_.data() + string_.size(), value);
      if (error != std::errc()) fail(near(), "an extent of 63 bits");
      string_.remove_prefix(static_cast<size_t>(end - string_.data()));
      values.push_back(value);
      if (!accept(',') && peek() != ')') fail(near(), "',' or ')'");
    }
    return values;
  }
  std::string near() {
    if (peek() == '\0') return "the end";
    std::string shown;
    for (const char c : string_.substr(0, 16)) shown += c >= ' ' && c <= '~' ? c : '?';
    return fmt::format("'{}'", shown);
  }
  [[noreturn]] void fail(const std::string& got, const std::string& expected) {
    throw InputError(fmt::format("{}: .npy header has {}, expected {}", source_, got, expected));
  }

  const std::string& source_;
  std::string_view string_;
};

// Bytes of one element, from the number at the end of descr: raw types are told apart by nothing else. 0 where numpy
// has such elements and nothing here can use them: objects, records, other byte orders.
int64_t element_bytes(const std::string& source, std::string_view descr) {
  if (descr.starts_with('[')) return 0;
  int64_t bytes = 0;
  const bool plain = descr.size() >= 2 && std::string_view("<>|=").find(descr[0]) != std::string_view::npos &&
                     std::isalpha(static_cast<unsigned char>(descr[1])) != 0;
  if (plain && descr.size() >= 3) std::from_chars(descr.data() + 2, descr.data() + descr.size(), bytes);
  if (plain && (descr[1] == 'O' || (descr[0] == '>' && bytes > 1))) return 0;
  if (plain && descr[1] == 'U') bytes *= 4;  // characters
  if (!plain || bytes <= 0 || bytes > 1 << 20) {
    throw InputError(fmt::format("{}: .npy element type is '{}', expected one such as <f4, <f2 or |V2", source, descr));
  }
  return bytes;
}

}  // namespace

Array read_npy(const std::string& source, const std::string& name, std::span<const std::byte> bytes,
               std::shared_ptr<const void> storage) {
  const std::string_view string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!string.starts_with(kMagic))
    throw InputError(fmt::format("{}: no .npy file: the magic \\x93NUMPY is missing", source));
  if (string.size() < 10)
    throw InputError(fmt::format("{}: truncated: {} bytes, expected a header", source, string.size()));
  const int version = static_cast<unsigned char>(string[6]);
  if (version < 1 || version > 3) {
    throw InputError(fmt::format("{}: .npy version is {}, expected 1, 2 or 3", source, version));
  }
  const size_t length_bytes = version == 1 ? 2 : 4;
  const size_t start = 8 + length_bytes;
  if (string.size() < start)
    throw InputError(fmt::format("{}: truncated: {} bytes, expected a header", source, string.size()));
  size_t length = 0;
  for (size_t i = 0; i < length_bytes; ++i) length |= size_t{static_cast<unsigned char>(string[8 + i])} << (8 * i);
  if (length > string.size() - start) {
    throw InputError(
        fmt::format("{}: truncated: header of {} bytes, {} are left", source, length, string.size() - start));
  }

  const Header header = HeaderParser(source, string.substr(start, length)).parse();
  if (!header.descr || !header.fortran_order || !header.shape) {
    throw InputError(fmt::format("{}: .npy header lacks '{}'", source,
                                 !header.descr   ? "descr"
                                 : !header.shape ? "shape"
                                                 : "fortran_order"));
  }
  const std::string& descr = *header.descr;
  const int64_t size = element_bytes(source, descr);
  if (size == 0) {
    Array unread{source, name, shown_name(descr) + (descr[0] == '>' ? " (big-endian)" : ""), 0, {}, std::move(storage)};
    unread.tensor.ndim = 1;  // no elements
    return unread;
  }
  const int64_t expected = checked_num_elements(source, *header.shape, size) * size;
  const auto data = bytes.subspan(start + length);
  if (static_cast<int64_t>(data.size()) != expected) {
    throw InputError(fmt::format("{}: {}: {} bytes of data, shape ({}) of {} needs {}", source,
                                 static_cast<int64_t>(data.size()) < expected ? "truncated" : "bytes after the array",
                                 data.size(), fmt::join(*header.shape, ", "), descr, expected));
  }
  return make_array(source, name, descr, find_element_type_by_numpy(descr), size, *header.shape, *header.fortran_order,
                    data, std::move(storage));
}

std::vector<std::byte> to_npy(const Array& array) {
  const tessella_tensor& tensor = array.tensor;
  const ElementType& type = *find_element_type(tensor.dtype);
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", type.numpy, shape_string(tensor));
  header.append(63 - (10 + header.size()) % 64, ' ').append("\n");  // the elements start at a multiple of 64
  const int64_t size = num_elements(tensor);
  std::vector<std::byte> file(10 + header.size() + static_cast<size_t>(size * type.bytes));
  const char prefix[] = {'\x93',
                         'N',
                         'U',
                         'M',
                         'P',
                         'Y',
                         1,
                         0,
                         static_cast<char>(header.size() & 255),
                         static_cast<char>(header.size() >> 8)};
  std::memcpy(file.data(), prefix, sizeof prefix);
  std::memcpy(file.data() + sizeof prefix, header.data(), header.size());
  std::byte* out = file.data() + sizeof prefix + header.size();
  for (int64_t i = 0; i < size; ++i) {
    const auto* element = static_cast<const std::byte*>(tensor.data) + element_index(tensor, i) * type.bytes;
    std::memcpy(out + i * type.bytes, element, static_cast<size_t>(type.bytes));
  }
  return file;
}

}  // namespace tessella::cli
