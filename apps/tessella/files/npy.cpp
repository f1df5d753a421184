#include "files/npy.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "files/conversion.hpp"
#include "files/input_error.hpp"

namespace tessella::cli {
namespace {

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
      if (string_[i] == '\'' || string_[i] == '"') {  // a name may have brackets
        i = string_.find(string_[i], i + 1);
        if (i == std::string_view::npos) break;
      }
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
      if (string_.starts_with('L')) string_.remove_prefix(1);  // as Python 2 wrote it
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

// The header's string. `size` is what there is of the file, `taken` how much of it this takes.
std::string take_header(const std::string& source, uint64_t size, const TakeBytes& take, uint64_t& taken) {
  const auto take_string = [&](uint64_t count) {
    const SharedBytes bytes = take(count);
    taken += count;
    return std::string(reinterpret_cast<const char*>(bytes.bytes.data()), bytes.bytes.size());
  };
  const auto fail_short = [&] {
    throw InputError(fmt::format("{}: truncated: {} bytes, expected a header", source, size));
  };
  const std::string magic = take_string(std::min<uint64_t>(size, 8));
  if (size == 0) throw InputError(fmt::format("{}: is empty, expected a .npy file", source));
  if (!magic.starts_with(kNpyMagic)) {
    throw InputError(fmt::format("{}: no .npy file: the magic \\x93NUMPY is missing", source));
  }
  if (size < 8) fail_short();
  const int version = static_cast<unsigned char>(magic[6]);
  if (version < 1 || version > 3) {
    throw InputError(fmt::format("{}: .npy version is {}, expected 1, 2 or 3", source, version));
  }
  const uint64_t length_bytes = version == 1 ? 2 : 4;
  if (size - taken < length_bytes) fail_short();
  uint64_t length = 0;
  const std::string digits = take_string(length_bytes);
  for (size_t i = 0; i < digits.size(); ++i) length |= uint64_t{static_cast<unsigned char>(digits[i])} << (8 * i);
  if (length > size - taken) {
    throw InputError(fmt::format("{}: truncated: header of {} bytes, {} are left", source, length, size - taken));
  }
  constexpr uint64_t kMost = 1 << 20;  // numpy itself takes 10,000
  if (length > kMost)
    throw InputError(fmt::format("{}: header of {} bytes, expected at most {}", source, length, kMost));
  return take_string(length);
}

}  // namespace

Array read_npy(const ListedArray& listed, uint64_t size, const TakeBytes& take, const ArrayCheck& check) {
  const std::string& source = listed.source;
  uint64_t taken = 0;
  const std::string string = take_header(source, size, take, taken);
  const Header header = HeaderParser(source, string).parse();
  if (!header.descr || !header.fortran_order || !header.shape) {
    throw InputError(fmt::format("{}: .npy header lacks '{}'", source,
                                 !header.descr   ? "descr"
                                 : !header.shape ? "shape"
                                                 : "fortran_order"));
  }
  const StoredType type = stored_type_of_numpy(*header.descr);
  Array array = described_array(source, listed.name, type, *header.shape, *header.fortran_order);
  admit(array, check);
  const auto expected = static_cast<uint64_t>(num_elements(array.tensor) * type.bytes);
  if (size - taken != expected) {
    throw InputError(fmt::format("{}: {}: {} bytes of data, shape ({}) of {} needs {}", source,
                                 size - taken < expected ? "truncated" : "bytes after the array", size - taken,
                                 extents_string(*header.shape), type.name, expected));
  }
  set_elements(array, type, take(expected));
  return array;
}

ListedArray list_npy(const std::string& path, SharedBytes file) {
  return {path, "", path, [file = std::move(file)](const ListedArray& listed, const ArrayCheck& check) {
            SharedBytes left = file;
            const auto take = [&](uint64_t count) {
              const SharedBytes next{left.bytes.first(count), left.storage};
              left.bytes = left.bytes.subspan(count);
              return next;
            };
            return read_npy(listed, file.bytes.size(), take, check);
          }};
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
  copy_row_major(array, file.data() + sizeof prefix + header.size());
  return file;
}

}  // namespace tessella::cli
