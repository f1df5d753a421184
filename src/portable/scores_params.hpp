// What turns products of q and k into scores and probabilities, as a GPU kernel's parameters.
#pragma once

#include "portable/operand_params.hpp"

namespace tessella::portable {

// cap tanh(score / cap) for a score that is a product s of q and k times a scale. Small scores may use an odd
// polynomial of three terms instead (device/score/softcap.cuh).
struct SoftcapParams {
  float cap;
  float scale;          // |scale of the call| / cap
  float series[3];      // cap tanh(scale s) in powers s, s^3, s^5
  float end_of_series;  // the largest |s| that it serves; -1: none
};

struct ScoresParams {
  ScoreOperandParams bias;
  TableParams alibi_slopes, sink;  // f32
  SoftcapParams softcap;
  float scale;  // on q . k
  // Dropout (portable/dropout.hpp).
  float keep_scale;
  uint32_t dropout_threshold;
  const int64_t* seed_data;  // null: `seed` counts
  const int64_t* offset_data;
  uint64_t seed, offset;
};

}  // namespace tessella::portable
