// The kernel of linear that measurements of this machine prefer, which are kept in the cache folder.
#pragma once

#include <string>

#include "core/choose.hpp"
#include "core/shape.hpp"
#include "operations/linear/dataflow.hpp"

namespace tessella::api {

// None for other operations, for what was not measured, where a call may not have the whole GPU, and with
// batch_invariant, where all numbers of rows have one kernel.
core::PreferredKernel preferred_kernel(const core::Shape& shape);

// The key of a shape on the device that it names.
std::string dataflow_key(const core::LinearShape& shape);

// Throws Error(io) where nothing can be kept.
void expect_writable_dataflow();

// Remembers what was measured on this machine. Throws Error(io) where it cannot be kept.
void keep_dataflow(const std::string& key, const std::vector<core::DataflowChoice>& choices);

}  // namespace tessella::api
