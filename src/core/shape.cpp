#include "core/shape.hpp"

#include <string>

#include "core/arguments.hpp"
#include "core/error.hpp"
#include "core/kernel.hpp"
#include "core/message.hpp"
#include "core/operation_type.hpp"

namespace tessella::core {

ShapeFacts facts(const Shape& shape) { return shape.type().facts(shape.data()); }

Shape shape(const Arguments& arguments) { return arguments.type().shape(arguments.data()); }
ShapeFacts facts(const Arguments& arguments) { return arguments.type().facts_of_call(arguments.data()); }

void Shape::fail_type() { throw Error(ErrorCode::internal, "a shape is of another operation"); }
void Arguments::fail_type() { throw Error(ErrorCode::internal, "arguments are of another operation"); }

std::string names(Features features) {
  std::string string;
  for (const FeatureName& entry : kFeatureNames) {
    if (!features.has(entry.feature)) continue;
    if (!string.empty()) string += ' ';
    string += entry.name;
  }
  return string.empty() ? "none" : string;
}

// "f64, f32 or bf16", of bits per DType.
std::string names_of_dtypes(uint32_t dtypes) {
  dtypes &= kAllDTypes;
  std::string string;
  for (auto value = static_cast<int32_t>(DType::f64); value <= static_cast<int32_t>(kLastDType); ++value) {
    const auto dtype = static_cast<DType>(value);
    if ((dtypes & dtype_bit(dtype)) == 0) continue;
    dtypes &= ~dtype_bit(dtype);
    string += message(string.empty() ? "" : dtypes == 0 ? " or " : ", ", name(dtype));
  }
  return string;
}

}  // namespace tessella::core
