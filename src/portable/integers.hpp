// Fixed-width integers for headers that the host compiler and NVRTC both read. NVRTC finds no <cstdint>;
// its prelude defines the same names.
#pragma once

#ifndef __CUDACC_RTC__
#include <cstdint>
using std::int32_t;
using std::int64_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;
#endif
