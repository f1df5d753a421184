// A plan's workspace full of NaN, on the CPU or as blocks of a twin.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "cases/call.hpp"
#include "cases/gpu_twin.hpp"
#include "cases/tensor_places.hpp"
#include "tessella/tessella.h"

namespace tessella::tests {

class PoisonedWorkspace {
 public:
  explicit PoisonedWorkspace(const tessella_plan* plan) {
    tessella_plan_workspace(plan, &sizes_.state_bytes, &sizes_.scratch_bytes);
    state_ = Memory(sizes_.state_bytes + kGuard, Placement::aligned);
    scratch_ = Memory(sizes_.scratch_bytes + kGuard, Placement::aligned);
    for (const Memory* memory : {&state_, &scratch_}) std::memset(memory->data(), kPoison, memory->size());
  }

  std::vector<HostBlock> blocks() const {
    return {{state_.data(), state_.size(), true}, {scratch_.data(), scratch_.size(), true}};
  }
  tessella_workspace on_host() const {
    tessella_workspace workspace = sizes_;
    workspace.state = state_.data();
    workspace.scratch = scratch_.data();
    return workspace;
  }
  // Of a twin that has blocks().
  tessella_workspace on(const GpuTwin& twin) const {
    tessella_workspace workspace = sizes_;
    workspace.state = twin.at(state_.data());
    workspace.scratch = twin.at(scratch_.data());
    return workspace;
  }

  // Of a run that is over and brought back: "" or what is wrong.
  std::string spoiled() const {
    const auto all = [](const std::byte* begin, size_t count, int value) {
      return std::all_of(begin, begin + count, [&](std::byte byte) { return std::to_integer<int>(byte) == value; });
    };
    if (!all(scratch_.data() + sizes_.scratch_bytes, kGuard, kPoison)) return "wrote past the scratch";
    if (!all(state_.data() + sizes_.state_bytes, kGuard, kPoison)) return "wrote past the state";
    return all(state_.data(), sizes_.state_bytes, 0) ? "" : "the state was not left zero";
  }

 private:
  static constexpr size_t kGuard = 256;
  tessella_workspace sizes_{};
  Memory state_, scratch_;
};

}  // namespace tessella::tests
