// Preconditions of merge on values: ranges, sizes, memory.
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/limits.hpp"
#include "core/message.hpp"
#include "core/overlaps.hpp"
#include "operations/merge/merge.hpp"

namespace tessella::core {
namespace {

class MergeValidator {
 public:
  MergeValidator(const MergeArguments& arguments, const char* function) : a_(arguments), function_(function) {}

  void run() const {
    validate_resources(a_, function_);
    Merge::validate_sizes(a_, function_);
    validate_outputs_not_folded(a_, function_);
    validate_outputs(a_, function_,
                     [&](const FieldName& output, const FieldName& input) { return may_be(output, input); });
  }

 private:
  // An output may be the very view of one of its states, as every element is read before it is written.
  bool may_be(const FieldName& output, const FieldName& input) const {
    const bool is_lse = std::string_view(output.owner) == "lse";
    if (std::string_view(input.owner) != (is_lse ? "lses" : "outs")) return false;
    const MergeArguments::State& state = a_.given[static_cast<size_t>(input.idx)];
    if (is_lse ? is_same_view(a_.result.lse, state.lse) : is_same_view(a_.result.out, state.out)) return true;
    fail_overlap(function_, output, input, ", or the same view");
  }

  bool is_same_view(const Operand& a, const Operand& b) const {
    return core::is_same_view(a, b, a_.batch, a_.seqlen, a_.heads);
  }

  const MergeArguments& a_;
  const char* function_;
};

}  // namespace

void Merge::validate_sizes(const MergeShape& p, const char* function) {
  for (const auto& [name, count] :
       {std::pair{"batch", p.batch}, std::pair{"seqlen", p.seqlen}, std::pair{"heads", p.heads}}) {
    at_most(function, name, count, kMostCount);
  }
  const double rows = static_cast<double>(p.batch) * static_cast<double>(p.seqlen) * static_cast<double>(p.heads);
  const double elements = rows * static_cast<double>(p.head_dim);
  if (elements > 0x1p52) {
    unsupported(message(function, ": batch * seqlen * heads * head_dim is ", elements, ", expected at most 2^52"));
  }
}

void Merge::validate(const MergeArguments& arguments, const char* function) {
  MergeValidator(arguments, function).run();
}

}  // namespace tessella::core
