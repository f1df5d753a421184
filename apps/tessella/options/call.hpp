// One call of the library and the memory behind it.
#pragma once

#include <deque>
#include <memory>
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
  std::deque<Array> arrays;                 // addresses stay
  std::deque<std::string> texts;            // what options' strings point at
  std::deque<tessella_tensor> gpu_tensors;  // once placed on a GPU, what args points at
  std::deque<GpuMemory> gpu_memories;

  Call() = default;
  Call(Call&&) = default;
  Call& operator=(Call&&) = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  using Member = const tessella_tensor* tessella_forward_args::*;
  // Keeps the array and points args' member at it.
  Array& set(Member member, Array array) {
    arrays.push_back(std::move(array));
    args.*member = &arrays.back().tensor;
    return arrays.back();
  }
};

struct FreePlan {
  void operator()(tessella_plan* plan) const { tessella_plan_free(plan); }
};
using PlanHandle = std::unique_ptr<tessella_plan, FreePlan>;

// Throws tessella::Error with the library's own sentence.
inline void check(tessella_status status) {
  if (status != TESSELLA_OK) throw Error(static_cast<ErrorCode>(status), tessella_last_error());
}

// A call as plans and questions take it; lives as long as the expression that makes it.
class Tagged {
 public:
  explicit Tagged(const Call& call) : call_{sizeof(tessella_call), TESSELLA_FORWARD, &call.args, &call.options} {}
  operator const tessella_call*() const { return &call_; }

 private:
  tessella_call call_;
};

inline PlanHandle make_plan(const tessella_call* call) {
  tessella_plan* plan = nullptr;
  check(tessella_plan_make(call, &plan));
  return PlanHandle(plan);
}
inline PlanHandle make_plan(const Call& call) { return make_plan(Tagged(call)); }

}  // namespace tessella::cli
