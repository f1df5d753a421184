// Stands in for src/cuda/device/ptx/shared.cuh.
#pragma once

#include "emulator.hpp"

namespace tessella::device::ptx {

inline char* dynamic_shared() { return emulator::dynamic_shared(); }
inline uint32_t shared_address(const void* pointer) { return emulator::shared_address(pointer); }
inline uint32_t load_word(uint32_t address) { return emulator::load<uint32_t>(address); }
inline uint32_t load_byte(uint32_t address) { return emulator::load<uint8_t>(address); }
inline uint2 load_words(uint32_t address) { return emulator::load<uint2>(address); }
inline uint4 load_chunk(uint32_t address) { return emulator::load<uint4>(address); }
inline void store_chunk(uint32_t address, const uint32_t (&words)[4]) { emulator::store(address, words); }
inline void store_words(uint32_t address, uint32_t first, uint32_t second) {
  emulator::store(address, uint2{first, second});
}
inline void store_word(uint32_t address, uint32_t word) { emulator::store(address, word); }
inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
  const emulator::Given* rows = emulator::exchange({{address, 0, 0, 0}});
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t i = 0; i < 4; ++i) r[i] = load_word(rows[i * 8 + lane / 4].words[0] + lane % 4 * 4);
}
inline uint32_t transpose(uint32_t pair) {
  const emulator::Given* given = emulator::exchange({{pair, 0, 0, 0}});
  const uint32_t lane = threadIdx.x % 32;
  const auto element = [&](uint32_t row) {
    const uint32_t word = given[row * 4 + lane / 8].words[0];
    return (lane / 4 % 2 == 0 ? word : word >> 16) & 0xFFFF;
  };
  return element(lane % 4 * 2) | element(lane % 4 * 2 + 1) << 16;
}
inline void store_matrices(uint32_t address, const uint32_t (&r)[4]) {
  const emulator::Given* rows = emulator::exchange({{address, 0, 0, 0}});
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t i = 0; i < 4; ++i) store_word(rows[i * 8 + lane / 4].words[0] + lane % 4 * 4, r[i]);
}
inline void store_matrices_transposed(uint32_t address, const uint32_t (&r)[4]) {
  store_matrices(address, {transpose(r[0]), transpose(r[1]), transpose(r[2]), transpose(r[3])});
}
inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  const emulator::Given* rows = emulator::exchange({{address, 0, 0, 0}});
  const uint32_t lane = threadIdx.x % 32;
  for (uint32_t i = 0; i < 4; ++i) {
    const auto element = [&](uint32_t row) {
      return static_cast<uint32_t>(emulator::load<uint16_t>(rows[i * 8 + row].words[0] + lane / 4 * 2));
    };
    r[i] = element(lane % 4 * 2) | element(lane % 4 * 2 + 1) << 16;
  }
}
inline void load_matrices_transposed(uint32_t (&r)[2], uint32_t address) {
  uint32_t four[4];  // of two the others' addresses count for nothing
  load_matrices_transposed(four, address);
  r[0] = four[0];
  r[1] = four[1];
}

inline void copy_chunk_async(uint32_t to, const void* from, bool is_there) {
  emulator::begin(emulator::Work::copies, [=] {
    uint4 chunk = {0, 0, 0, 0};
    if (is_there) std::memcpy(&chunk, from, sizeof chunk);
    emulator::store(to, chunk);
  });
}
inline void copy_word_async(uint32_t to, const void* from, bool is_there) {
  emulator::begin(emulator::Work::copies, [=] {
    uint32_t word = 0;
    if (is_there) std::memcpy(&word, from, sizeof word);
    emulator::store(to, word);
  });
}
inline void commit_copies() { emulator::commit(emulator::Work::copies); }
template <int Pending>
void wait_copies() {
  emulator::wait_groups(emulator::Work::copies, Pending);
}

}  // namespace tessella::device::ptx
