// One call of an operator: what the dispatcher's stack holds, in the structs of C.
#pragma once

#include <vector>

#include "abi.hpp"
#include "operators.hpp"

namespace tessella::operators {

class Call {
 public:
  Call(const Abi& abi, const Functions& functions, const Operator& of) : abi_(abi), functions_(functions), of_(of) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  // Takes the inputs off the stack, runs, and leaves the outputs there.
  void run(Value* stack);

 private:
  struct Given {  // a tensor among the inputs
    const Argument* argument;
    Tensor* tensor;
  };

  void take(const Argument& argument, Value value);
  void set(const Argument& argument, const void* field);
  void take_list(List* list);
  void make_outputs();
  void make_gradients();
  tessella_status run_on_device();

  Tensor* own(Tensor* tensor);
  Tensor* new_tensor(const tessella_tensor& like, int32_t dtype, int64_t ndim, const int64_t* sizes,
                     const int64_t* strides);
  Tensor* dispatched(const char* name, Value first, const Value* second);
  tessella_tensor* view(Tensor* tensor, const char* name, bool is_operand);
  tessella_tensor* given(const char* name) const;
  void view_as_cache(tessella_tensor& tensor, const char* name) const;
  void swap_axes(tessella_tensor& tensor) const;
  int32_t dtype_of(int32_t torch_dtype, const char* name) const;
  [[noreturn]] void fail(const std::string& message) const;

  const Abi& abi_;
  const Functions& functions_;
  const Operator& of_;
  tessella_forward_args forward_ = TESSELLA_FORWARD_ARGS_INIT;
  tessella_backward_args backward_ = TESSELLA_BACKWARD_ARGS_INIT;
  tessella_attention_options options_ = TESSELLA_ATTENTION_OPTIONS_INIT;

  static constexpr int kMaxTensors = 64;
  Given given_[kMaxTensors];
  tessella_tensor views_[kMaxTensors];
  int num_given_ = 0, num_views_ = 0;
  std::vector<Tensor*> owned_;
  std::vector<String*> strings_;
  std::vector<tessella_tensor> mod_args_;
  Tensor* returned_[6] = {};

  bool is_swapped_ = false, is_transposed_ = false, has_threads_ = false;
  int32_t kv_dtype_ = TESSELLA_DTYPE_DEFAULT, lse_dtype_ = TESSELLA_DTYPE_DEFAULT;
  int32_t gradients_ = TESSELLA_DQ | TESSELLA_DK | TESSELLA_DV;
  std::vector<Tensor*> mod_tensors_;
};

}  // namespace tessella::operators
