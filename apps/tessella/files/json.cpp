#include "files/json.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace tessella::cli {

Json::Json() = default;
Json::Json(Kind kind) : kind_(kind) {}
Json::Json(int value) : Json(int64_t{value}) {}
Json::Json(int64_t value) : kind_(Kind::integer), integer_(value) {}
Json::Json(uint64_t value) : kind_(Kind::natural), integer_(static_cast<int64_t>(value)) {}
Json::Json(double value) : kind_(Kind::number), number_(value) {}
Json::Json(const char* value) : kind_(Kind::string), string_(value) {}
Json::Json(std::string value) : kind_(Kind::string), string_(std::move(value)) {}
Json::Json(std::span<const int64_t> values) : kind_(Kind::list), values_(values.begin(), values.end()) {}
Json::Json(std::initializer_list<Field> fields) : kind_(Kind::object) {
  for (const Field& field : fields) {
    keys_.emplace_back(field.key);
    values_.push_back(field.value);
  }
}

Json Json::object() { return Json(Kind::object); }

Json Json::list(std::vector<Json> values) {
  Json json(Kind::list);
  json.values_ = std::move(values);
  return json;
}

Json::Json(const Json& other) = default;
Json::Json(Json&& other) noexcept = default;
Json& Json::operator=(const Json& other) = default;
Json& Json::operator=(Json&& other) noexcept = default;
Json::~Json() = default;

const char* Json::type_name() const {
  switch (kind_) {
    case Kind::null: return "null";
    case Kind::boolean: return "boolean";
    case Kind::string: return "string";
    case Kind::list: return "array";
    case Kind::object: return "object";
    case Kind::integer:
    case Kind::natural:
    case Kind::number: break;
  }
  return "number";
}

double Json::number() const {
  return kind_ == Kind::integer   ? static_cast<double>(integer_)
         : kind_ == Kind::natural ? static_cast<double>(natural())
                                  : number_;
}

void Json::append(std::string key, Json value) {
  keys_.push_back(std::move(key));
  values_.push_back(std::move(value));
}

Json& Json::operator[](std::string_view key) {
  if (kind_ == Kind::null) kind_ = Kind::object;
  const auto found = std::ranges::find(keys_, key);
  if (found != keys_.end()) return values_[static_cast<size_t>(found - keys_.begin())];
  keys_.emplace_back(key);
  return values_.emplace_back();
}

const Json& Json::operator[](std::string_view key) const {
  static const Json kNull;
  const auto found = std::find(keys_.rbegin(), keys_.rend(), key);
  return found == keys_.rend() ? kNull : values_[static_cast<size_t>(keys_.rend() - found) - 1];
}

bool Json::has(std::string_view key) const { return std::ranges::find(keys_, key) != keys_.end(); }

void Json::append(Json value) {
  if (kind_ == Kind::null) kind_ = Kind::list;
  values_.push_back(std::move(value));
}

// The value as the JSON library has it.
struct JsonWriter {
  using Library = nlohmann::ordered_json;

  static Library value_of(const Json& json) {
    switch (json.kind_) {
      case Json::Kind::null: return nullptr;
      case Json::Kind::boolean: return json.integer_ != 0;
      case Json::Kind::integer: return json.integer_;
      case Json::Kind::natural: return json.natural();
      case Json::Kind::number: return json.number_;
      case Json::Kind::string: return json.string_;
      case Json::Kind::list: {
        Library list = Library::array();
        for (const Json& value : json.values_) list.push_back(value_of(value));
        return list;
      }
      case Json::Kind::object: break;
    }
    Library object = Library::object();
    for (size_t i = 0; i < json.keys_.size(); ++i) object[json.keys_[i]] = value_of(json.values_[i]);
    return object;
  }
};

std::string Json::dump(int indent) const {
  return JsonWriter::value_of(*this).dump(indent, ' ', false, JsonWriter::Library::error_handler_t::replace);
}

std::string Json::ascii() const { return JsonWriter::value_of(*this).dump(-1, ' ', true); }

}  // namespace tessella::cli
