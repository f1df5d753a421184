#include "core/overlaps.hpp"

#include <functional>

#include "core/arguments.hpp"
#include "core/operation_type.hpp"

namespace tessella::core {

void validate_workspace(const Arguments& arguments, const WorkspaceSize& size, Workspace workspace,
                        const char* function) {
  const NamedMemory state{{"workspace", "state"}, memory_box(workspace.state, size.state_bytes)};
  const NamedMemory scratch{{"workspace", "scratch"}, memory_box(workspace.scratch, size.scratch_bytes)};
  if (overlap(state.box, scratch.box)) fail_overlap(function, state.name, scratch.name);
  const auto separate = [&](const FieldName& name, const MemoryBox& box, Access) {
    for (const NamedMemory* own : {&state, &scratch}) {
      if (overlap(own->box, box)) fail_overlap(function, own->name, name);
    }
  };
  arguments.type().memory(arguments.data(), std::cref(separate));  // which a std::function holds without memory
}

}  // namespace tessella::core
