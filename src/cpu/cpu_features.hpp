// What this CPU and operating system allow beyond what Highway's own dispatch asks.
#pragma once

#include <string>

namespace tessella::cpu {

// Why AMX bf16 kernels cannot run here, or "". Asks the kernel once for permission to use tile registers; the answer
// holds for the process, threads made before included.
const std::string& amx_bf16_unavailable();

}  // namespace tessella::cpu
