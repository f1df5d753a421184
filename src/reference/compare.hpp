// THE comparator: a computed tensor against the reference in double, with a tolerance that scales itself.
//
// NaN and infinities first: they must stand where the reference has them. Then, over the whole tensor,
//   max |got - reference| <= factor * max |plain - reference| + max noise,
// where plain is the same row by standard attention in the precision of the inputs. The noise is the rounding floor
// (attention.hpp): a small tensor's plain computation may be exact by luck.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace tessella::reference {

using Index = std::array<int64_t, 4>;  // batch, row, head, dim

class Comparison {
 public:
  // factor: how much worse than the plain computation a kernel may be.
  explicit Comparison(double factor) : factor_(factor) {}

  void add(const Index& index, double got, double expected, double plain, double noise);

  bool passed() const { return !misplaced_ && max_error_ <= tolerance(); }
  double tolerance() const { return factor_ * plain_error_ + noise_; }
  double max_error() const { return max_error_; }  // NaN once a NaN or an infinity is misplaced
  double plain_error() const { return plain_error_; }
  const Index& worst_index() const { return worst_index_; }
  double worst_got() const { return worst_got_; }
  double worst_expected() const { return worst_expected_; }
  std::string text() const;

 private:
  double factor_;
  bool misplaced_ = false;
  double max_error_ = 0;
  double plain_error_ = 0;
  double noise_ = 0;
  Index worst_index_{};
  double worst_got_ = 0;
  double worst_expected_ = 0;
};

}  // namespace tessella::reference
