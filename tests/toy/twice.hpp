// The smallest operation: out = 2 x. A room as in src/operations, with the user's structs, which are in tessella.h for
// the library's own.
#pragma once

#include <string>

#include "core/access.hpp"
#include "core/arguments.hpp"
#include "core/fields.hpp"
#include "core/kernel.hpp"
#include "core/operand.hpp"
#include "core/shape.hpp"
#include "operations/reading.hpp"
#include "tessella/tessella.h"

namespace tessella::toy {

struct TwiceArgs {
  size_t struct_size;
  const tessella_tensor* x;    // (batch, rows, heads, head_dim), f32
  const tessella_tensor* out;  // like x
};

struct TwiceOptions {
  size_t struct_size;
  const char* kernel;
  const tessella_allocator* allocator;
  int32_t num_threads;
  int32_t num_sms;
  int64_t max_rows;
  const int32_t* cancel;
};

inline constexpr auto kTwice = static_cast<core::Operation>(100);

struct TwiceShape {
  using Self = TwiceShape;
  static const core::OperationType& type();  // of twice

  core::Operation operation = kTwice;
  core::Device device;
  core::OperandShape x;
  int64_t batch = 0;
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t head_dim = 0;
  int32_t num_threads = 0;
  int32_t num_sms = 0;
  bool operator==(const TwiceShape&) const = default;

  core::DType dtype() const { return x.dtype; }

  template <typename F>
  static void fields(F&& f) {
    using core::FieldName;
    using core::Fit;
    f(FieldName{"operation"}, &TwiceShape::operation, Fit::equal);
    f(FieldName{"device"}, &TwiceShape::device, Fit::equal);
    f(
        FieldName{"x", "dtype"}, [](auto& shape) -> auto& { return shape.x.dtype; }, Fit::equal);
    f(FieldName{"batch"}, &TwiceShape::batch, Fit::equal);
    f(FieldName{"rows"}, &TwiceShape::rows, Fit::at_most);
    f(FieldName{"heads"}, &TwiceShape::heads, Fit::equal);
    f(FieldName{"head_dim"}, &TwiceShape::head_dim, Fit::equal);
    f(FieldName{"num_threads"}, &TwiceShape::num_threads, Fit::if_given);
    f(FieldName{"num_sms"}, &TwiceShape::num_sms, Fit::equal);
  }
};

struct TwiceArguments : TwiceShape {
  core::Operand from, into;
  const int32_t* cancel = nullptr;

  template <typename A, typename F>
  static void memory(A& a, F&& f) {
    f(core::FieldName{"x"}, a.from, core::Access::read, a.batch, a.rows, a.heads, a.head_dim);
    f(core::FieldName{"out"}, a.into, core::Access::written, a.batch, a.rows, a.heads, a.head_dim);
    f(core::FieldName{"cancel"}, core::Bytes::of(a.cancel), core::Access::read);
  }
};

struct Twice {
  using Shape = TwiceShape;
  using Arguments = TwiceArguments;
  using Args = TwiceArgs;
  using Options = TwiceOptions;
  static constexpr core::Operation kOperation = kTwice;
  static constexpr Args kArgs{sizeof(Args), nullptr, nullptr};
  static constexpr Options kOptions{sizeof(Options), nullptr, nullptr, 0, 0, 0, nullptr};
  static constexpr const char* kFirstTensor = "x";
  static constexpr const char* kIsOn = "x is on ";

  static std::string ineligible(const core::Kernel& kernel, const Shape& shape);
  static Arguments read(const Args& args, const Options& options, const core::Reading& reading);
  static void validate(const Arguments& arguments, const char* function);
  static void validate_sizes(const Shape& shape, const char* function);
  static Shape bounds(const Shape& shape, const Options& options);
};

// Its kernels.
core::KernelTable twice_kernels();

}  // namespace tessella::toy
