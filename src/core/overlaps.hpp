// Outputs of a call have memory of their own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/call_memory.hpp"
#include "core/error.hpp"
#include "core/fields.hpp"
#include "core/kernel.hpp"
#include "core/memory_range.hpp"
#include "core/message.hpp"

namespace tessella::core {

struct NamedMemory {
  FieldName name;
  MemoryBox box;
};

[[noreturn]] inline void fail_overlap(const char* function, const FieldName& name, const FieldName& other,
                                      const char* exception = "") {
  invalid(message(function, ": ", name, " overlaps ", other, ", expected memory of its own", exception));
}

// Throws if an output overlaps other memory of the call. may_share(output, input): true for a pair that may.
template <typename Arguments, typename MayShare>
void validate_outputs(const Arguments& arguments, const char* function, MayShare&& may_share) {
  std::array<NamedMemory, 8> outputs;
  size_t count = 0;
  call_memory(arguments, [&](const FieldName& name, const MemoryBox& box, Access access) {
    if (access != Access::written) return;
    for (size_t i = 0; i < count; ++i) {
      if (overlap(outputs[i].box, box)) fail_overlap(function, name, outputs[i].name);
    }
    if (count == outputs.size()) throw Error(ErrorCode::internal, "a call has more outputs than are compared");
    outputs[count++] = {name, box};
  });
  call_memory(arguments, [&](const FieldName& name, const MemoryBox& box, Access access) {
    if (access == Access::written) return;
    for (size_t i = 0; i < count; ++i) {
      if (overlap(outputs[i].box, box) && !may_share(outputs[i].name, name)) {
        fail_overlap(function, outputs[i].name, name);
      }
    }
  });
}

// Throws if two elements of an output overlap.
template <typename Arguments>
void validate_outputs_not_folded(const Arguments& arguments, const char* function) {
  Arguments::memory(arguments, [&](const FieldName& name, const auto& member, Access access, auto... sizes) {
    using Member = std::remove_cvref_t<decltype(member)>;
    if constexpr (std::is_same_v<Member, Operand> || std::is_same_v<Member, ScoreGradient>) {
      const bool is_given = member.dtype != DType::none;
      if (is_given && access == Access::written) validate_not_folded(function, name, member, sizes...);
    }
  });
}

// Throws Error(invalid_argument) if the workspace overlaps the call's memory.
void validate_workspace(const Arguments& arguments, const WorkspaceSize& size, Workspace workspace,
                        const char* function);

// Two tensors of these axes are the very same view, element by element.
inline bool is_same_view(const Operand& a, const Operand& b, int64_t batch, int64_t rows, int64_t heads) {
  return a.data == b.data && a.dtype == b.dtype && (batch == 1 || a.batch_stride == b.batch_stride) &&
         (rows == 1 || a.row_stride == b.row_stride) && (heads == 1 || a.head_stride == b.head_stride);
}

}  // namespace tessella::core
