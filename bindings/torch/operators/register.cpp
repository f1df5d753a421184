// The library that Python loads beside torch: its kernels of tessella's operators, in C++.

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "call.hpp"
#include "on_gpu.hpp"

namespace tessella::operators {
namespace {

constexpr int kMaxOperators = 8;

Abi abi;
Functions functions;
Operator registered[kMaxOperators];

// A kernel knows no more than its stack: one for each operator.
template <int Idx>
void kernel(Value* stack, uint64_t, uint64_t) {
  Call(abi, functions, registered[Idx]).run(stack);
}

template <int... Idx>
constexpr auto kernels_of(std::integer_sequence<int, Idx...>) {
  return std::array<Kernel*, sizeof...(Idx)>{kernel<Idx>...};
}
constexpr auto kernels = kernels_of(std::make_integer_sequence<int, kMaxOperators>());

}  // namespace
}  // namespace tessella::operators

// Registers kernels for the operators on CPUs and GPUs, once in a process. The operators and what they point to live as
// long as it does. NULL, or why not; nothing is registered then.
extern "C" __attribute__((visibility("default"))) const char* tessella_torch_register(
    const tessella::operators::Functions* functions, const tessella::operators::Operator* operators,
    int32_t num_operators) {
  namespace op = tessella::operators;
  static std::string problem;
  try {
    if (num_operators > op::kMaxOperators) throw std::runtime_error("more operators are given than there are");
    op::abi = op::find_abi();
    op::functions = *functions;
    for (const char* key : {"CPU", "CUDA"}) {
      op::Library* library = nullptr;  // which lives as long as the process
      op::check(op::abi.library_init_impl("tessella", key, __FILE__, __LINE__, &library), "open a library");
      for (int32_t idx = 0; idx < num_operators; ++idx) {
        op::registered[idx] = operators[idx];
        op::check(
            op::abi.library_impl(library, operators[idx].name, op::kernels[static_cast<size_t>(idx)], op::kVersion),
            "register an operator");
      }
    }
    return nullptr;
  } catch (const std::exception& error) {
    problem = error.what();
    return problem.c_str();
  }
}

// tessella_forward of tensors on a GPU, on torch's current stream there and with its memory, past the dispatcher. Any
// failure is to be said by the operator.
extern "C" __attribute__((visibility("default"))) tessella_status tessella_torch_forward(
    const tessella_forward_args* args, const tessella_attention_options* options, int32_t device_index) {
  namespace op = tessella::operators;
  try {
    if (op::abi.current_cuda_stream == nullptr) return TESSELLA_UNSUPPORTED;
    tessella_attention_options with_memory = *options;
    return op::on_gpu(op::abi, device_index, with_memory,
                      [&](void* stream) { return op::functions.forward(args, &with_memory, stream); });
  } catch (const std::exception&) {
    return TESSELLA_INTERNAL;
  }
}
