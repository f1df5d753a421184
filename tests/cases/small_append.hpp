// Small valid cases of append, and the elements of a call's tensors that a test may spoil.
#pragma once

#include <cstdint>

#include "cases/append_call.hpp"
#include "tessella/tessella.h"

namespace tessella::tests {

inline tessella_tensor& edit(const tessella_tensor* t) { return *const_cast<tessella_tensor*>(t); }
inline int32_t& value(const tessella_tensor* t, int64_t idx) { return static_cast<int32_t*>(t->data)[idx]; }

inline AppendCase contiguous() {
  return {.batch = 2,
          .seqlen_new = 3,
          .seqlen_kv = 9,
          .heads_kv = 2,
          .heads_q = 4,
          .head_dim_qk = 8,
          .head_dim_v = 6,
          .rotary_dim = 6};
}
inline AppendCase with(void (*change)(AppendCase&)) {
  AppendCase c = contiguous();
  change(c);
  return c;
}

// Scales that are given, and scales that the call computes.
inline const AppendCase kGiven = with([](AppendCase& c) {
  c.cache_dtype = TESSELLA_I8;
  c.scale = "s";
});
inline const AppendCase kComputed = with([](AppendCase& c) {
  c.cache_dtype = TESSELLA_F8E4M3FN;
  c.scale = "th";
});

}  // namespace tessella::tests
