// What Python says of the operators when it loads this library: where each argument of a schema goes in the C structs.
// bindings/python/tessella/torch/_native.py holds the same structs in ctypes.
#pragma once

#include <tessella/tessella.h>

#include <cstdint>

namespace tessella::operators {

enum class Kind : int32_t {
  operand,  // a tensor whose axes the layout orders
  array,    // any other tensor
  arrays,   // mod_args
  integer,  // of the field's size
  real,
  boolean,
  answer,  // bool? as 0 = none, 1 = true, 2 = false
  text,    // a string
  dtype,
  layout,  // the others are of no field
  kv_dtype,
  v_transposed,
  lse_dtype,
  gradients,
};

enum class Struct : int32_t { forward, backward, options };

struct Argument {
  const char* name;
  Kind kind;
  int32_t is_optional;
  Struct target;
  int32_t size;    // of the field, in bytes
  int64_t offset;  // of the field in its struct
};

enum class Returns : int32_t { nothing, out, out_and_lse, gradients };

struct Operator {
  const char* name;      // tessella::NAME
  const char* function;  // as errors name it
  Returns returns;
  int32_t num_arguments;
  const Argument* arguments;
};

// libtessella's functions.
struct Functions {
  tessella_status (*forward)(const tessella_forward_args*, const tessella_attention_options*, void* stream);
  tessella_status (*backward)(const tessella_backward_args*, const tessella_attention_options*, void* stream);
  const char* (*last_error)();
};

}  // namespace tessella::operators
