#include "options/call.hpp"

#include <utility>

namespace tessella::cli {

Call::Call() = default;
Call::Call(Call&& other) = default;             // NOLINT(performance-noexcept-move-constructor)
Call& Call::operator=(Call&& other) = default;  // NOLINT(performance-noexcept-move-constructor)
Call::~Call() = default;

Array& Call::set(Member member, Array array) {
  Array& kept = arrays.emplace_back(std::move(array));
  args.*member = &kept.tensor;
  return kept;
}

Array& Call::set(Gradient member, Array array) {
  Array& kept = arrays.emplace_back(std::move(array));
  (*backward).*member = &kept.tensor;
  return kept;
}

void check(tessella_status status) {
  if (status != TESSELLA_OK) throw Error(static_cast<ErrorCode>(status), tessella_last_error());
}

PlanHandle make_plan(const tessella_call* call) {
  tessella_plan* plan = nullptr;
  check(tessella_plan_make(call, &plan));
  return PlanHandle(plan);
}

}  // namespace tessella::cli
