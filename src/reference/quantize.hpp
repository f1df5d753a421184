// The oracle of quantize and dequantize: rows in float64, by the definitions.
#pragma once

#include <cstdint>

#include "core/arguments.hpp"
#include "core/kernel.hpp"
#include "operations/quantize/arguments.hpp"
#include "portable/sequence_rows.hpp"
#include "reference/check.hpp"

namespace tessella::reference {

// row[0, head_dim): a row of x, rotated.
void rotated_row(const core::QuantizeArguments& arguments, const portable::SequenceRow& at, int64_t head, double* row);

// Multiplies row by the signs and the Hadamard matrix, or by its inverse. scratch: as long as the row.
void spread_row(const core::QuantizeArguments& arguments, double* row, double* scratch);
void gather_row(const core::QuantizeArguments& arguments, double* row, double* scratch);

// row: a row of x as quantize divides it by its scale, from the mean as it is in memory.
void prepared_row(const core::QuantizeArguments& arguments, const portable::SequenceRow& at, int64_t head, double* row,
                  double* scratch);

// Element of 8 bits of a row, also where the tensor is transposed.
uint8_t* element_at(const core::QuantizeArguments& arguments, const portable::SequenceRow& at, int64_t head,
                    int64_t column);

// row: the numbers that elements of 8 bits, their scale, the matrix and the mean are.
void dequantized_row(const core::QuantizeArguments& arguments, const portable::SequenceRow& at, int64_t head,
                     double* row, double* scratch);

core::WorkspaceSize quantize_workspace(const core::Shape& shape, int num_threads);
void quantize_run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void* stream);
void dequantize_run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void* stream);

// Of quantize and dequantize. Elements are held to what is nearest under the scales and means that were written, and
// those to the exact ones.
CheckReport check_quantize(const core::QuantizeArguments& arguments, int64_t num_rows, uint64_t seed);

}  // namespace tessella::reference
