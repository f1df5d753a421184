#include "report/table.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "report/output.hpp"

namespace tessella::cli {
namespace {

std::string plain_string(const Json& value) { return value.is_string() ? value.string() : value.dump(); }

std::string cell_string(const Column& column, const Json& row) {
  const Json& value = row[column.key];
  if (value.is_null()) return "-";
  if (column.format != nullptr) return column.format(value);
  return plain_string(value);
}

std::vector<Column> shown_columns(const Table& table) {
  std::vector<Column> shown;
  for (const Column& column : table.columns) {
    if (!column.heading.empty()) shown.push_back(column);
  }
  return shown;
}

std::string csv_cell(const Json& value) {
  if (value.is_null()) return "";
  const std::string string = plain_string(value);
  if (string.find_first_of(",\"\n") == std::string::npos) return string;
  std::string quoted = "\"";
  for (const char c : string) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

}  // namespace

std::string table_string(const Table& table) {
  const std::vector<Column> columns = shown_columns(table);
  std::vector<std::vector<std::string>> lines(1);
  for (const Column& column : columns) lines[0].push_back(column.heading);
  for (const Json& row : table.rows) {
    std::vector<std::string>& line = lines.emplace_back();
    for (const Column& column : columns) line.push_back(cell_string(column, row));
  }
  std::string string;
  for (const auto& line : lines) {
    std::string out;
    for (size_t i = 0; i < columns.size(); ++i) {
      size_t width = 0;
      for (const auto& other : lines) width = std::max(width, other[i].size());
      out += columns[i].left ? fmt::format("{:<{}}", line[i], width) : fmt::format("{:>{}}", line[i], width);
      out += "  ";
    }
    string += out.substr(0, out.find_last_not_of(' ') + 1) + "\n";
  }
  return string;
}

std::string table_csv(const Table& table) {
  std::string string;
  for (const Column& column : table.columns) string += std::string(string.empty() ? "" : ",") + column.key;
  for (const Json& row : table.rows) {
    std::string line;
    for (const Column& column : table.columns) {
      if (&column != table.columns.data()) line += ',';
      line += csv_cell(row[column.key]);
    }
    string += '\n';
    string += line;
  }
  return string + "\n";
}

std::string table_markdown(const Table& table) {
  const std::vector<Column> columns = shown_columns(table);
  std::string string = "|";
  for (const Column& column : columns) string += " " + column.heading + " |";
  string += "\n|";
  for (const Column& column : columns) string += column.left ? "---|" : "--:|";
  for (const Json& row : table.rows) {
    string += "\n|";
    for (const Column& column : columns) string += fmt::format(" {} |", cell_string(column, row));
  }
  return string + "\n";
}

void print_table(const Table& table, TableFormat format, const Json& about) {
  switch (format) {
    case TableFormat::text: put("{}", table_string(table)); break;
    case TableFormat::csv: put("{}", table_csv(table)); break;
    case TableFormat::markdown: put("{}", table_markdown(table)); break;
    case TableFormat::json: {
      Json document = about;
      document["results"] = Json::list(table.rows);
      put("{}\n", document.dump(2));
      break;
    }
  }
}

}  // namespace tessella::cli
