#include "reference/quantize.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/element.hpp"
#include "core/plan.hpp"
#include "operations/quantize/quantize_rows.hpp"
#include "portable/hadamard.hpp"
#include "portable/quantize.hpp"
#include "portable/rotary.hpp"
#include "reference/element.hpp"
#include "reference/threads.hpp"

namespace tessella::reference {

using core::QuantizeArguments;
using portable::SequenceRow;

void rotated_row(const QuantizeArguments& a, const SequenceRow& at, int64_t head, double* row) {
  load_row(a.from.row(at.tensor_batch, at.row, head), a.from.dtype, a.head_dim, row);
  for (int64_t j = 0; j < a.rotary_dim / 2; ++j) {
    double& first = row[portable::first_column(j, a.rotary_interleaved)];
    double& second = row[portable::second_column(j, a.rotary_dim, a.rotary_interleaved)];
    const auto turned = portable::rotate(first, second, load<double>(a.cos.row(0, at.position, 0), a.rotary, j),
                                         load<double>(a.sin.row(0, at.position, 0), a.rotary, j));
    first = turned.first;
    second = turned.second;
  }
}

namespace {

bool is_negated(const QuantizeArguments& a, int64_t c) {
  return (portable::hadamard_signs(a.hadamard_seed, static_cast<uint32_t>(c / 32)) >> (c % 32) & 1) != 0;
}

// By the matrix itself, which is its own inverse.
void times_matrix(const QuantizeArguments& a, double* row, double* scratch) {
  const int64_t block = portable::hadamard_block(a.head_dim);
  std::copy(row, row + a.head_dim, scratch);
  for (int64_t c = 0; c < a.head_dim; ++c) {
    const int64_t first = c / block * block;
    double sum = 0;
    for (int64_t i = 0; i < block; ++i) {
      const bool is_negative = std::popcount(static_cast<uint64_t>(i & (c - first))) % 2 != 0;
      sum += is_negative ? -scratch[first + i] : scratch[first + i];
    }
    row[c] = sum / std::sqrt(static_cast<double>(block));
  }
}

void negate(const QuantizeArguments& a, double* row) {
  for (int64_t c = 0; c < a.head_dim; ++c) {
    if (is_negated(a, c)) row[c] = -row[c];
  }
}

}  // namespace

void spread_row(const QuantizeArguments& a, double* row, double* scratch) {
  negate(a, row);
  times_matrix(a, row, scratch);
}

void gather_row(const QuantizeArguments& a, double* row, double* scratch) {
  times_matrix(a, row, scratch);
  negate(a, row);
}

void prepared_row(const QuantizeArguments& a, const SequenceRow& at, int64_t head, double* row, double* scratch) {
  rotated_row(a, at, head, row);
  if (a.mean.data != nullptr) {
    const auto* mean = reinterpret_cast<const float*>(a.mean.row(at.batch_idx, 0, head));
    for (int64_t c = 0; c < a.head_dim; ++c) row[c] -= mean[c];
  }
  if (a.hadamard) spread_row(a, row, scratch);
}

uint8_t* element_at(const QuantizeArguments& a, const SequenceRow& at, int64_t head, int64_t column) {
  const core::Operand& t = a.quantized();
  if (!a.is_transposed) return reinterpret_cast<uint8_t*>(t.row(at.tensor_batch, at.row, head)) + column;
  return reinterpret_cast<uint8_t*>(t.row(at.batch_idx, column, head)) + portable::key_place(at.row);
}

void dequantized_row(const QuantizeArguments& a, const SequenceRow& at, int64_t head, double* row, double* scratch) {
  const float* given = a.scale_of(at.batch_idx, at.row, head);
  const double scale = given == nullptr ? 1 : *given;
  for (int64_t c = 0; c < a.head_dim; ++c) {
    row[c] = scale * portable::number_of(*element_at(a, at, head, c), core::element(a.from.dtype));
  }
  if (a.hadamard) gather_row(a, row, scratch);
  if (a.mean.data == nullptr) return;
  const auto* mean = reinterpret_cast<const float*>(a.mean.row(at.batch_idx, 0, head));
  for (int64_t c = 0; c < a.head_dim; ++c) row[c] += mean[c];
}

namespace {

// Two rows of a worker.
double* row_of(const QuantizeArguments& a, core::Workspace workspace, int worker) {
  return static_cast<double*>(workspace.scratch) + worker * 2 * a.head_dim;
}

template <typename Fn>
void for_rows(const QuantizeArguments& a, int num_threads, core::Workspace workspace, Fn&& fn) {
  const portable::SequenceTables tables = core::sequence_tables(a);
  for_each(a.tensor_batch() * a.total, num_threads, a.cancel, [&](int64_t token, int worker) {
    const SequenceRow at =
        portable::sequence_row(tables, static_cast<int32_t>(token / a.total), static_cast<int32_t>(token % a.total));
    if (!at.exists) return;
    for (int64_t head = 0; head < a.heads; ++head) fn(at, head, row_of(a, workspace, worker));
  });
}

void write_means(const QuantizeArguments& a, const core::Plan& plan, core::Workspace workspace) {
  const portable::SequenceTables tables = core::sequence_tables(a);
  for_each(a.batch * a.heads, plan.num_threads, a.cancel, [&](int64_t task, int worker) {
    const auto batch_idx = static_cast<int32_t>(task / a.heads);
    const portable::SequenceSpan span = portable::span_of(tables, batch_idx);
    double* row = row_of(a, workspace, worker);
    double* sum = row + a.head_dim;
    std::fill(sum, sum + a.head_dim, 0.0);
    for (int32_t i = span.begin; i < span.end; ++i) {
      rotated_row(a, portable::sequence_row(tables, span.tensor_batch, i), task % a.heads, row);
      for (int64_t c = 0; c < a.head_dim; ++c) sum[c] += row[c];
    }
    auto* mean = reinterpret_cast<float*>(a.mean.row(batch_idx, 0, task % a.heads));
    for (int64_t c = 0; c < a.head_dim; ++c) {
      mean[c] = static_cast<float>(sum[c] / std::max(span.end - span.begin, 1));
    }
  });
}

// One thread gathers in place of each scale the largest magnitude, as entries may be of any rows.
void write_scales(const QuantizeArguments& a, core::Workspace workspace) {
  const QuantizeArguments::Entries entries = a.entries();
  const auto each = [&](auto&& fn) {
    for (int64_t i = 0; i < entries.batch * entries.blocks * entries.heads; ++i) {
      fn(*reinterpret_cast<float*>(
          a.scale.row(i / entries.heads / entries.blocks, i / entries.heads % entries.blocks, i % entries.heads)));
    }
  };
  each([](float& scale) { scale = 0; });
  for_rows(a, 1, workspace, [&](const SequenceRow& at, int64_t head, double* row) {
    prepared_row(a, at, head, row, row + a.head_dim);
    float& scale = *a.scale_of(at.batch_idx, at.row, head);
    for (int64_t c = 0; c < a.head_dim; ++c) {
      const auto value = static_cast<float>(row[c]);
      if (portable::magnitude(value) > portable::magnitude(scale)) {
        scale = portable::bits_float(portable::magnitude(value));
      }
    }
  });
  each([&](float& scale) { scale = portable::scale_of(portable::magnitude(scale), core::element(a.into.dtype)); });
}

void clear_padding(const QuantizeArguments& a) {
  for (int64_t i = 0; i < a.batch * a.heads * a.head_dim; ++i) {
    std::byte* column = a.into.row(i / a.head_dim / a.heads, i % a.head_dim, i / a.head_dim % a.heads);
    for (int64_t row = a.total; row < a.padded(); ++row) column[portable::key_place(row)] = std::byte{0};
  }
}

}  // namespace

core::WorkspaceSize quantize_workspace(const core::Shape& shape, int num_threads) {
  const int64_t row_bytes = core::quantize(shape).head_dim * static_cast<int64_t>(sizeof(double));
  return {.state_bytes = 0, .scratch_bytes = num_threads * 2 * row_bytes};
}

void quantize_run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void*) {
  const QuantizeArguments& a = core::quantize(arguments);
  if (a.mean.data != nullptr) write_means(a, plan, workspace);
  if (a.computes_scales) write_scales(a, workspace);
  if (a.is_transposed) clear_padding(a);
  const portable::Element element = core::element(a.into.dtype);
  for_rows(a, plan.num_threads, workspace, [&](const SequenceRow& at, int64_t head, double* row) {
    if (a.has_shift) {
      rotated_row(a, at, head, row);
      const int64_t k_head = head / (a.heads / a.mean_heads);
      const auto* mean = reinterpret_cast<const float*>(a.k_mean.row(at.batch_idx, 0, k_head));
      double sum = 0;
      for (int64_t c = 0; c < a.head_dim; ++c) sum += row[c] * mean[c];
      *reinterpret_cast<float*>(a.lse_shift.row(at.tensor_batch, at.row, head)) = static_cast<float>(sum);
    }
    prepared_row(a, at, head, row, row + a.head_dim);
    const float* given = a.scale_of(at.batch_idx, at.row, head);
    const float divisor = portable::divisor_of(given == nullptr ? 1.0f : *given);
    for (int64_t c = 0; c < a.head_dim; ++c) {
      const auto bits = portable::quantized(static_cast<float>(row[c]), divisor, element);
      *element_at(a, at, head, c) = static_cast<uint8_t>(bits);
    }
  });
}

void dequantize_run(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void*) {
  const QuantizeArguments& a = core::quantize(arguments);
  for_rows(a, plan.num_threads, workspace, [&](const SequenceRow& at, int64_t head, double* row) {
    dequantized_row(a, at, head, row, row + a.head_dim);
    store_row(a.into.row(at.tensor_batch, at.row, head), a.into.dtype, a.head_dim, row);
  });
}

}  // namespace tessella::reference
