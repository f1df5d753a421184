// A forward call as plans and questions take it.
#pragma once

#include "tessella/tessella.h"

namespace tessella::tests {

// Points into both; lives as long as the expression that makes it.
class Tagged {
 public:
  Tagged(const tessella_forward_args& args, const tessella_attention_options& options)
      : call_{sizeof(tessella_call), TESSELLA_FORWARD, &args, &options} {}
  operator const tessella_call*() const { return &call_; }

 private:
  tessella_call call_;
};

}  // namespace tessella::tests
