// THE comparator: a computed tensor against the float64 reference, with a tolerance that scales itself.
//
// NaN and infinities first: they must stand where the reference has them. Then, for each element,
//   |got - reference| <= factor * max |plain - reference| + noise,
// where plain is the same row by standard attention in the precision of the inputs, its error the tensor's largest. The
// noise is the element's own rounding floor (noise.hpp): a small tensor's plain computation may be exact by luck.
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

  bool passed() const { return !misplaced_ && furthest_.error <= tolerance(furthest_); }
  // These describe the worst element: the one of the largest error if all pass, else the one furthest beyond its
  // tolerance.
  double tolerance() const { return tolerance(worst()); }
  double max_error() const { return worst().error; }  // NaN once a NaN or an infinity is misplaced
  const Index& worst_index() const { return worst().index; }
  double worst_got() const { return worst().got; }
  double worst_expected() const { return worst().expected; }
  double plain_error() const { return plain_error_; }
  std::string message() const;

 private:
  struct Element {
    Index index{};
    double got = 0;
    double expected = 0;
    double error = 0;
    double noise = 0;
  };
  const Element& worst() const { return passed() ? largest_ : furthest_; }
  double tolerance(const Element& element) const { return factor_ * plain_error_ + element.noise; }

  double factor_;
  bool misplaced_ = false;
  bool any_ = false;
  double plain_error_ = 0;
  Element largest_;   // by its error
  Element furthest_;  // by its error less its noise
};

}  // namespace tessella::reference
