#include "options/attention_options.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>
#include <variant>
#include <vector>

#include "files/input_error.hpp"
#include "options/dtype_string.hpp"
#include "options/mask_string.hpp"
#include "options/number_string.hpp"
#include "options/value_string.hpp"
#include "tessella/arguments.hpp"

namespace tessella::cli {
namespace {

using Options = tessella_attention_options;

using detail::DtypeField;
using detail::SwitchField;
using detail::TensorField;
using detail::WordsField;

using Target = std::variant<float Options::*, int64_t Options::*, uint64_t Options::*, int32_t Options::*,
                            const char * Options::*, WordsField, SwitchField, DtypeField, const TensorField*>;

struct Row {
  std::string name;  // "leftpad-kv"
  Target target;
  const char* help;
};

// Options as the table of arguments has them (src/api/arguments.toml), and then tensors.
std::vector<Row> make_rows() {
  std::vector<Row> rows;
  const auto add = [&](std::string name, Target target, const char* help) {
    std::ranges::replace(name, '_', '-');
    rows.push_back({std::move(name), target, help});
  };
  detail::option_fields(add);
  for (const TensorField& field : detail::kTensorFields) {
    if (field.is_option) add(field.name, &field, field.help);
  }
  return rows;
}

const std::vector<Row>& rows() {
  static const std::vector<Row> rows = make_rows();
  return rows;
}

// What help shows for an option's value.
struct ValueName {
  std::string operator()(float Options::*) const { return "FLOAT"; }
  std::string operator()(int64_t Options::*) const { return "N"; }
  std::string operator()(uint64_t Options::*) const { return "N"; }
  std::string operator()(int32_t Options::*) const { return "N"; }
  std::string operator()(const char* Options::*member) const {
    return member == &Options::kernel ? "KERNEL" : "SOURCE";
  }
  std::string operator()(const WordsField& target) const {
    return fmt::format("{}|{}|{}", target.words[0], target.words[1], target.words[2]);
  }
  std::string operator()(SwitchField) const { return ""; }
  std::string operator()(DtypeField) const { return "DTYPE"; }
  std::string operator()(const TensorField* target) const {
    const bool takes_numbers = target->dtype == TESSELLA_F32 || target->dtype == TESSELLA_I32;
    return takes_numbers ? "NUMBERS|FILE[:NAME]" : "FILE[:NAME]";
  }
};

std::string flag_of(const Row& row) { return fmt::format("--{}", row.name); }

struct Apply {
  Call& call;
  const std::string what;
  const std::string& string;

  void operator()(float Options::*member) const {
    call.options.*member = parse_float(what, string);
    if (member == &Options::scale) call.options.scale_f64 = parse_number(what, string);
  }
  void operator()(int64_t Options::*member) const { call.options.*member = parse_integer(what, string); }
  void operator()(uint64_t Options::*member) const { call.options.*member = parse_unsigned(what, string); }
  void operator()(int32_t Options::*member) const {
    call.options.*member =
        static_cast<int32_t>(parse_integer_between(what, string, 0, std::numeric_limits<int32_t>::max()));
  }
  void operator()(const char* Options::*member) const {
    call.options.*member = call.strings.emplace_back(string).c_str();
  }
  void operator()(const WordsField& target) const {
    const auto* word = std::ranges::find(target.words, string);
    if (word == std::end(target.words)) {
      throw InputError(fmt::format("{} is '{}', expected {}, {} or {}", what, string, target.words[0], target.words[1],
                                   target.words[2]));
    }
    call.options.*target.member = static_cast<int32_t>(word - std::begin(target.words));
  }
  void operator()(SwitchField target) const { call.options.*target.member = 1; }
  void operator()(DtypeField target) const { call.options.*target.member = parse_float_dtype(what, string); }
  void operator()(const TensorField* target) const {
    call.set(target->member, read_values(what, string, target->dtype, call));
  }
};

}  // namespace

bool is_attention_option(std::string_view name) {
  return std::ranges::any_of(rows(), [&](const Row& row) { return row.name == name; });
}

AttentionOptionValues::AttentionOptionValues() = default;
AttentionOptionValues::AttentionOptionValues(const AttentionOptionValues& other) = default;
AttentionOptionValues::~AttentionOptionValues() = default;

void AttentionOptionValues::add_without_mask_to(Command& command) {
  command.add_option("--device", device_, "cpu|cuda[:N]", "where the call runs");
  for (const Row& row : rows()) {
    if (std::holds_alternative<SwitchField>(row.target)) {
      command.add_flag(flag_of(row), flags_[row.name], row.help, "Attention");
    } else {
      command.add_option(flag_of(row), values_[row.name], std::visit(ValueName(), row.target), row.help, "Attention");
    }
  }
}

void AttentionOptionValues::add_to(Command& command) {
  command.add_option("--mask", masks_, "MASK", kMaskHelp);
  add_without_mask_to(command);
}

std::string AttentionOptionValues::take_kernel() { return std::exchange(values_["kernel"], ""); }

bool AttentionOptionValues::has_tensors() const {
  return std::ranges::any_of(rows(), [&](const Row& row) {
    const auto value = values_.find(row.name);
    return std::holds_alternative<const TensorField*>(row.target) && value != values_.end() && !value->second.empty();
  });
}

void AttentionOptionValues::apply(Call& call) const {
  for (const Row& row : rows()) {
    const auto value = values_.find(row.name);
    const auto flag = flags_.find(row.name);
    const bool given = (value != values_.end() && !value->second.empty()) || (flag != flags_.end() && flag->second);
    static const std::string kFlag = "1";
    if (given) std::visit(Apply{call, flag_of(row), value != values_.end() ? value->second : kFlag}, row.target);
  }
  for (const std::string& mask : masks_) apply_mask(mask, call);
}

}  // namespace tessella::cli
