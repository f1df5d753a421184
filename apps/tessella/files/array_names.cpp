#include "files/array_names.hpp"

#include <fmt/core.h>

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
ListedArray* find_only(std::span<ListedArray> arrays, std::string_view what, const Matches& matches) {
  ListedArray* found = nullptr;
  for (ListedArray& array : arrays) {
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

std::string names_of(std::span<const ListedArray> arrays) {
  constexpr size_t kMost = 20;
  std::string names;
  for (const ListedArray& array : arrays.first(std::min(arrays.size(), kMost))) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", array.name.empty() ? array.source : shown_name(array.name));
  }
  if (arrays.size() > kMost) names += fmt::format(" and {} others", arrays.size() - kMost);
  return names;
}

bool has_own_name(const ListedArray& array) {
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

ListedArray* find_named(std::span<ListedArray> arrays, std::span<const std::string_view> words) {
  ListedArray* exact = find_only(arrays, words[0], [&](const ListedArray& array) { return array.name == words[0]; });
  if (exact != nullptr) return exact;
  return find_only(arrays, words[0], [&](const ListedArray& array) { return is_one_of(array.name, words); });
}

}  // namespace tessella::cli
