// Calls f for the memory of each argument of a call. The checks that outputs and the workspace do not overlap use it.
//
// Arguments::memory(a, f), with a const or not, calls f(FieldName, member, Access, sizes...) of all that the arguments
// point to. Sizes of a Table: batch, count; of an Operand: batch, rows, heads, dim; of a score tensor: batch, heads,
// queries, keys; Bytes and pointers have none.
#pragma once

#include "core/access.hpp"
#include "core/fields.hpp"
#include "core/memory_range.hpp"

namespace tessella::core {

// f(FieldName, MemoryBox, Access) for all that the call's arguments point to.
template <typename A, typename F>
void call_memory(const A& arguments, F&& f) {
  A::memory(arguments, [&](const FieldName& name, const auto& member, Access access, auto... sizes) {
    f(name, memory_box(member, sizes...), access);
  });
}

}  // namespace tessella::core
