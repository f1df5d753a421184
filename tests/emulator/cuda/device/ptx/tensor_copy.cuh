// Stands in for src/cuda/device/ptx/tensor_copy.cuh: the copy engine, whose copies land some time later.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "emulator.hpp"
#include "portable/hopper.hpp"

namespace tessella::emulator {

// What a TensorMap holds here: a tensor (head_dim, row, head, batch), strides in elements.
struct Tensor {
  std::byte* data;
  int64_t element_bytes;
  int64_t sizes[4];
  int64_t row_stride, head_stride, batch_stride;
  int64_t box_rows;
  int64_t row_bytes = 128;  // of a box: 128 or 64

  std::byte* at(int64_t column, int64_t row, int64_t head, int64_t batch) const {
    return data + (row * row_stride + head * head_stride + batch * batch_stride + column) * element_bytes;
  }
  // Bytes of a chunk from `column` on that the tensor has.
  size_t bytes_there(int64_t column, int64_t row, int64_t head, int64_t batch) const {
    const auto is_in = [&](int64_t idx, int axis) { return idx >= 0 && idx < sizes[axis]; };
    if (!is_in(row, 1) || !is_in(head, 2) || !is_in(batch, 3)) return 0;
    return static_cast<size_t>(std::clamp<int64_t>((sizes[0] - column) * element_bytes, 0, kChunk));
  }
};
static_assert(sizeof(Tensor) <= sizeof(portable::TensorMap));

// The offset of a 16-byte chunk in a panel whose rows have so many bytes.
inline uint32_t swizzled(uint32_t address, int64_t row_bytes = 128) {
  return address ^ (address >> 7 & (row_bytes == 128 ? 7 : 3)) << 4;
}
// The row of a box's chunk, and the bytes before it in that row.
inline int64_t row_of_chunk(const Tensor& t, size_t i) { return static_cast<int64_t>(i) * kChunk / t.row_bytes; }
inline int64_t bytes_before(const Tensor& t, size_t i) { return static_cast<int64_t>(i) * kChunk % t.row_bytes; }
// The offsets of a box's chunks, row after row.
inline std::vector<uint32_t> box_chunks(const Tensor& t, uint32_t address) {
  std::vector<uint32_t> chunks;
  for (uint32_t at = 0; at < static_cast<uint32_t>(t.box_rows * t.row_bytes); at += kChunk) {
    chunks.push_back(swizzled(address + at, t.row_bytes));
  }
  return chunks;
}

}  // namespace tessella::emulator

namespace tessella::device::ptx {

inline void prefetch(const portable::TensorMap&) {}
inline void fence_async() { emulator::fence_async(); }
inline void fence_async_memory(uint32_t address, uint32_t bytes) { emulator::fence_async_memory(address, bytes); }

inline void prefetch_box(const portable::TensorMap&, int32_t, int32_t, int32_t, int32_t) {}

// Reads shared memory at wait_boxes() at the latest.
inline void store_box(const portable::TensorMap& map, uint32_t from, int32_t column, int32_t row, int32_t head,
                      int32_t batch) {
  emulator::check_async_memory();
  emulator::Tensor t;
  std::memcpy(&t, &map, sizeof t);
  emulator::begin(
      emulator::Work::boxes,
      [=] {
        const std::vector<uint32_t> chunks = emulator::box_chunks(t, from);
        for (size_t i = 0; i < chunks.size(); ++i) {
          const int64_t r = row + emulator::row_of_chunk(t, i),
                        c = column + emulator::bytes_before(t, i) / t.element_bytes;
          const auto values = emulator::load<std::array<std::byte, emulator::kChunk>>(chunks[i]);
          if (const size_t there = t.bytes_there(c, r, head, batch)) {
            std::memcpy(t.at(c, r, head, batch), values.data(), there);
          }
        }
      },
      emulator::box_chunks(t, from));
}
// Of each thread: floats that have been read and are not in memory yet.
inline std::map<std::pair<unsigned, unsigned>, std::vector<std::function<void()>>>& floats_under_way() {
  static std::map<std::pair<unsigned, unsigned>, std::vector<std::function<void()>>> all;
  return all;
}
template <class Put>
void send_floats(float* to, uint32_t from, uint32_t bytes, const Put& put) {
  emulator::check_async_memory();
  std::vector<uint32_t> chunks;
  for (uint32_t at = 0; at < bytes; at += emulator::kChunk) chunks.push_back(from + at);
  auto* under_way = &floats_under_way()[{emulator::block_idx().x, emulator::thread_idx().x}];
  emulator::begin(
      emulator::Work::boxes,
      [=] {
        std::vector<float> values(bytes / sizeof(float));
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] = emulator::load<float>(from + static_cast<uint32_t>(i * sizeof(float)));
        }
        auto done = std::make_shared<bool>(false);
        const auto once = [=] {
          for (size_t i = 0; !*done && i < values.size(); ++i) put(to[i], values[i]);
          *done = true;
        };
        under_way->push_back(once);
        emulator::later(once);
      },
      chunks);
}
inline void add_floats(float* to, uint32_t from, uint32_t bytes) {
  send_floats(to, from, bytes, [](float& sum, float value) { sum += value; });
}
inline void store_floats(float* to, uint32_t from, uint32_t bytes) {
  send_floats(to, from, bytes, [](float& there, float value) { there = value; });
}
inline void commit_boxes() { emulator::commit(emulator::Work::boxes); }
inline void wait_boxes() { emulator::wait_groups(emulator::Work::boxes, 0); }
inline void wait_boxes_written() {
  wait_boxes();
  for (const auto& put : std::exchange(floats_under_way()[{emulator::block_idx().x, emulator::thread_idx().x}], {})) {
    put();
  }
}

inline void copy_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  for (uint32_t at = 0; at < bytes; at += emulator::kChunk) emulator::check_async_write(to + at);
  emulator::later([=] {
    for (uint32_t at = 0; at < bytes; at += emulator::kChunk) {
      emulator::write_async(to + at, static_cast<const std::byte*>(from) + at);
    }
    emulator::complete_bytes(barrier, bytes);
  });
}

inline void copy_box(uint32_t to, const portable::TensorMap& map, uint32_t barrier, int32_t column, int32_t row,
                     int32_t head, int32_t batch) {
  emulator::Tensor t;
  std::memcpy(&t, &map, sizeof t);
  const std::vector<uint32_t> chunks = emulator::box_chunks(t, to);
  for (const uint32_t chunk : chunks) emulator::check_async_write(chunk);
  emulator::later([=] {
    for (size_t i = 0; i < chunks.size(); ++i) {
      const int64_t r = row + emulator::row_of_chunk(t, i), c = column + emulator::bytes_before(t, i) / t.element_bytes;
      std::byte values[emulator::kChunk] = {};
      if (const size_t there = t.bytes_there(c, r, head, batch)) std::memcpy(values, t.at(c, r, head, batch), there);
      emulator::write_async(chunks[i], values);
    }
    emulator::complete_bytes(barrier, static_cast<uint32_t>(t.box_rows * t.row_bytes));
  });
}

}  // namespace tessella::device::ptx
