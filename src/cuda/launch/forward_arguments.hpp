// The kernel parameters of forward kernels on a GPU, from a call's arguments.
#pragma once

#include <string>

#include "cuda/driver/gpus.hpp"
#include "cuda/launch/forward_tiles.hpp"
#include "cuda/launch/sections.hpp"
#include "cuda/launch/tile_map.hpp"
#include "operations/attention/arguments.hpp"
#include "portable/forward_params.hpp"

namespace tessella::cuda {

// map_data: of map.bytes(), in the GPU's memory.
portable::ForwardParams forward_params(const core::AttentionArguments& arguments, const ForwardTiles& tiles,
                                       const TileMap& map, void* map_data, const Concurrency& at_once);

// Of what a kernel's bounds keep within 32 bits.
inline int32_t narrow(int64_t value) { return static_cast<int32_t>(value); }
inline int64_t ceil_div(int64_t count, int64_t size) { return (count + size - 1) / size; }

portable::OperandParams operand(const core::Operand& tensor);
// Whether all rows begin at multiples of 16 bytes and are whole pieces of 16.
bool rows_are_aligned(const core::Operand& tensor, int64_t head_dim);

// Why the GPU cannot run a kernel whose blocks use this much shared memory, or "".
std::string lacks(const core::AttentionShape& shape, int32_t shared_bytes, const DeviceInfo& device);

// Why the GPU cannot run a kernel for Hopper, or "".
std::string lacks_hopper(const DeviceInfo& device);

// Why a call makes more tiles than a grid has blocks, or "".
std::string too_large(const core::AttentionShape& shape, const ForwardTiles& tiles);

inline constexpr int64_t kMaxBlocks = 0x7FFFFFFF;  // of a grid along x
// Blocks of forward_sm80's grid along x; may be more than a grid holds.
int64_t forward_blocks(const core::AttentionShape& shape, const TileMap& map);
// True if the call has any rows to compute; otherwise nothing is queued.
bool has_rows(const core::AttentionShape& shape, const TileMap& map);

}  // namespace tessella::cuda
