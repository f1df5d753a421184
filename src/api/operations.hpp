// The one list of operations that can be called.
#pragma once

#include <tuple>

#include "operations/append/append.hpp"
#include "operations/attention/attention.hpp"
#include "operations/copy_pages/copy_pages.hpp"
#include "operations/linear/linear.hpp"
#include "operations/merge/merge.hpp"
#include "operations/quantize/quantize.hpp"

namespace tessella::api {

using Operations = std::tuple<core::Forward, core::Backward, core::Append, core::Merge, core::CopyPages, core::Quantize,
                              core::Dequantize, core::Linear>;

}  // namespace tessella::api
