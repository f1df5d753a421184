// Preconditions of quantize and dequantize.
#include <string>

#include "core/error.hpp"
#include "core/limits.hpp"
#include "core/message.hpp"
#include "core/overlaps.hpp"
#include "operations/quantize/quantize.hpp"

namespace tessella::core {
void Quantize::validate_sizes(const QuantizeShape& p, const char* function) {
  at_most(function, "batch", p.batch, kMostCount - 1);
  at_most(function, "the rows of x", p.total, kMostRows);
  const double tokens = static_cast<double>(p.batch) * static_cast<double>(p.seqlen);
  if (tokens > static_cast<double>(kMostRows)) {
    unsupported(message(function, ": batch * seqlen is ", tokens, ", expected at most ", kMostRows));
  }
  at_most(function, "the heads of x", p.heads, int64_t{1} << 24);
  at_most(function, "head_dim", p.head_dim, int64_t{1} << 24);
}

void Quantize::validate(const QuantizeArguments& a, const char* function) {
  validate_resources(a, function);
  validate_sizes(a, function);
  at_most(function, "scale_block", a.scale_block, kMostCount);
  at_most(function, "the rows of rotary_cos", a.positions, kMostCount);
  validate_outputs_not_folded(a, function);
  validate_outputs(a, function, [](const FieldName&, const FieldName&) { return false; });
  if (a.device.type == DeviceType::cpu) validate_tables(a, function);
}

void Quantize::validate_tables(const QuantizeArguments& a, const char* function) {
  if (a.cu_seqlens) {
    const auto& cu = a.cu_seqlens;
    expect_entry(cu.at(0, 0) == 0, function, "cu_seqlens", 0, cu.at(0, 0), "0");
    for (int64_t b = 0; b < a.batch; ++b) {
      const int64_t begin = cu.at(0, b), end = cu.at(0, b + 1);
      expect_entry(end >= begin, function, "cu_seqlens", b + 1, end, "at least ", begin, " = cu_seqlens[", b, "]");
      expect_entry(end <= a.total, function, "cu_seqlens", b + 1, end, "at most ", a.total, ", the rows of x");
    }
  }
  if (a.rotary_dim == 0) return;
  for (int64_t b = 0; b < a.batch; ++b) {
    const int64_t rows = a.cu_seqlens ? a.cu_seqlens.at(0, b + 1) - a.cu_seqlens.at(0, b) : a.seqlen;
    const int64_t first = a.rotary_offsets ? a.rotary_offsets.at(b) : 0;
    if (rows == 0 || (first >= 0 && first + rows <= a.positions)) continue;
    invalid(message(function, ": sequence ", b, " has rows at positions ", first, " to ", first + rows - 1,
                    ", expected 0 to ", a.positions - 1, ", the rows of rotary_cos"));
  }
}

}  // namespace tessella::core
