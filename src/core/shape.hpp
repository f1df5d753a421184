// Shape: everything that the plan of an operation may depend on, and nothing that changes from run to run.
//
// Each operation has a shape of its own (operations/*/shape.hpp), and this class holds one of any. A call has a shape
// with its own sizes; a plan has the shape of the largest call that it serves (core/fields.hpp says which members may
// differ). Shapes hold no pointer to a tensor.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <utility>

#include "core/device.hpp"
#include "core/dtype.hpp"
#include "core/features.hpp"
#include "core/operation.hpp"

namespace tessella::core {

class OperationType;

struct OperandShape {
  DType dtype = DType::none;  // none: absent
  int32_t alignment = 1;      // GPU, of what decides how it is loaded: bytes, a power of two up to 16, that divide its
                              // address and its strides
  bool operator==(const OperandShape&) const = default;
};

// The shape of an operation, or what begins with one: `Self` is the shape, and type() its operation.
template <typename S>
concept HasShape = requires(const S& s) {
  typename S::Self;
  static_cast<const typename S::Self&>(s);
  { S::type() } -> std::same_as<const OperationType&>;
};
template <typename S>
concept IsShape = HasShape<S> && std::same_as<S, typename S::Self>;
template <typename A>
concept IsArguments = HasShape<A> && !std::same_as<A, typename A::Self>;

class Shape {
 public:
  Shape() = default;
  template <HasShape S>
  Shape(const S& shape)  // NOLINT(google-explicit-constructor): as a variant takes its alternatives
      : type_(&S::type()), data_(std::make_shared<const typename S::Self>(shape)) {}

  // A shape that is not copied, and outlives this object.
  template <HasShape S>
  static Shape view(const S& shape) {
    const typename S::Self* self = &shape;
    return {S::type(), std::shared_ptr<const void>(std::shared_ptr<const void>(), self)};
  }
  template <HasShape S>
  static Shape view(const S&&) = delete;

  Shape(const OperationType& type, std::shared_ptr<const void> data) : type_(&type), data_(std::move(data)) {}

  const OperationType& type() const { return *type_; }
  const void* data() const { return data_.get(); }

  // S: that of the operation.
  template <IsShape S>
  const S& as() const {
    if (type_ != &S::type()) fail_type();
    return *static_cast<const S*>(data_.get());
  }

 private:
  [[noreturn]] static void fail_type();

  const OperationType* type_ = nullptr;
  std::shared_ptr<const void> data_;
};

// What the shape of every operation has.
struct ShapeFacts {
  Operation operation = Operation::forward;
  Device device;
  DType dtype = DType::none;  // of q, of the states, of new rows, of the pools, of x
  Features features;          // none of operations whose kernels all do everything
  int32_t num_threads = 0;    // CPU: 0 = all that the process may use
  int32_t num_sms = 0;        // GPU: multiprocessors to use; 0 = all
};
ShapeFacts facts(const Shape& shape);

inline Device device(const Shape& shape) { return facts(shape).device; }
inline Operation operation(const Shape& shape) { return facts(shape).operation; }
inline DType dtype(const Shape& shape) { return facts(shape).dtype; }
inline Features features(const Shape& shape) { return facts(shape).features; }

}  // namespace tessella::core
