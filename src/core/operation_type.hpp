// What the spine asks of an operation, whose shapes and arguments it does not know.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/access.hpp"
#include "core/fields.hpp"
#include "core/kernel.hpp"
#include "core/memory_range.hpp"
#include "core/shape.hpp"

namespace tessella::core {

using MemoryVisitor = std::function<void(const FieldName&, const MemoryBox&, Access)>;

// core/operation_of.hpp makes one of an operation's traits struct. The pointers are to its Shape and its Arguments.
class OperationType {
 public:
  // The tensor whose dtype a kernel's row names, and where the call is by it: "q", "q is on ".
  const char* first_tensor;
  const char* is_on;

  virtual ShapeFacts facts(const void* shape) const = 0;
  virtual bool equal(const void* a, const void* b) const = 0;
  // A copy that holds all that the shape points to.
  virtual std::shared_ptr<const void> keep(const void* shape) const = 0;
  // Operation, device, lengths, and what else is not as by default: "operation=forward device=cpu batch=2 ...".
  virtual std::string shown(const void* shape) const = 0;
  // Throws Error(invalid_argument) naming `function` if a call of this shape is not one that the plan was made for.
  virtual void check_fits(const void* plan, const void* call, const char* function) const = 0;
  // Why the kernel's row does not have the shape's dtypes beside the first, or its other members; or "".
  virtual std::string ineligible_dtypes(const Kernel& kernel, const void* shape) const = 0;
  virtual std::string ineligible(const Kernel& kernel, const void* shape) const = 0;
  // Why not where the rows of all kernels together have these kv_dtypes beside the first tensor's, or "".
  virtual std::string missing_dtypes(uint32_t kv_dtypes, const void* shape, const std::string& where) const = 0;

  virtual Shape shape(const void* arguments) const = 0;
  virtual ShapeFacts facts_of_call(const void* arguments) const = 0;
  virtual const int32_t* cancel(const void* arguments) const = 0;
  // Of what the call is given that was made before; 0: nothing.
  virtual int64_t made_bytes(const void* arguments) const = 0;
  virtual void memory(const void* arguments, const MemoryVisitor& visit) const = 0;

 protected:
  constexpr OperationType(const char* first, const char* on) : first_tensor(first), is_on(on) {}
  ~OperationType() = default;
};

}  // namespace tessella::core
