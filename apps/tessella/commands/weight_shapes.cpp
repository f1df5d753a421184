#include "commands/weight_shapes.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "files/input_error.hpp"
#include "options/number_string.hpp"

namespace tessella::cli {
namespace {

// The four matrices of a model's layer: q, k and v together, their output, gate and up together, down.
struct Model {
  std::string name;
  std::vector<WeightShape> shapes;
};
const std::vector<Model>& models() {
  static const std::vector<Model> models = {
      {"llama2-7b", {{12288, 4096}, {4096, 4096}, {11008, 4096}, {4096, 11008}}},
      {"codellama-34b", {{10240, 8192}, {8192, 8192}, {44032, 8192}, {8192, 22016}}}};
  return models;
}

std::string model_names() {
  std::string names;
  for (const Model& model : models()) names += fmt::format("{}{}", names.empty() ? "" : ", ", model.name);
  return names;
}

WeightShape parse_weight_shape(const std::string& word) {
  const size_t x = word.find('x');
  if (x == 0 || x == std::string::npos) {
    throw InputError(fmt::format("a shape is '{}', expected OUTxIN, the rows and columns of w, as 12288x4096, or {}",
                                 word, model_names()));
  }
  return {parse_integer_between("a shape's rows", word.substr(0, x), 1, INT32_MAX),
          parse_integer_between("a shape's columns", word.substr(x + 1), 1, INT32_MAX)};
}

}  // namespace

std::string WeightShape::name() const { return fmt::format("{}x{}", rows, columns); }

std::vector<WeightShape> parse_weight_shapes(const std::vector<std::string>& words, bool is_gated) {
  std::vector<WeightShape> shapes;
  for (const std::string& word : words) {
    const auto model = std::ranges::find(models(), word, &Model::name);
    if (model != models().end()) {
      shapes.insert(shapes.end(), model->shapes.begin(), model->shapes.end());
    } else {
      shapes.push_back(parse_weight_shape(word));
    }
  }
  for (const WeightShape& shape : shapes) {
    if (!is_gated || shape.rows % 2 == 0) continue;
    throw InputError(fmt::format("a shape is '{}' with --swiglu, expected an even number of rows", shape.name()));
  }
  return shapes;
}

std::string weight_shapes_help() {
  return fmt::format("rows and columns of w, as 12288x4096, or all of a model: {}", model_names());
}

}  // namespace tessella::cli
