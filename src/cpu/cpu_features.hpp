// Instruction sets that this CPU and operating system allow, beyond those of Highway's own dispatch.
#pragma once

#include <string>

namespace tessella::cpu {

// Why AMX bf16 kernels cannot run here, or "". Asks the kernel once for permission to use tile registers; the answer
// holds for the process, threads made before included.
const std::string& amx_bf16_unavailable();

}  // namespace tessella::cpu
