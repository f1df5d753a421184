#include "operations/linear/dataflow.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

#include "core/message.hpp"

namespace tessella::core {
namespace {

// Calls fn with each piece between separators.
template <typename Fn>
void for_each_piece(std::string_view text, char separator, Fn&& fn) {
  while (!text.empty()) {
    const size_t end = std::min(text.find(separator), text.size());
    fn(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// "64 cuda.linear_sm90".
std::optional<DataflowChoice> choice_of(std::string_view text) {
  DataflowChoice choice;
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, choice.rows);
  if (error != std::errc() || choice.rows < 1 || after == end || *after != ' ' || after + 1 == end) return std::nullopt;
  choice.kernel.assign(after + 1, end);
  return choice;
}

}  // namespace

std::string dataflow_key(const LinearShape& shape, std::string_view device_name) {
  return message(device_name, ", x ", name(shape.x_shape.dtype), ", w ", name(shape.w_shape.dtype), " (",
                 shape.weight_rows(), ", ", shape.in_features, "), ", name(shape.activation));
}

Dataflow::Dataflow(std::string_view text) {
  for_each_piece(text, '\n', [&](std::string_view line) {
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

std::string Dataflow::text() const {
  std::string text;
  for (const Line& line : lines_) {
    text += line.key;
    for (const DataflowChoice& choice : line.choices) text += message('\t', choice.rows, ' ', choice.kernel);
    text += '\n';
  }
  return text;
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
