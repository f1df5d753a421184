// The verdict on an append, by plain loops.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>

#include "cases/append_call.hpp"
#include "cases/cache_scales.hpp"
#include "portable/float16.hpp"

namespace tessella::tests {
namespace {

template <typename T>
T read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
double load(const std::byte* at, int32_t dtype) {
  switch (dtype) {
    case TESSELLA_F64: return read<double>(at);
    case TESSELLA_F32: return read<float>(at);
    case TESSELLA_BF16: return portable::to_float(read<portable::BFloat16>(at));
    default: return portable::to_float(read<portable::Float16>(at));
  }
}

// What is stored in a quantised cache, by definition and not by the library's arithmetic.
double number(int32_t dtype, uint32_t bits) {
  if (dtype != TESSELLA_F8E4M3FN) {
    const int32_t span = dtype == TESSELLA_I4 ? 16 : 256, value = static_cast<int32_t>(bits);
    return value < span / 2 ? value : value - span;
  }
  const double sign = (bits & 0x80) != 0 ? -1 : 1;
  const int exponent = static_cast<int>(bits >> 3 & 15), mantissa = static_cast<int>(bits & 7);
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  return sign * (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
}
// The bits nearest to x, of two as near those that are even.
uint32_t nearest(int32_t dtype, double x) {
  if (std::isnan(x)) return dtype == TESSELLA_F8E4M3FN ? 0x7F : 0;
  const double most = largest(dtype), within = std::clamp(x, -most, most);
  if (dtype != TESSELLA_F8E4M3FN) {
    return static_cast<uint32_t>(std::lrint(within)) & (dtype == TESSELLA_I4 ? 0xFu : 0xFFu);
  }
  uint32_t best = 0;
  double least = std::abs(within);
  for (uint32_t bits = within < 0 ? 0x81 : 1; bits % 128 != 127; ++bits) {
    const double away = std::abs(number(dtype, bits) - within);
    if (away < least || (away == least && bits % 2 == 0)) best = bits, least = away;
  }
  return best;
}
uint32_t bits_at(int32_t dtype, const std::byte* row, int64_t column) {
  if (dtype != TESSELLA_I4) return std::to_integer<uint32_t>(row[column]);
  return std::to_integer<uint32_t>(row[column / 2]) >> (column % 2 * 4) & 0xF;
}

// "" or what is wrong with a quantised row and its scale. row: the exact numbers, each right within its tolerance;
// where that is 0 they are floats, and every bit is known.
std::string wrong_in_quantized(int32_t dtype, const std::byte* stored, float scale, bool is_computed,
                               const std::vector<double>& row, const std::vector<double>& tolerance) {
  std::ostringstream wrong;
  const double most_stored = largest(dtype), unit = 0x1p-22;
  if (is_computed) {
    double most = 0, moved = 0;
    for (size_t c = 0; c < row.size(); ++c) {
      most = std::isfinite(row[c]) ? std::max(most, std::abs(row[c])) : std::numeric_limits<double>::infinity();
      moved = std::max(moved, tolerance[c]);
      if (std::isinf(most)) break;
    }
    const auto exact = static_cast<float>(most) / static_cast<float>(most_stored);
    const float expected = std::isinf(most) ? std::numeric_limits<float>::quiet_NaN() : exact < 0x1p-90F ? 1.0F : exact;
    const double away = moved == 0 ? 0 : (moved + unit * most) / most_stored;
    const bool is_right = std::isnan(expected) ? std::isnan(scale) : std::abs(double{scale} - expected) <= away;
    if (!is_right) wrong << ", scale " << scale << ", expected " << expected;
  }
  for (size_t c = 0; c < row.size() && wrong.tellp() == 0; ++c) {
    const uint32_t bits = bits_at(dtype, stored, static_cast<int64_t>(c));
    const bool is_zero = std::abs(scale) < 0x1p-90F;
    if (tolerance[c] == 0) {
      const float quotient = is_zero ? static_cast<float>(row[c]) * 0 : static_cast<float>(row[c]) / scale;
      const uint32_t expected = nearest(dtype, quotient);
      if (bits != expected) wrong << ", column " << c << ": got bits " << bits << ", expected " << expected;
      continue;
    }
    const double exact = is_zero ? 0 : std::clamp(row[c] / scale, -most_stored, most_stored);
    const double away = std::abs(number(dtype, bits) - exact);
    const double least = std::abs(number(dtype, nearest(dtype, exact)) - exact);
    if (!(away <= least + 2 * (tolerance[c] / std::abs(scale) + unit * std::abs(exact)))) {
      wrong << ", column " << c << ": got " << number(dtype, bits) << " of the scale " << scale << ", expected "
            << exact;
    }
  }
  return wrong.str();
}

}  // namespace

std::string AppendCall::check() {
  if (!spoiled_.empty()) return spoiled_ + ", " + to_string(c_);
  std::vector<Tensors::Written> may;
  std::string wrong;
  const int64_t size = size_of(c_.dtype);
  const double unit = c_.dtype == TESSELLA_F64    ? 0x1p-52
                      : c_.dtype == TESSELLA_F32  ? 0x1p-23
                      : c_.dtype == TESSELLA_BF16 ? 0x1p-8
                                                  : 0x1p-11;
  const auto rows = [&](const char* name, const Tensors::Tensor* from, const Tensors::Tensor* into, bool is_cache,
                        bool is_rotated, int64_t heads, int64_t dim, const tessella_tensor* scale = nullptr) {
    if (from == nullptr) return;
    Tensors::Bytes written(into->memory.size(), false);
    const Tensors::Tensor* scales = nullptr;  // computed in memory of their own
    for (const auto& one : tensors_.all()) {
      if (c_.scale == "th" && scale != nullptr && one->tensor.data == scale->data) scales = one.get();
    }
    Tensors::Bytes written_scales(scales == nullptr ? 0 : scales->memory.size(), false);
    const auto at_of = [](const Tensors::Tensor* t) {  // bytes of the memory before the tensor
      return static_cast<std::byte*>(t->tensor.data) - t->memory.data();
    };
    for (int64_t b = 0; b < c_.batch; ++b) {
      const auto of = static_cast<size_t>(b);
      for (int64_t i = 0; i < new_[of]; ++i) {
        const int64_t row = seqlens_[of] - new_[of] + i, position = row - leftpad_[of] + offsets_[of];
        for (int64_t head = 0; head < heads; ++head) {
          const auto own = [&](const Tensors::Tensor* t) {
            return at_of(t) + (c_.packed ? byte_at(t->tensor, 0, cu_[of] + i, head) : byte_at(t->tensor, b, i, head));
          };
          int64_t offset = own(into);
          if (is_cache && c_.page_size > 0) {
            const int32_t page =
                pages_[of * static_cast<size_t>(pages_of_sequence_) + static_cast<size_t>(row / c_.page_size)];
            offset = at_of(into) + byte_at(into->tensor, page, row % c_.page_size, head);
          } else if (is_cache) {
            offset = at_of(into) + byte_at(into->tensor, slots_[of], row, head);
          }
          const std::byte* source = from->before.data() + own(from);
          const std::byte* result = into->memory.data() + offset;
          const bool is_stored = is_cache && is_quantized();
          std::fill_n(written.begin() + offset, is_stored ? bytes_of(cache_dtype(), dim) : dim * size, true);
          std::vector<double> exact, within;  // of a row that is quantised
          const int64_t turned = is_rotated ? c_.rotary_dim : 0, half = turned / 2;
          for (int64_t col = 0; col < dim && wrong.empty(); ++col) {
            const bool is_same =
                !is_stored && std::memcmp(source + col * size, result + col * size, static_cast<size_t>(size)) == 0;
            double expected = load(source + col * size, c_.dtype), tolerance = 0;
            if (col < turned) {
              const int64_t j = c_.interleaved ? col / 2 : col % half;
              const bool is_first = c_.interleaved ? col % 2 == 0 : col < half;
              const int64_t other = c_.interleaved ? col ^ 1 : is_first ? col + half : col - half;
              const auto angle = [&](const Tensors::Tensor* t) {
                return load(static_cast<const std::byte*>(t->tensor.data) +
                                (position * t->tensor.strides[0] + j) * size_of(t->tensor.dtype),
                            t->tensor.dtype);
              };
              const double beside = load(source + other * size, c_.dtype);
              tolerance = unit * (std::abs(expected) + std::abs(beside));
              expected = expected * angle(cos_) + (is_first ? -1 : 1) * beside * angle(sin_);
            }
            if (is_stored) {
              exact.push_back(expected);
              within.push_back(std::isfinite(expected) ? tolerance / (0x1p23 * unit) : 0);
              continue;
            }
            const double got = load(result + col * size, c_.dtype);
            const bool is_right = col < turned ? std::abs(got - expected) <= tolerance : is_same;
            if (is_right) continue;
            std::ostringstream line;
            line << name << " of sequence " << b << ", new row " << i << ", head " << head << ", column " << col
                 << ": got " << got << ", expected " << expected;
            wrong = line.str();
          }
          if (!is_stored) continue;
          float factor = 1;
          if (scale != nullptr) {
            const bool is_paged = c_.page_size > 0;
            const int64_t slot =
                is_paged
                    ? pages_[of * static_cast<size_t>(pages_of_sequence_) + static_cast<size_t>(row / c_.page_size)]
                    : slots_[of];
            const auto* given = static_cast<const float*>(scale->data) +
                                scale_at_of(*scale, slot, is_paged ? row % c_.page_size : row, head);
            std::memcpy(&factor, given, sizeof factor);
            const auto* bytes = reinterpret_cast<const std::byte*>(given);
            if (c_.scale == "ph") std::fill_n(written.begin() + (bytes - into->memory.data()), 4, true);
            if (scales != nullptr) std::fill_n(written_scales.begin() + (bytes - scales->memory.data()), 4, true);
          }
          if (!wrong.empty()) continue;
          wrong = wrong_in_quantized(cache_dtype(), result, factor, computes_scales(), exact, within);
          if (!wrong.empty()) {
            std::ostringstream line;
            line << name << " of sequence " << b << ", new row " << i << ", head " << head << wrong;
            wrong = line.str();
          }
        }
      }
    }
    may.push_back({into, std::move(written)});
    if (scales != nullptr) may.push_back({scales, std::move(written_scales)});
  };
  rows("k", k_new_, k_, true, true, c_.heads_kv, c_.head_dim_qk, args_.k_scale);
  rows("v", v_new_, v_, true, false, c_.heads_kv, c_.head_dim_v, args_.v_scale);
  rows("q_out", q_, q_out_, false, true, c_.heads_q, c_.head_dim_qk);
  if (wrong.empty()) wrong = tensors_.spoiled(may);
  if (!wrong.empty()) return wrong + ", " + to_string(c_);
  if (c_.in_place && c_.heads_q > 0) return "";
  tessella_append_options options = options_;
  options.kernel = nullptr;
  const tessella_call call{sizeof call, TESSELLA_APPEND, &args_, &options};
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  if (tessella_check(&call, 0, c_.seed, &report) != TESSELLA_OK) return tessella_last_error();
  return report.passed != 0 ? "" : "tessella_check did not pass, " + to_string(c_);
}

}  // namespace tessella::tests
