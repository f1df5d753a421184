// The step that transposes v of 8 bits for Hopper's matrix unit (kernels/forward_f8_sm90/transpose_v.cuh): its
// parameters.
#pragma once

#include "portable/operand_params.hpp"
#include "portable/sequences_params.hpp"

namespace tessella::portable {

inline constexpr int32_t kKeyTile = 128;  // keys that a block transposes, and of a tile of the kernel that reads them
inline constexpr int32_t kTransposeThreads = 256;

struct TransposeVConfig {
  int32_t head_dim_v = 0;  // as compiled
  bool paged = false;
  bool operator==(const TransposeVConfig&) const = default;
};

struct TransposeVParams {
  SequencesParams sequences;
  OperandParams v;
  int32_t head_dim_v;
  uint8_t* to;           // (batch or 1, heads_kv, head_dim_v, keys)
  int64_t keys;          // of a sequence, or of all packed ones, each filled up to a multiple of kKeyTile
  int64_t batch_stride;  // of to; packed: 0
  Divisor key_tiles;     // of a sequence: blocks take them first, then heads, then sequences
  Divisor heads_kv;
};

// Which of 16 keys lies at a place (kernels/forward_sm90/transposed_v.cuh).
constexpr int32_t key_at(int32_t place) { return place % 4 / 2 * 8 + place / 4 * 2 + place % 2; }

}  // namespace tessella::portable
