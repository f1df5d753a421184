// One call of the library and the memory behind it.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "device/gpu.hpp"
#include "files/array.hpp"
#include "tessella/error.hpp"
#include "tessella/tessella.h"

namespace tessella::cli {

// args points into arrays, so a call is moved and never copied.
struct Call {
  tessella_forward_args args = TESSELLA_FORWARD_ARGS_INIT;
  tessella_attention_options options = TESSELLA_ATTENTION_OPTIONS_INIT;
  std::optional<tessella_backward_args> backward;     // its gradients; `forward` is left to Tagged
  tessella_dtype raw_dtype = TESSELLA_DTYPE_DEFAULT;  // of raw elements in files; DEFAULT: not said
  std::deque<Array> arrays;                           // addresses stay
  std::deque<std::string> strings;                    // what options' strings point at
  std::deque<tessella_tensor> gpu_tensors;            // once placed on a GPU, what args points at
  std::deque<GpuMemory> gpu_memories;

  // Out of line: many files make calls. A deque takes memory when it is moved from.
  Call();
  Call(Call&& other);             // NOLINT(performance-noexcept-move-constructor)
  Call& operator=(Call&& other);  // NOLINT(performance-noexcept-move-constructor)
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  using Member = const tessella_tensor* tessella_forward_args::*;
  // Keeps the array and points args' member at it.
  Array& set(Member member, Array array);
  using Gradient = const tessella_tensor* tessella_backward_args::*;
  Array& set(Gradient member, Array array);
};

struct FreePlan {
  void operator()(tessella_plan* plan) const { tessella_plan_free(plan); }
};
using PlanHandle = std::unique_ptr<tessella_plan, FreePlan>;

// Throws tessella::Error with the library's own sentence.
void check(tessella_status status);

// A call as plans and questions take it; lives as long as the expression that makes it. Of backward where it has
// gradients, unless its forward is asked for.
class Tagged {
 public:
  explicit Tagged(const Call& call) : Tagged(call, call.backward ? TESSELLA_BACKWARD : TESSELLA_FORWARD) {}
  Tagged(const Call& call, tessella_operation operation)
      : call_{sizeof(tessella_call), operation, &call.args, &call.options} {
    if (operation != TESSELLA_BACKWARD) return;
    backward_ = *call.backward;
    backward_.forward = &call.args;
    call_.args = &backward_;
  }
  Tagged(const Tagged&) = delete;
  Tagged& operator=(const Tagged&) = delete;
  operator const tessella_call*() const { return &call_; }

 private:
  tessella_backward_args backward_ = TESSELLA_BACKWARD_ARGS_INIT;
  tessella_call call_;
};

PlanHandle make_plan(const tessella_call* call);
inline PlanHandle make_plan(const Call& call) { return make_plan(Tagged(call)); }

}  // namespace tessella::cli
