#include "operations/linear/dataflow.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/message.hpp"

namespace tessella::core {
namespace {

// Calls fn with each piece between separators.
template <typename Fn>
void for_each_piece(std::string_view string, char separator, Fn&& fn) {
  while (!string.empty()) {
    const size_t end = std::min(string.find(separator), string.size());
    fn(string.substr(0, end));
    string.remove_prefix(std::min(end + 1, string.size()));
  }
}

// "64 cuda.linear_sm90".
std::optional<DataflowChoice> choice_of(std::string_view string) {
  DataflowChoice choice;
  const char* const end = string.data() + string.size();
  const auto [after, error] = std::from_chars(string.data(), end, choice.rows);
  if (error != std::errc() || choice.rows < 1 || after == end || *after != ' ' || after + 1 == end) return std::nullopt;
  choice.kernel.assign(after + 1, end);
  return choice;
}

}  // namespace

std::string dataflow_key(const LinearShape& shape, std::string_view device_name) {
  return message(device_name, ", x ", name(shape.x_shape.dtype), ", w ", name(shape.w_shape.dtype), " (",
                 shape.weight_rows(), ", ", shape.in_features, "), ", name(shape.activation));
}

Dataflow::Dataflow(std::string_view lines) {
  for_each_piece(lines, '\n', [&](std::string_view line) {
    Line read;
    bool is_whole = true;
    int64_t rows = 0;
    for_each_piece(line, '\t', [&](std::string_view piece) {
      if (read.key.empty()) {
        read.key = piece;
        return;
      }
      std::optional<DataflowChoice> choice = choice_of(piece);
      is_whole = is_whole && choice && choice->rows > rows;
      if (!is_whole) return;
      rows = choice->rows;
      read.choices.push_back(std::move(*choice));
    });
    if (is_whole && !read.choices.empty()) set(read.key, std::move(read.choices));
  });
}

std::string Dataflow::string() const {
  std::string string;
  for (const Line& line : lines_) {
    string += line.key;
    for (const DataflowChoice& choice : line.choices) string += message('\t', choice.rows, ' ', choice.kernel);
    string += '\n';
  }
  return string;
}

void Dataflow::set(const std::string& key, std::vector<DataflowChoice> choices) {
  const auto line = std::ranges::find(lines_, key, &Line::key);
  if (line != lines_.end()) {
    line->choices = std::move(choices);
  } else {
    lines_.push_back({key, std::move(choices)});
  }
}

std::optional<DataflowChoice> Dataflow::find(const std::string& key, int64_t rows) const {
  const auto line = std::ranges::find(lines_, key, &Line::key);
  if (line == lines_.end()) return std::nullopt;
  const auto choice = std::ranges::find_if(line->choices, [&](const DataflowChoice& c) { return rows <= c.rows; });
  return choice == line->choices.end() ? std::nullopt : std::optional(*choice);
}

}  // namespace tessella::core
