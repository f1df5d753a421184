// The matrix descriptor of PTX: where an operand of a warpgroup's matrix instructions is in shared memory.
#pragma once

namespace tessella::device {

// An operand in swizzled panels of RowBytes a row, 128 or 64, in which blocks of 8 rows are contiguous (tile.cuh).
template <int RowBytes = 128>
class Operand {
 public:
  // address: of the first panel, the same in all lanes. The shuffle tells the compiler so, and it computes the encoded
  // addresses of all steps once a warp. panel_bytes: to the next 64 columns, for an operand that sums over rows (v);
  // else unused.
  __device__ __forceinline__ explicit Operand(uint32_t address, uint32_t panel_bytes = 0) {
    static_assert(RowBytes == 128 || RowBytes == 64);
    constexpr uint32_t kSwizzle = RowBytes == 128 ? 1u << 30 : 2u << 30, kEightRows = 8 * RowBytes >> 4;
    first_ = uint64_t{kSwizzle | kEightRows} << 32 | __shfl_sync(~0u, encoded(address, panel_bytes), 0);
  }

  // The descriptor `bytes` bytes further, a multiple of 16: within a panel's first row, or by whole blocks of 8 rows.
  // (It adds all 64 bits in one instruction; separate halves would set the upper one each time.)
  __device__ __forceinline__ uint64_t at(uint32_t bytes) const { return first_ + (bytes >> 4); }

 private:
  // The lower half of the descriptor. Only the lower 18 bits of an address count; those above hold the block's rank in
  // its cluster.
  __device__ static constexpr uint32_t encoded(uint32_t address, uint32_t panel_bytes) {
    return ((address & 0x3FFFF) >> 4) + (panel_bytes >> 4 << 16);
  }

  uint64_t first_;
};

}  // namespace tessella::device
