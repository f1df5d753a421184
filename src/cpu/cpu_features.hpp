// What this CPU is, and the instruction sets that it and the operating system allow beyond those of Highway's own
// dispatch.
#pragma once

#include <string>

namespace tessella::cpu {

// Why AMX bf16 kernels cannot run here, or "". Asks the kernel once for permission to use tile registers; the answer
// holds for the process, threads made before included.
const std::string& amx_bf16_unavailable();

// The processor in its own words, where Linux tells, else "CPU".
const std::string& processor_name();

// Of a CPU that has AVX-512 otherwise.
bool has_avx512_bf16();

}  // namespace tessella::cpu
