// How forward kernels divide a call into tiles and in which order blocks take them (device/tile/work_tile.cuh), as
// their parameters.
#pragma once

#include "portable/divisor.hpp"

namespace tessella::portable {

struct TilingParams {
  int32_t tiles_q;   // of queries, of a sequence
  int32_t slices_v;  // of v's columns
  // Heads of a section, and its tiles in all; the first head of the last section, a multiple of heads_per_section, and
  // its heads.
  Divisor heads_per_section, tiles_per_section;
  int32_t first_of_last_section;
  Divisor heads_of_last_section;
};

}  // namespace tessella::portable
