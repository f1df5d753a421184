#include "core/memory_range.hpp"

#include <algorithm>
#include <numeric>

#include "core/error.hpp"
#include "core/message.hpp"

namespace tessella::core {
namespace {

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }

// Integers c_0, c_1, ... within bounds whose sum of c_i * stride_i lies in an interval: whether there are any.
class BoundedSum {
 public:
  void add(int64_t stride, int64_t least, int64_t most) {
    for (Term* term = terms_.data(); term != terms_.data() + count_; ++term) {
      if (term->stride != stride) continue;
      term->least += least;
      term->most += most;
      return;
    }
    terms_[count_++] = {stride, least, most};
  }

  bool reaches(int64_t low, int64_t high) {
    std::sort(terms_.data(), terms_.data() + count_, [](const Term& a, const Term& b) { return a.stride > b.stride; });
    for (size_t i = count_; i-- > 0;) {
      const Term& term = terms_[i];
      const Rest& after = rest_[i + 1];
      rest_[i] = {after.least + term.least * term.stride, after.most + term.most * term.stride,
                  std::gcd(after.divisor, term.stride)};
    }
    return search(0, low, high);
  }

 private:
  struct Term {
    int64_t stride, least, most;
  };
  struct Rest {  // of the terms from one on: what they sum up to, and what divides each such sum
    int64_t least = 0, most = 0, divisor = 0;
  };

  bool search(size_t idx, int64_t low, int64_t high) {
    low = std::max(low, rest_[idx].least);
    high = std::min(high, rest_[idx].most);
    if (low > high) return false;
    if (idx == count_) return true;
    if (floor_div(high, rest_[idx].divisor) * rest_[idx].divisor < low) return false;
    const Term& term = terms_[idx];
    const int64_t first = std::max(term.least, ceil_div(low - rest_[idx + 1].most, term.stride));
    const int64_t last = std::min(term.most, floor_div(high - rest_[idx + 1].least, term.stride));
    for (int64_t c = first; c <= last; ++c) {
      if (++steps_ > kMostSteps || search(idx + 1, low - c * term.stride, high - c * term.stride)) return true;
    }
    return false;
  }

  std::array<Term, 8> terms_;
  std::array<Rest, 9> rest_;
  size_t count_ = 0;
  int steps_ = 0;
};

}  // namespace

MemoryBox memory_box(const void* data, int64_t bytes) {
  if (data == nullptr || bytes <= 0) return {};
  const auto begin = reinterpret_cast<uintptr_t>(data);
  return {begin, begin + static_cast<uintptr_t>(bytes), bytes, {}};
}

MemoryBox memory_box(const void* data, int64_t run_bytes, const std::array<MemoryBox::Axis, 4>& axes) {
  MemoryBox box = memory_box(data, run_bytes);
  box.axes = axes;
  for (const MemoryBox::Axis& axis : axes) {
    if (axis.size <= 0) return {};
    box.end += static_cast<uintptr_t>((axis.size - 1) * axis.stride);
  }
  return box.run == 0 ? MemoryBox() : box;
}

MemoryBox memory_box(const Operand& t, int64_t batch, int64_t rows, int64_t heads, int64_t dim) {
  return memory_box(t.data, bytes_of(t.dtype, dim),
                    {{{batch, bytes_of(t.dtype, t.batch_stride)},
                      {rows, bytes_of(t.dtype, t.row_stride)},
                      {heads, bytes_of(t.dtype, t.head_stride)},
                      {}}});
}

bool overlap(const MemoryBox& a, const MemoryBox& b) {
  if (a.begin >= b.end || b.begin >= a.end) return false;
  // Byte x of a run of a is byte y of a run of b:
  //   sum of idx * stride over the axes of a, less that over the axes of b = b.begin - a.begin + y - x.
  BoundedSum sum;
  for (const MemoryBox::Axis& axis : a.axes) {
    if (axis.size > 1 && axis.stride > 0) sum.add(axis.stride, 0, axis.size - 1);
  }
  for (const MemoryBox::Axis& axis : b.axes) {
    if (axis.size > 1 && axis.stride > 0) sum.add(axis.stride, 1 - axis.size, 0);
  }
  const auto apart = static_cast<int64_t>(b.begin - a.begin);
  return sum.reaches(apart - (a.run - 1), apart + b.run - 1);
}

namespace {

struct ElementAxis {
  int64_t size, stride;
};

// run: elements that lie side by side.
template <size_t N>
void validate_axes(const char* function, const FieldName& name, std::array<ElementAxis, N> axes, int64_t run) {
  std::ranges::sort(axes, {}, &ElementAxis::stride);
  for (const ElementAxis& axis : axes) {
    if (axis.size == 0) return;
  }
  int64_t extent = run;
  for (const ElementAxis& axis : axes) {
    if (axis.size == 1) continue;
    if (axis.stride < extent) {
      invalid(message(function, ": ", name, " has an axis of stride ", axis.stride, ", expected at least ", extent,
                      " so that no two elements share memory"));
    }
    extent += axis.stride * (axis.size - 1);
  }
}

}  // namespace

void validate_not_folded(const char* function, const FieldName& name, const Operand& t, int64_t batch, int64_t rows,
                         int64_t heads, int64_t dim) {
  validate_axes(function, name,
                std::array<ElementAxis, 3>{{{batch, t.batch_stride}, {rows, t.row_stride}, {heads, t.head_stride}}},
                dim);
}

void validate_not_folded(const char* function, const FieldName& name, const ScoreGradient& t, int64_t batch,
                         int64_t heads, int64_t queries, int64_t keys) {
  // Axes of stride 0 are summed over.
  const auto axis = [](int64_t size, int64_t stride) { return ElementAxis{stride == 0 ? 1 : size, stride}; };
  validate_axes(function, name,
                std::array{axis(batch, t.batch_stride), axis(heads, t.head_stride), axis(queries, t.q_stride),
                           axis(keys, t.kv_stride)},
                1);
}

}  // namespace tessella::core
