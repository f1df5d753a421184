// A table of results, printed as text, CSV, JSON or Markdown.
#pragma once

#include <string>
#include <vector>

#include "files/json.hpp"

namespace tessella::cli {

struct Column {
  const char* key;                               // in JSON and CSV
  std::string heading;                           // in text and Markdown; "" = not shown there
  std::string (*format)(const Json&) = nullptr;  // null: the value as it is
  bool left = false;
};

struct Table {
  std::vector<Column> columns;
  std::vector<Json> rows;  // objects; a key that is missing or null prints as "-"
};

enum class TableFormat { text, csv, json, markdown };

std::string table_string(const Table& table);
std::string table_csv(const Table& table);
std::string table_markdown(const Table& table);

// What a command prints: `about` says what was run and on what, and joins the JSON only.
void print_table(const Table& table, TableFormat format, const Json& about);

}  // namespace tessella::cli
