// What tells the matrix instructions of a warpgroup where an operand lies in shared memory (PTX, "matrix descriptor").
#pragma once

namespace tessella::device {

// Swizzled panels of 64 columns, 128 bytes a row, in which blocks of 8 rows follow each other (tile.hpp).
class Operand {
 public:
  // address: of the first panel, by all lanes alike; the exchange tells the compiler so, which then computes the
  // the encoded addresses of all steps once a warp. panel_bytes: to the next 64 columns, where the operand's columns
  // are contiguous in memory but its rows are summed over (v); else not used.
  __device__ __forceinline__ explicit Operand(uint32_t address, uint32_t panel_bytes = 0) {
    constexpr uint32_t kSwizzle128 = 1u << 30, kEightRows = 1024 >> 4;
    first_ = uint64_t{kSwizzle128 | kEightRows} << 32 | __shfl_sync(~0u, encoded(address, panel_bytes), 0);
  }

  // Its description, `bytes` further, a multiple of 16: inside a panel's first row, or whole blocks of 8 rows. (All 64
  // bits are added, one instruction; of the halves apart, the upper one would be set each time anew.)
  __device__ __forceinline__ uint64_t at(uint32_t bytes) const { return first_ + (bytes >> 4); }

 private:
  // The lower half. Of an address 18 bits count: above them it holds which block of its cluster it belongs to.
  __device__ static constexpr uint32_t encoded(uint32_t address, uint32_t panel_bytes) {
    return ((address & 0x3FFFF) >> 4) + (panel_bytes >> 4 << 16);
  }

  uint64_t first_;
};

}  // namespace tessella::device
