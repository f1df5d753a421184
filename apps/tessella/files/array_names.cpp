#include "files/array_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "files/input_error.hpp"
#include "files/printable.hpp"

namespace tessella::cli {
namespace {

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

bool equal_without_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) { return lower(x) == lower(y); });
}

bool is_one_of(std::string_view name, std::span<const std::string_view> words) {
  const std::string_view end = name.substr(name.find_last_of("./") + 1);  // npos + 1 is 0
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) {
    return equal_without_case(name, word) || equal_without_case(end, word);
  });
}

template <typename Matches>
Array* find_only(std::span<Array> arrays, std::string_view what, const Matches& matches) {
  Array* found = nullptr;
  for (Array& array : arrays) {
    if (!matches(array)) continue;
    if (found != nullptr) {
      throw InputError(fmt::format("{} and {} may both be {}, expected one; the files have {}", found->source,
                                   array.source, what, names_of(arrays)));
    }
    found = &array;
  }
  return found;
}

}  // namespace

std::string names_of(std::span<const Array> arrays) {
  std::string names;
  for (const Array& array : arrays) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", array.name.empty() ? array.source : shown_name(array.name));
  }
  return names;
}

bool has_own_name(const Array& array) {
  constexpr std::string_view kMadeUp = "arr_";
  const std::string_view name = array.name;
  if (!name.starts_with(kMadeUp)) return !name.empty();
  return name.find_first_not_of("0123456789", kMadeUp.size()) != std::string_view::npos;
}

bool has_word(std::string_view name, std::span<const std::string_view> words) {
  const auto is_of_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  return std::any_of(words.begin(), words.end(), [&](std::string_view word) {
    for (size_t begin = 0; begin + word.size() <= name.size(); ++begin) {
      const size_t end = begin + word.size();
      const bool is_whole =
          (begin == 0 || !is_of_word(name[begin - 1])) && (end == name.size() || !is_of_word(name[end]));
      if (is_whole && equal_without_case(name.substr(begin, word.size()), word)) return true;
    }
    return false;
  });
}

Array* find_named(std::span<Array> arrays, std::span<const std::string_view> words) {
  Array* exact = find_only(arrays, words[0], [&](const Array& array) { return array.name == words[0]; });
  if (exact != nullptr) return exact;
  return find_only(arrays, words[0], [&](const Array& array) { return is_one_of(array.name, words); });
}

}  // namespace tessella::cli
