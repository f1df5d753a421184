// Random numbers of the tests: the same on every machine and standard library.
#pragma once

#include <cmath>
#include <cstdint>

namespace tessella::tests {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {  // splitmix64
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }
  int64_t below(int64_t bound) { return static_cast<int64_t>(bits() % static_cast<uint64_t>(bound)); }
  int64_t in(int64_t first, int64_t last) { return first + below(last - first + 1); }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  bool chance(double probability) { return uniform() < probability; }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }
  template <typename T, int64_t size>
  T one_of(const T (&values)[size]) {
    return values[below(size)];
  }

 private:
  uint64_t state_;
};

}  // namespace tessella::tests
