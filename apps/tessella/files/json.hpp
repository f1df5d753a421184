// A JSON value to be written: results, and headers of files.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessella::cli {

// Null, a bool, a number, a string, a list, or an object that keeps the order of its keys.
class Json {
 public:
  struct Field;  // of an object: {"seqlen", 4096}

  Json();  // null
  template <std::same_as<bool> Bool>
  Json(Bool value) : Json(Kind::boolean) {  // a pointer is no bool
    integer_ = value;
  }
  Json(int value);
  Json(int64_t value);
  Json(double value);
  Json(const char* value);
  Json(std::string value);
  Json(std::span<const int64_t> values);
  Json(std::initializer_list<Field> fields);
  static Json object();
  static Json list(std::vector<Json> values);

  // Out of line, as everything here: many files make values.
  Json(const Json& other);
  Json(Json&& other) noexcept;
  Json& operator=(const Json& other);
  Json& operator=(Json&& other) noexcept;
  ~Json();

  bool is_null() const { return kind_ == Kind::null; }
  bool is_string() const { return kind_ == Kind::string; }
  int64_t integer() const { return integer_; }
  double number() const;  // of an integer too
  const std::string& string() const { return string_; }

  // Of an object. The first adds the key where it is not there, and makes an object of null; the second has null then.
  Json& operator[](std::string_view key);
  const Json& operator[](std::string_view key) const;
  const std::vector<std::string>& keys() const { return keys_; }

  // Adds to a list, and makes one of null.
  void append(Json value);

  // In one line or, indented, with so many spaces a level. Bytes that are no UTF-8 are replaced.
  std::string dump(int indent = -1) const;

 private:
  enum class Kind { null, boolean, integer, number, string, list, object };
  explicit Json(Kind kind);

  Kind kind_ = Kind::null;
  int64_t integer_ = 0;  // a bool's too
  double number_ = 0;
  std::string string_;
  std::vector<std::string> keys_;  // of an object; values_ are theirs
  std::vector<Json> values_;

  friend struct JsonWriter;
};

struct Json::Field {
  const char* key;
  Json value;
};

}  // namespace tessella::cli
