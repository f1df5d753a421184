// Preconditions on values: ranges, lengths, tables, memory. Shapes of tensors were checked when they were read.
#pragma once

#include "core/arguments.hpp"
#include "core/kernel.hpp"

namespace tessella::core {

// Tables on a GPU are not read. Throws Error(invalid_argument or unsupported) naming `function`, the argument, what it
// is and what was expected.
void validate(const AttentionArguments& arguments, const char* function);
void validate(const MergeArguments& arguments, const char* function);
void validate(const AppendArguments& arguments, const char* function);
void validate(const CopyPagesArguments& arguments, const char* function);
void validate(const QuantizeArguments& arguments, const char* function);

// Checks the values of tables that are on the host.
void validate_tables(const AttentionArguments& arguments, const char* function);
void validate_tables(const AppendArguments& arguments, const char* function);
void validate_tables(const QuantizeArguments& arguments, const char* function);

// Throws Error(invalid_argument) if the workspace overlaps the call's memory.
void validate_workspace(const Arguments& arguments, const WorkspaceSize& size, Workspace workspace,
                        const char* function);

// Checks sizes, also those of a plan's bounds: their arithmetic must not overflow.
void validate_sizes(const AttentionShape& shape, const char* function);
void validate_sizes(const MergeShape& shape, const char* function);
void validate_sizes(const AppendShape& shape, const char* function);
void validate_sizes(const CopyPagesShape& shape, const char* function);
void validate_sizes(const QuantizeShape& shape, const char* function);

}  // namespace tessella::core
