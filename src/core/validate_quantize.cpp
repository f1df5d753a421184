// Preconditions of quantize and dequantize.
#include <limits>
#include <string>

#include "core/error.hpp"
#include "core/message.hpp"
#include "core/overlaps.hpp"
#include "core/tensors.hpp"
#include "core/validate.hpp"

namespace tessella::core {
namespace {

constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max() - 1024;
constexpr int64_t kMostCount = std::numeric_limits<int32_t>::max();

void at_most(const char* function, const char* name, int64_t got, int64_t most) {
  if (got > most) unsupported(message(function, ": ", name, " is ", got, ", expected at most ", most));
}

template <typename... Expected>
void expect(bool holds, const char* function, const char* table, int64_t idx, int64_t got,
            const Expected&... expected) {
  if (!holds) invalid(message(function, ": ", table, "[", idx, "] is ", got, ", expected ", expected...));
}

}  // namespace

void validate_sizes(const QuantizeShape& p, const char* function) {
  at_most(function, "batch", p.batch, kMostCount - 1);
  at_most(function, "the rows of x", p.total, kMostRows);
  const double tokens = static_cast<double>(p.batch) * static_cast<double>(p.seqlen);
  if (tokens > static_cast<double>(kMostRows)) {
    unsupported(message(function, ": batch * seqlen is ", tokens, ", expected at most ", kMostRows));
  }
  at_most(function, "the heads of x", p.heads, int64_t{1} << 24);
  at_most(function, "head_dim", p.head_dim, int64_t{1} << 24);
}

void validate(const QuantizeArguments& a, const char* function) {
  for (const auto& [name, value] : {std::pair{"num_threads", a.num_threads}, std::pair{"num_sms", a.num_sms}}) {
    if (value < 0) invalid(message(function, ": ", name, " is ", value, ", expected at least 0"));
  }
  validate_sizes(a, function);
  at_most(function, "scale_block", a.scale_block, kMostCount);
  at_most(function, "the rows of rotary_cos", a.positions, kMostCount);
  quantize_operands(a, [&](const char* name, const Operand& t, bool is_written, int64_t batch, int64_t rows,
                           int64_t heads, int64_t dim) {
    if (is_written) validate_not_folded(function, name, t, batch, rows, heads, dim);
  });
  validate_outputs(a, function, [](const FieldName&, const FieldName&) { return false; });
  if (a.device.type == DeviceType::cpu) validate_tables(a, function);
}

void validate_tables(const QuantizeArguments& a, const char* function) {
  if (a.cu_seqlens) {
    const auto& cu = a.cu_seqlens;
    expect(cu.at(0, 0) == 0, function, "cu_seqlens", 0, cu.at(0, 0), "0");
    for (int64_t b = 0; b < a.batch; ++b) {
      const int64_t begin = cu.at(0, b), end = cu.at(0, b + 1);
      expect(end >= begin, function, "cu_seqlens", b + 1, end, "at least ", begin, " = cu_seqlens[", b, "]");
      expect(end <= a.total, function, "cu_seqlens", b + 1, end, "at most ", a.total, ", the rows of x");
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
