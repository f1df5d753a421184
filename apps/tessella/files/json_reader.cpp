#include "files/json_reader.hpp"

#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace tessella::cli {
namespace {

using Take = std::function<void(const std::string& name, const Json& value)>;

constexpr size_t kMostDepth = 64;  // values are copied and freed by recursion

// Takes what the parser finds; false stops it.
class Reader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Reader(const Take& take) : take_(take) {}
  const std::string& problem() const { return problem_; }

  bool null() override { return add({}); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override { return add(value); }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(nlohmann::json::binary_t&) override { return false; }

  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::list({})); }
  bool key(std::string& key) override {
    keys_.back() = std::move(key);
    return true;
  }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override {
    return fail("is no JSON");
  }

 private:
  bool fail(std::string problem) {
    problem_ = std::move(problem);
    return false;
  }

  bool open(Json value) {
    if (open_.size() >= kMostDepth) return fail(fmt::format("nests deeper than {}", kMostDepth));
    if (open_.empty() && !value.is_object()) return refuse(value);
    open_.push_back(std::move(value));
    keys_.emplace_back();
    return true;
  }

  bool close() {
    Json value = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    return open_.empty() || add(std::move(value));
  }

  // A value that has ended, to the innermost one that has not.
  bool add(Json value) {
    if (open_.empty()) return refuse(value);
    if (open_.size() == 1) {
      take_(keys_.back(), value);
    } else if (open_.back().is_object()) {
      open_.back().append(std::move(keys_.back()), std::move(value));
    } else {
      open_.back().append(std::move(value));
    }
    return true;
  }

  bool refuse(const Json& value) { return fail(fmt::format("is a JSON {}, expected an object", value.type_name())); }

  const Take& take_;
  std::string problem_;
  std::vector<Json> open_;         // the outermost is left empty
  std::vector<std::string> keys_;  // the last of each, where it is an object
};

}  // namespace

std::string read_members(std::string_view string, const Take& take) {
  Reader reader(take);
  nlohmann::json::sax_parse(string, &reader);
  return reader.problem();
}

}  // namespace tessella::cli
