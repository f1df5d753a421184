// Makes Highway compile TESSELLA_TARGET, one of its targets, and no other in this source, which includes this before
// all that includes highway.h. Highway's attributes give the target's instructions to functions in HWY_NAMESPACE only:
// inline functions of other headers stay at the baseline, whichever source's copy of them a linker takes.
#pragma once

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_AVX3_DL | HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
#include "hwy/detect_targets.h"

#undef HWY_TARGET
#define HWY_TARGET TESSELLA_TARGET

// 0: not a target of this architecture, or the build's baseline is above it.
#define TESSELLA_HAS_TARGET ((HWY_TARGETS & TESSELLA_TARGET) != 0)
