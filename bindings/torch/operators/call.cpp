#include "call.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <string_view>

#include "on_gpu.hpp"

namespace tessella::operators {
namespace {

constexpr int kMaxAxes = 8;

// Strides without gaps in the order of the tensor's own axes: those of torch.empty_like, whose sort this is
// (at::infer_dense_strides). Axes that repeat have no order and stay where they are.
void dense_strides(const tessella_tensor& like, int64_t* strides) {
  int inner_first[kMaxAxes];
  for (int i = 0; i < like.ndim; ++i) inner_first[i] = like.ndim - 1 - i;
  const auto compare = [&](int a, int b) {
    if (like.strides[a] == 0 || like.strides[b] == 0) return 0;
    if (like.strides[a] != like.strides[b]) return like.strides[a] < like.strides[b] ? -1 : 1;
    return like.shape[a] > like.shape[b] ? 1 : 0;
  };
  for (int i = 1; i < like.ndim; ++i) {
    int moved = i;
    for (int other = i - 1; other >= 0; --other) {
      const int order = compare(inner_first[other], inner_first[moved]);
      if (order < 0) break;
      if (order > 0) {
        std::swap(inner_first[other], inner_first[moved]);
        moved = other;
      }
    }
  }
  int64_t step = 1;
  for (int i = 0; i < like.ndim; ++i) {
    strides[inner_first[i]] = step;
    step *= std::max<int64_t>(like.shape[inner_first[i]], 1);
  }
}

void row_major(int64_t ndim, const int64_t* sizes, int64_t* strides) {
  int64_t step = 1;
  for (int64_t axis = ndim - 1; axis >= 0; --axis) {
    strides[axis] = step;
    step *= std::max<int64_t>(sizes[axis], 1);
  }
}

}  // namespace

Call::~Call() {
  for (Tensor* tensor : owned_) abi_.delete_tensor(tensor);
  for (String* text : strings_) abi_.delete_string(text);
}

void Call::fail(const std::string& message) const { throw std::runtime_error(of_.function + (": " + message)); }

Tensor* Call::own(Tensor* tensor) {
  owned_.push_back(tensor);
  return tensor;
}

void Call::run(Value* stack) {
  // Everything is taken first: what stays on the stack after a failure is lost.
  owned_.reserve(16);
  std::exception_ptr problem;
  for (int32_t idx = 0; idx < of_.num_arguments; ++idx) {
    const Argument& argument = of_.arguments[idx];
    Value value = stack[idx];
    if (argument.is_optional != 0) {
      auto* boxed = reinterpret_cast<Value*>(value);
      if (boxed == nullptr) continue;
      value = *boxed;
      delete boxed;
    }
    try {
      take(argument, value);
    } catch (...) {
      if (problem == nullptr) problem = std::current_exception();
    }
  }
  if (problem != nullptr) std::rethrow_exception(problem);
  for (int idx = 0; idx < num_given_; ++idx) {
    const auto& [argument, tensor] = given_[idx];
    Tensor* whole = tensor;
    if (argument->name == std::string_view("d_out")) {
      int64_t ndim = 0, *strides = nullptr;
      check(abi_.get_dim(tensor, &ndim), "read a tensor");
      check(abi_.get_strides(tensor, &strides), "read a tensor");
      if (ndim > 0 && strides[ndim - 1] != 1) {  // as of a sum's
        const Value format = static_cast<Value>(abi_.memory_format_contiguous());
        whole = dispatched("aten::contiguous", reinterpret_cast<Value>(tensor), &format);
      }
    }
    const tessella_tensor* made = view(whole, argument->name, argument->kind == Kind::operand);
    set(*argument, &made);
  }
  if (kv_dtype_ != TESSELLA_DTYPE_DEFAULT) {
    view_as_cache(*given("k"), "k");
    view_as_cache(*given("v"), "v");
  }
  if (is_transposed_) {
    tessella_tensor& v = *given("v");
    v.flags |= TESSELLA_TRANSPOSED;
    swap_axes(v);
  }
  for (Tensor* tensor : mod_tensors_) {
    // Of all other tensors torch does that itself.
    tensor = dispatched("aten::resolve_neg", reinterpret_cast<Value>(tensor), nullptr);
    mod_args_.push_back(*view(tensor, "mod_args", false));
    --num_views_;
  }
  if (!mod_args_.empty()) {
    forward_.mod_args = mod_args_.data();
    forward_.num_mod_args = static_cast<int32_t>(mod_args_.size());
  }
  if (of_.returns == Returns::gradients) {
    make_gradients();
  } else {
    make_outputs();
  }
  backward_.forward = &forward_;
  if (run_on_device() != TESSELLA_OK) throw std::runtime_error(functions_.last_error());
  const int num_returned[] = {0, 1, 2, 6};
  for (int idx = 0; idx < num_returned[static_cast<int>(of_.returns)]; ++idx) {
    stack[idx] = reinterpret_cast<Value>(returned_[idx]);
    owned_.erase(std::find(owned_.begin(), owned_.end(), returned_[idx]));
  }
}

void Call::take(const Argument& argument, Value value) {
  const auto set_number = [&](int64_t number) {
    const auto narrow = static_cast<int32_t>(number);
    if (argument.size == sizeof(narrow) && narrow != number) {
      fail(std::string(argument.name) + " is " + std::to_string(number) + ", expected a number of 32 bits");
    }
    set(argument, argument.size == sizeof(narrow) ? static_cast<const void*>(&narrow) : &number);
  };
  const auto text = [&] {
    auto* handle = reinterpret_cast<String*>(value);
    strings_.push_back(handle);
    const char* characters = nullptr;
    check(abi_.string_c_str(handle, &characters), "read a string");
    return characters;
  };
  switch (argument.kind) {
    case Kind::operand:
    case Kind::array:
      own(reinterpret_cast<Tensor*>(value));
      if (num_given_ == kMaxTensors) fail("more tensors are given than there are");
      given_[num_given_++] = {&argument, reinterpret_cast<Tensor*>(value)};
      break;
    case Kind::arrays: take_list(reinterpret_cast<List*>(value)); break;
    case Kind::integer:
      set_number(static_cast<int64_t>(value));
      has_threads_ = has_threads_ || argument.offset == offsetof(tessella_attention_options, num_threads);
      break;
    case Kind::real: {
      double real = 0;
      std::memcpy(&real, &value, sizeof(real));
      const auto narrow = static_cast<float>(real);
      set(argument, &narrow);
      if (argument.offset == offsetof(tessella_attention_options, scale)) options_.scale_f64 = real;
      break;
    }
    case Kind::boolean: set_number((value & 0xff) != 0); break;
    case Kind::answer: set_number((value & 0xff) != 0 ? 1 : 2); break;
    case Kind::text: {
      const char* characters = text();
      set(argument, &characters);
      break;
    }
    case Kind::dtype: set_number(dtype_of(static_cast<int32_t>(value), argument.name)); break;
    case Kind::layout: {
      const std::string_view layout = text();
      is_swapped_ = layout == "bhsd";
      if (!is_swapped_ && layout != "bshd") fail("layout is '" + std::string(layout) + "', expected 'bshd' or 'bhsd'");
      break;
    }
    case Kind::kv_dtype: {
      const std::string_view name = text();
      kv_dtype_ = name == "int4" ? TESSELLA_I4 : name == "int8" ? TESSELLA_I8 : TESSELLA_F8E4M3FN;
      if (kv_dtype_ == TESSELLA_F8E4M3FN && name != "float8_e4m3fn") {
        fail("kv_dtype is '" + std::string(name) + "', expected int4, int8 or float8_e4m3fn");
      }
      break;
    }
    case Kind::v_transposed: is_transposed_ = (value & 0xff) != 0; break;
    case Kind::lse_dtype: lse_dtype_ = dtype_of(static_cast<int32_t>(value), argument.name); break;
    case Kind::gradients: gradients_ = static_cast<int32_t>(value); break;
  }
}

void Call::set(const Argument& argument, const void* field) {
  void* structs[] = {&forward_, &backward_, &options_};
  std::memcpy(static_cast<char*>(structs[static_cast<int>(argument.target)]) + argument.offset, field,
              static_cast<size_t>(argument.size));
}

void Call::take_list(List* list) {
  size_t size = 0;
  Status status = abi_.list_size(list, &size);
  for (size_t idx = 0; status == 0 && idx < size; ++idx) {
    Value item = 0;
    status = abi_.list_get_item(list, idx, &item);
    if (status == 0) mod_tensors_.push_back(own(reinterpret_cast<Tensor*>(item)));
  }
  abi_.delete_list(list);
  check(status, "read a list");
}

int32_t Call::dtype_of(int32_t torch_dtype, const char* name) const {
  const int32_t* found = std::find(std::begin(abi_.dtypes), std::end(abi_.dtypes), torch_dtype);
  if (found == std::end(abi_.dtypes)) {
    fail(std::string(name) + " has torch's dtype " + std::to_string(torch_dtype) +
         ", expected one of f64, f32, bf16, f16, bool, i32, i64, u8, i8, f8e4m3fn and f8e5m2");
  }
  return static_cast<int32_t>(found - std::begin(abi_.dtypes));
}

tessella_tensor* Call::view(Tensor* tensor, const char* name, bool is_operand) {
  int64_t ndim = 0, *sizes = nullptr, *strides = nullptr;
  int32_t dtype = 0, device_type = 0, device_index = 0;
  void* data = nullptr;
  check(abi_.get_dim(tensor, &ndim), "read a tensor");
  if (ndim > kMaxAxes) fail(std::string(name) + " has " + std::to_string(ndim) + " axes, expected at most 8");
  check(abi_.get_sizes(tensor, &sizes), "read a tensor");
  check(abi_.get_strides(tensor, &strides), "read a tensor");
  check(abi_.get_dtype(tensor, &dtype), "read a tensor");
  check(abi_.get_device_type(tensor, &device_type), "read a tensor");
  check(abi_.get_device_index(tensor, &device_index), "read a tensor");
  check(abi_.get_data_ptr(tensor, &data), "read a tensor");
  if (device_type != abi_.cpu && device_type != abi_.cuda) {
    fail(std::string(name) + " is on another device, expected cpu or cuda");
  }
  if (num_views_ == kMaxTensors) fail("more tensors are given than there are");
  tessella_tensor& made = views_[num_views_++];
  made = {};
  made.data = data;
  made.dtype = dtype_of(dtype, name);
  made.ndim = static_cast<int32_t>(ndim);
  made.device_type = device_type == abi_.cuda ? TESSELLA_CUDA : TESSELLA_CPU;
  made.device_id = device_type == abi_.cuda ? device_index : 0;
  std::copy(sizes, sizes + ndim, made.shape);
  std::copy(strides, strides + ndim, made.strides);
  if (std::find(sizes, sizes + ndim, 0) != sizes + ndim) made.strides[ndim - 1] = 1;
  if (is_operand) swap_axes(made);
  return &made;
}

// bhsd as bshd, and back.
void Call::swap_axes(tessella_tensor& tensor) const {
  const int rows = tensor.ndim - 2, heads = tensor.ndim - 3;
  if (!is_swapped_ || heads < 0) return;
  std::swap(tensor.shape[rows], tensor.shape[heads]);
  std::swap(tensor.strides[rows], tensor.strides[heads]);
}

tessella_tensor* Call::given(const char* name) const {
  for (int idx = 0; idx < num_given_; ++idx) {
    if (given_[idx].argument->name == std::string_view(name)) return const_cast<tessella_tensor*>(&views_[idx]);
  }
  return nullptr;
}

// Bytes that were read, as elements of 8 or 4 bits.
void Call::view_as_cache(tessella_tensor& tensor, const char* name) const {
  if (tensor.dtype == kv_dtype_) return;
  if (tensor.dtype != TESSELLA_U8) fail(std::string(name) + " is not of uint8, whose bytes kv_dtype names");
  tensor.dtype = kv_dtype_;
  if (kv_dtype_ != TESSELLA_I4 || tensor.ndim == 0) return;
  const int last = tensor.ndim - 1;  // two a byte
  for (int axis = 0; axis < last; ++axis) tensor.strides[axis] *= 2;
  if (tensor.shape[last] == 1) tensor.strides[last] = 1;
  tensor.shape[last] *= 2;
}

Tensor* Call::new_tensor(const tessella_tensor& like, int32_t dtype, int64_t ndim, const int64_t* sizes,
                         const int64_t* strides) {
  const bool is_cuda = like.device_type == TESSELLA_CUDA;
  Tensor* made = nullptr;
  check(abi_.empty_strided(ndim, sizes, strides, abi_.dtypes[dtype], is_cuda ? abi_.cuda : abi_.cpu,
                           is_cuda ? like.device_id : -1, &made),
        "allocate an output");
  return own(made);
}

// A tensor from an operator of torch's; it takes a reference of the first argument.
Tensor* Call::dispatched(const char* name, Value first, const Value* second) {
  Value stack[2] = {first, second == nullptr ? 0 : *second};
  owned_.erase(std::find(owned_.begin(), owned_.end(), reinterpret_cast<Tensor*>(first)));
  check(abi_.call_dispatcher(name, "", stack, kVersion), "copy a tensor");
  return own(reinterpret_cast<Tensor*>(stack[0]));
}

void Call::make_outputs() {
  if (of_.returns == Returns::nothing) return;
  const tessella_tensor &q = *given("q"), &v = *given("v");
  int64_t sizes[kMaxAxes], strides[kMaxAxes];

  int32_t dtype = options_.out_dtype;
  const int32_t allowed[] = {TESSELLA_F32, TESSELLA_BF16, TESSELLA_F16, TESSELLA_F8E4M3FN, TESSELLA_F8E5M2};
  if (std::find(std::begin(allowed), std::end(allowed), dtype) == std::end(allowed)) {
    dtype = q.dtype == TESSELLA_F8E4M3FN || q.dtype == TESSELLA_F8E5M2 ? TESSELLA_BF16 : q.dtype;
  }
  tessella_tensor out = q;
  swap_axes(out);  // as torch has it
  if (out.ndim > 0 && v.ndim > 0) out.shape[out.ndim - 1] = v.shape[v.ndim - (is_transposed_ && v.ndim > 1 ? 2 : 1)];
  row_major(out.ndim, out.shape, strides);
  returned_[0] = new_tensor(q, dtype, out.ndim, out.shape, strides);
  const tessella_tensor* made = view(returned_[0], "out", true);
  forward_.out = made;
  if (of_.returns == Returns::out) return;

  // (batch, heads, seqlen), or what of it q has.
  const int64_t ndim = std::max(out.ndim - 1, 0);
  std::copy(out.shape, out.shape + ndim, sizes);
  if (!is_swapped_ && ndim >= 2) std::swap(sizes[ndim - 1], sizes[ndim - 2]);
  row_major(ndim, sizes, strides);
  const int32_t lse_dtype = q.dtype == TESSELLA_F64 ? TESSELLA_F64 : TESSELLA_F32;
  returned_[1] = new_tensor(q, lse_dtype_ == TESSELLA_DTYPE_DEFAULT ? lse_dtype : lse_dtype_, ndim, sizes, strides);
  forward_.lse = view(returned_[1], "lse", false);
}

void Call::make_gradients() {
  struct Gradient {
    const char *name, *of;
    int32_t bit;
    bool is_operand;
    const tessella_tensor*& field;
  };
  const Gradient gradients[] = {
      {"dq", "q", TESSELLA_DQ, true, backward_.dq},
      {"dk", "k", TESSELLA_DK, true, backward_.dk},
      {"dv", "v", TESSELLA_DV, true, backward_.dv},
      {"d_bias", "bias", TESSELLA_D_BIAS, false, backward_.d_bias},
      {"d_sink", "sink", TESSELLA_D_SINK, false, backward_.d_sink},
      {"d_alibi_slopes", "alibi_slopes", TESSELLA_D_ALIBI_SLOPES, false, backward_.d_alibi_slopes}};
  const tessella_tensor& q = *given("q");
  for (int idx = 0; idx < 6; ++idx) {
    const auto& [name, of, bit, is_operand, field] = gradients[idx];
    int64_t strides[kMaxAxes] = {1};
    if ((gradients_ & bit) == 0) {
      const int64_t nothing = 0;
      returned_[idx] = new_tensor(q, q.dtype, 1, &nothing, strides);
      continue;
    }
    const tessella_tensor* input = given(of);
    if (input == nullptr) fail(std::string(name) + " is asked for, expected " + of + " beside it");
    tessella_tensor like = *input;
    if (is_operand) swap_axes(like);  // as torch has it
    if (like.ndim > 0 && like.strides[like.ndim - 1] == 1) {
      dense_strides(like, strides);
    } else {
      row_major(like.ndim, like.shape, strides);
    }
    returned_[idx] = new_tensor(q, like.dtype, like.ndim, like.shape, strides);
    field = view(returned_[idx], name, is_operand);
  }
}

tessella_status Call::run_on_device() {
  const auto run = [&](void* stream) {
    return of_.returns == Returns::gradients ? functions_.backward(&backward_, &options_, stream)
                                             : functions_.forward(&forward_, &options_, stream);
  };
  const tessella_tensor& q = *given("q");
  if (q.device_type != TESSELLA_CUDA) {
    uint32_t num_threads = 0;
    if (!has_threads_) check(abi_.get_num_threads(&num_threads), "tell its number of threads");
    if (!has_threads_) options_.num_threads = static_cast<int32_t>(num_threads);
    return run(nullptr);
  }
  if (abi_.current_cuda_stream == nullptr) fail("q is on a GPU, and this torch has no CUDA");
  return on_gpu(abi_, q.device_id, options_, run);
}

}  // namespace tessella::operators
