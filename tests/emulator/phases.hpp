// What somebody knows of the barriers of a cluster: which phases have ended.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessella::emulator {

// Of every barrier in shared memory, by its index: how many of its phases have ended, as far as somebody knows.
class Phases {
 public:
  uint32_t& of(size_t barrier) {
    if (barrier >= ended_.size()) ended_.resize(barrier + 1);
    return ended_[barrier];
  }
  void learn(const Phases& from) {
    if (from.ended_.size() > ended_.size()) ended_.resize(from.ended_.size());
    for (size_t i = 0; i < from.ended_.size(); ++i) ended_[i] = std::max(ended_[i], from.ended_[i]);
  }

 private:
  std::vector<uint32_t> ended_;
};

}  // namespace tessella::emulator
