// The parameters of attention's kernels on a GPU, group by group, from a call's arguments. A kernel takes the groups
// that it reads.
#pragma once

#include <cstdint>
#include <limits>

#include "cuda/launch/tile_map.hpp"
#include "operations/attention/arguments.hpp"
#include "portable/arrays_params.hpp"
#include "portable/inputs_params.hpp"
#include "portable/masks_params.hpp"
#include "portable/output_params.hpp"
#include "portable/scores_params.hpp"
#include "portable/sequences_params.hpp"
#include "portable/tile_map_params.hpp"

namespace tessella::cuda {

// Of what a kernel's bounds keep within 32 bits.
inline int32_t narrow(int64_t value) { return static_cast<int32_t>(value); }

portable::OperandParams operand(const core::Operand& tensor);
// Whether all rows begin at multiples of 16 bytes and are whole pieces of 16.
bool rows_are_aligned(const core::Operand& tensor, int64_t head_dim);

portable::InputsParams inputs_params(const core::AttentionArguments& arguments);
portable::SequencesParams sequences_params(const core::AttentionArguments& arguments);
portable::ScoresParams scores_params(const core::AttentionArguments& arguments);
// longest: sequence that the kernel takes. Bounds of the band are at most that, as beyond it they say no more.
portable::MasksParams masks_params(const core::AttentionArguments& arguments,
                                   int64_t longest = std::numeric_limits<int64_t>::max());
portable::ArraysParams arrays_params(const core::AttentionArguments& arguments);
portable::OutputParams output_params(const core::AttentionArguments& arguments);
// classes: of map.bytes(), seen_keys: of map.seen_bytes(); in the GPU's memory. Either may be null.
portable::TileMapParams tile_map_params(const TileMap& map, void* classes, void* seen_keys);

}  // namespace tessella::cuda
