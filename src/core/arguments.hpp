// Arguments: one call in normal form. Its operation's room makes it of the user's structs, and kernels read nothing
// else when they run.
//
// A call's arguments begin with its own shape. The rest changes from run to run: pointers, strides, tables, scalars.
//
// All memory of a call is on its device. On a GPU nobody has read the values of its tables: kernels clamp lengths and
// offsets to the sizes given here, so that no value makes an access leave the tensors.
#pragma once

#include "core/shape.hpp"

namespace tessella::core {

// A pointer to the arguments of a call of any operation.
class Arguments {
 public:
  template <IsArguments A>
  Arguments(const A* arguments)  // NOLINT(google-explicit-constructor): as a variant takes its alternatives
      : type_(&A::type()), data_(arguments) {}

  const OperationType& type() const { return *type_; }
  const void* data() const { return data_; }

  // A: those of the operation.
  template <IsArguments A>
  const A& as() const {
    if (type_ != &A::type()) fail_type();
    return *static_cast<const A*>(data_);
  }

 private:
  [[noreturn]] static void fail_type();

  const OperationType* type_;
  const void* data_;
};

// The call's own shape.
Shape shape(const Arguments& arguments);
ShapeFacts facts(const Arguments& arguments);

}  // namespace tessella::core
