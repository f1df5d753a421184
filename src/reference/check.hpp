// Sampled rows of a computed output against the reference: promise 1 of docs/design.md, held on the spot.
#pragma once

#include <cstdint>
#include <string>

#include "operations/attention/arguments.hpp"
#include "reference/compare.hpp"

namespace tessella::reference {

// The report on the first tensor that fails or, if none does, on the first tensor. Indices of the LSE have dim -1;
// those of d_bias are (batch, head, query, key), those of amax (batch, block, head, -2).
struct CheckReport {
  int64_t rows = 0;
  double max_error = 0;
  double plain_error = 0;
  double tolerance = 0;
  bool passed = true;
  Index worst_index{};
  double worst_got = 0;
  double worst_expected = 0;
  const char* tensor = "out";  // whose numbers these are
};

// The out of the arguments (and lse, where given) hold the results to check. num_rows of all (batch, row, head), spread
// evenly and drawn by the seed; all of them where num_rows is 0 or no smaller than their number. computed_on: where;
// the arguments may be copies on the host. A NaN is right too where what a query sees is not finite and
// docs/numerics.md says that it may reach there. An entry of amax is held to the rows that are checked: it may be
// larger where others are.
CheckReport check_forward(const core::AttentionArguments& arguments, int64_t num_rows, uint64_t seed,
                          core::DeviceType computed_on = core::DeviceType::cpu);

// Gradients, which must not have been added to what was there: of KV heads of sequences with num_rows queries together,
// and of as many rows of d_bias. The out and lse of the arguments are not read: what is right, and how far a kernel may
// be from it, follows from q, k, v, d_out, d_lse and the options.
CheckReport check_backward(const core::AttentionArguments& arguments, int64_t num_rows, uint64_t seed);

// Throws Error(unsupported) for a call that check() cannot compare, as the reference does not compute it.
void require_oracle(const core::Arguments& arguments);

// The check of a call of any operation, by that of its row in reference/kernels.cpp. computed_on: as of
// check_forward().
CheckReport check(const core::Arguments& arguments, int64_t num_rows, uint64_t seed, core::DeviceType computed_on);

}  // namespace tessella::reference
