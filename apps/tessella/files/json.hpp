// JSON values: results, and headers of files.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessella::cli {

// Null, a bool, a number, a string, a list, or an object that keeps the order of its keys. Natural numbers are whole
// ones that are not negative, up to 2^64 - 1.
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
  Json(uint64_t value);
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
  bool is_natural() const { return kind_ == Kind::natural; }
  bool is_string() const { return kind_ == Kind::string; }
  bool is_list() const { return kind_ == Kind::list; }
  bool is_object() const { return kind_ == Kind::object; }
  const char* type_name() const;  // JSON's: "number", "array"

  int64_t integer() const { return integer_; }
  uint64_t natural() const { return static_cast<uint64_t>(integer_); }
  double number() const;  // of an integer too
  const std::string& string() const { return string_; }

  // Of an object. The first adds the key where it is not there, and makes an object of null; the second has null then.
  Json& operator[](std::string_view key);
  const Json& operator[](std::string_view key) const;
  const std::vector<std::string>& keys() const { return keys_; }
  // Without a search for the key: of a key that is there twice, the const operator[] and the output have the last
  // value.
  void append(std::string key, Json value);

  bool has(std::string_view key) const;

  // Of a list. append() makes one of null.
  const std::vector<Json>& values() const { return values_; }
  void append(Json value);

  // In one line or, indented, with so many spaces a level. Bytes that are no UTF-8 are replaced.
  std::string dump(int indent = -1) const;
  std::string ascii() const;  // in one line, other characters escaped by their number (RFC 8259, section 7)

 private:
  enum class Kind { null, boolean, integer, natural, number, string, list, object };
  explicit Json(Kind kind);

  Kind kind_ = Kind::null;
  int64_t integer_ = 0;  // a bool's and, of the same bits, a natural's too
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
