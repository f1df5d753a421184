// A table of results, printed as text, CSV, JSON or Markdown.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessella::cli {

using Json = nlohmann::ordered_json;

struct Column {
  std::string key;                                 // in JSON and CSV
  std::string heading;                             // in text and Markdown; "" = not shown there
  std::function<std::string(const Json&)> format;  // empty: the value as it is
  bool left = false;
};

struct Table {
  std::vector<Column> columns;
  std::vector<Json> rows;  // objects; a key that is missing or null prints as "-"
};

enum class TableFormat { text, csv, json, markdown };

// Indented; bytes that are no UTF-8 are replaced.
std::string json_string(const Json& json);

std::string table_string(const Table& table);
std::string table_csv(const Table& table);
std::string table_markdown(const Table& table);

// What a command prints: `about` says what was run and on what, and joins the JSON only.
void print_table(const Table& table, TableFormat format, const Json& about);

}  // namespace tessella::cli
