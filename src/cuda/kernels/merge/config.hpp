// The compiled configuration of a step of merge: a pure function of dtypes, alignments and head dim.
#pragma once

#include "cuda/compile/program.hpp"
#include "cuda/kernels/merge/params.cuh"
#include "operations/merge/shape.hpp"

namespace tessella::cuda {

// is_last: its result is the call's; others leave theirs in scratch.
portable::MergeConfig merge_config(const core::MergeShape& shape, bool continues, bool is_last);

Program merge_program(const portable::MergeConfig& config);

}  // namespace tessella::cuda
