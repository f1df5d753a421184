// Stands in for src/cuda/device/ptx/global.cuh. What a block adds to or stores in memory is there for others at some
// time, at the latest when a thread of the block comes to a fence.
#pragma once

#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "emulator.hpp"

namespace tessella::device::ptx {

// By block: what is not there yet.
inline std::map<unsigned, std::vector<std::function<void()>>>& pending_writes() {
  static std::map<unsigned, std::vector<std::function<void()>>> all;
  return all;
}
inline void write_later(std::function<void()> write) {
  auto done = std::make_shared<bool>(false);
  const auto once = [done, write = std::move(write)] {
    if (!std::exchange(*done, true)) write();
  };
  pending_writes()[emulator::block_idx().x].push_back(once);
  emulator::later(once);
}

inline void add_to_memory(float* to, float value) {
  write_later([=] { *to += value; });
}
inline void store_to_memory(float* to, float value) {
  write_later([=] { *to = value; });
}
inline uint32_t acquire(const uint32_t* word, uint32_t mask, uint32_t least) {
  emulator::wait_until([=] { return (*word & mask) >= least; });
  emulator::note_acquire();
  return *word;
}
inline void fence_memory() {
  for (const auto& write : std::exchange(pending_writes()[emulator::block_idx().x], {})) write();
}
inline void store_to_memory(uint32_t* to, uint32_t value) { *to = value; }
template <size_t N>
void load_from_memory(float (&x)[N], const float* from) {
  std::memcpy(x, from, sizeof x);
}
template <size_t N>
void store_to_memory(float* to, const float (&x)[N]) {
  write_later([to, words = std::to_array(x)] { std::memcpy(to, words.data(), sizeof words); });
}
inline void load_once(uint32_t (&words)[4], const void* from) { std::memcpy(words, from, sizeof words); }
inline bool is_last_arrival(uint32_t* word, uint32_t count) {
  const bool is_last = *word == count - 1;
  *word = is_last ? 0 : *word + 1;
  return is_last;
}

}  // namespace tessella::device::ptx
