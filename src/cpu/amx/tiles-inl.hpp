// Steps of AMX tile products, four accumulators at a time, with stores held back.
//
// A step multiplies two A tiles (16 rows x 32 bf16: keys or head dims) by two B tiles (16 pairs x 16 query lanes):
//
//            B0 = T6   B1 = T7                 C tiles of a finished block stay in T0..T3; each is stored only
//   A0 = T4    T0        T1                    right before the next block takes its register, so products hide
//   A1 = T5    T2        T3                    the stores (3007 against 2085-2530 GFLOP/s, measured).
//
// This is inline assembly because g++ 12's intrinsics do not tell the compiler that a tile load reads memory, and its
// _tile_loadconfig names 8 of the 64 bytes as read, so stores to a local configuration would be deleted.
// Include inside a target region only (target-inl.hpp).
#pragma once

#include <cstdint>

namespace tessella::cpu::amx {

inline constexpr int kTileRows = 16;
inline constexpr int kTileElements = 512;  // bf16 elements of an A or B tile: 16 rows of 64 bytes
inline constexpr int kPairElements = 2 * kTileElements;
inline constexpr int kTileFloats = 256;              // floats of a C tile
inline constexpr int kQuadFloats = 4 * kTileFloats;  // of the four C tiles of a step

// Operand of LDTILECFG: palette 1, every tile 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
inline constexpr TileConfig kTileConfig;

// Tile registers are configured for the life of this object.
class TileScope {
 public:
  TileScope() { asm volatile("ldtilecfg %0" ::"m"(kTileConfig)); }
  ~TileScope() { asm volatile("tilerelease"); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

struct TileBytes {
  char bytes[1024];
};

template <int kTile>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}

template <int kTile>
inline void tile_load(const void* tile) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(tile), "r"(int64_t{64}),
               "m"(*static_cast<const TileBytes*>(tile)));
}

// Rows of a matrix, as they lie.
template <int kTile>
inline void tile_load_rows(const void* rows, int64_t stride_bytes) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(rows), "r"(stride_bytes) : "memory");
}

// For operands that a pass reads once (packed K and V): it does not evict Q, P, S and O from L1, which matters much.
template <int kTile>
inline void tile_load_stream(const void* tile) {
  asm volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(tile), "r"(int64_t{64}),
               "m"(*static_cast<const TileBytes*>(tile)));
}

template <int kTile>
inline void tile_store(void* tile, int64_t stride_bytes) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(tile), "r"(stride_bytes) : "memory");
}

template <int kC, int kA, int kB>
inline void tile_dot() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB));
}

// Addresses for T0..T3 when their registers are needed.
struct HeldTiles {
  float* tile[4];
  int64_t stride_bytes = 64;

  void hold(float* t0, float* t1, float* t2, float* t3, int64_t stride) {
    tile[0] = t0;
    tile[1] = t1;
    tile[2] = t2;
    tile[3] = t3;
    stride_bytes = stride;
  }
  // Four contiguous tiles.
  void hold_quad(float* c) { hold(c, c + kTileFloats, c + 2 * kTileFloats, c + 3 * kTileFloats, 64); }
  template <int kTile>
  void release() const {
    tile_store<kTile>(tile[kTile], stride_bytes);
  }
  void release_all() const {
    release<0>();
    release<1>();
    release<2>();
    release<3>();
  }
};

// C += A * B for a pair of A tiles and a pair of B tiles. tick() runs after every product: vector work put there
// overlaps with the tile unit, while the same work in one piece does not fit the reorder window (133 against 189 ns for
// 16 products and 320 FMAs, measured).
template <typename Tick>
[[gnu::always_inline]] inline void tile_step(const uint16_t* a, const uint16_t* b, Tick&& tick) {
  tile_load_stream<4>(a);
  tile_load<6>(b);
  tile_dot<0, 4, 6>();
  tick();
  tile_load<7>(b + kTileElements);
  tile_dot<1, 4, 7>();
  tick();
  tile_load_stream<5>(a + kTileElements);
  tile_dot<2, 5, 6>();
  tick();
  tile_dot<3, 5, 7>();
  tick();
}

// C = A * B, storing the held tiles in between.
template <typename Tick>
[[gnu::always_inline]] inline void first_tile_step(const uint16_t* a, const uint16_t* b, const HeldTiles& held,
                                                   Tick&& tick) {
  held.release<0>();
  tile_zero<0>();
  tile_load_stream<4>(a);
  tile_load<6>(b);
  tile_dot<0, 4, 6>();
  tick();
  held.release<1>();
  tile_zero<1>();
  tile_load<7>(b + kTileElements);
  tile_dot<1, 4, 7>();
  tick();
  held.release<2>();
  tile_zero<2>();
  tile_load_stream<5>(a + kTileElements);
  tile_dot<2, 5, 6>();
  tick();
  held.release<3>();
  tile_zero<3>();
  tile_dot<3, 5, 7>();
  tick();
}

// C = c + A * B, storing the held tiles in between; c: four tiles of kTileFloats.
template <typename Tick>
[[gnu::always_inline]] inline void resume_tile_step(const uint16_t* a, const uint16_t* b, const float* c,
                                                    const HeldTiles& held, Tick&& tick) {
  held.release<0>();
  tile_load<0>(c);
  tile_load_stream<4>(a);
  tile_load<6>(b);
  tile_dot<0, 4, 6>();
  tick();
  held.release<1>();
  tile_load<1>(c + kTileFloats);
  tile_load<7>(b + kTileElements);
  tile_dot<1, 4, 7>();
  tick();
  held.release<2>();
  tile_load<2>(c + 2 * kTileFloats);
  tile_load_stream<5>(a + kTileElements);
  tile_dot<2, 5, 6>();
  tick();
  held.release<3>();
  tile_load<3>(c + 3 * kTileFloats);
  tile_dot<3, 5, 7>();
  tick();
}

}  // namespace tessella::cpu::amx
