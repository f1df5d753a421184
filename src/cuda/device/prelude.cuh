// Included before every other device header: the integer types that the device compiler, which finds no <cstdint>,
// lacks. The same types as the host's, so that structs passed to kernels agree.
#pragma once

using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long;
using uintptr_t = unsigned long;

static_assert(sizeof(int64_t) == 8 && sizeof(uintptr_t) == sizeof(void*), "a 64-bit Linux host");
