// Preconditions of linear on values: ranges, sizes, memory.
#include <string_view>

#include "core/error.hpp"
#include "core/limits.hpp"
#include "core/message.hpp"
#include "core/overlaps.hpp"
#include "operations/linear/linear.hpp"

namespace tessella::core {

void Linear::validate_sizes(const LinearShape& p, const char* function) {
  at_most(function, "the rows of x", p.rows, kMostRows);
  at_most(function, "in_features", p.in_features, kMostRows);
  at_most(function, "the rows of w", p.weight_rows(), kMostRows);
}

void Linear::validate(const LinearArguments& a, const char* function) {
  validate_resources(a, function);
  validate_sizes(a, function);
  validate_outputs_not_folded(a, function);
  // Each element of out is written once its residual is read.
  validate_outputs(a, function, [&](const FieldName& output, const FieldName& input) {
    if (std::string_view(input.owner) != "residual") return false;
    if (is_same_view(a.residual, a.out, 1, a.rows, 1)) return true;
    fail_overlap(function, output, input, ", or the same view");
  });
}

}  // namespace tessella::core
