// AMX needs three consents: the CPU (CPUID), the operating system's context switch (XCR0), and on Linux this process
// (arch_prctl). Without the last the first tile instruction raises SIGILL, and asking fails where a thread has a
// signal stack too small for tile state: both must end in another kernel, never in a signal. CPU models are not asked.
#include "cpu/cpu_features.hpp"

#include <fstream>
#include <string>

#include "process/once.hpp"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#endif

namespace tessella::cpu {
namespace {

#if defined(__x86_64__) && defined(__linux__)

struct CpuidBit {
  uint32_t leaf, subleaf;
  int reg;  // 0 = eax .. 3 = edx
  int bit;
  const char* name;
};

// Intel SDM volume 2A, CPUID.
constexpr CpuidBit kRequired[] = {
    {7, 0, 1, 16, "avx512f"},   {7, 0, 1, 17, "avx512dq"}, {7, 0, 1, 30, "avx512bw"}, {7, 0, 1, 31, "avx512vl"},
    {7, 1, 0, 5, "avx512bf16"}, {7, 0, 3, 22, "amx_bf16"}, {7, 0, 3, 24, "amx_tile"},
};

constexpr int kXtileData = 18;                               // XCR0 component of the tile registers
constexpr uint64_t kXcr0 = 0xE6 | 3ull << (kXtileData - 1);  // SSE, AVX, the three of AVX-512, tile config and data
constexpr long kArchReqXcompPerm = 0x1023;                   // asm/prctl.h

std::string probe() {
  uint32_t reg[4];
  if (!__get_cpuid_count(1, 0, &reg[0], &reg[1], &reg[2], &reg[3]) || !(reg[2] >> 27 & 1)) {
    return "the operating system does not save extended registers (no OSXSAVE)";
  }
  for (const CpuidBit& need : kRequired) {
    if (!__get_cpuid_count(need.leaf, need.subleaf, &reg[0], &reg[1], &reg[2], &reg[3]) ||
        !(reg[need.reg] >> need.bit & 1)) {
      return std::string("the CPU has no ") + need.name;
    }
  }
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if (((static_cast<uint64_t>(high) << 32 | low) & kXcr0) != kXcr0) {
    return "the operating system does not save AMX and AVX-512 registers (XCR0)";
  }
  if (syscall(SYS_arch_prctl, kArchReqXcompPerm, kXtileData) != 0) {
    return std::string("Linux does not grant AMX to this process (arch_prctl: ") + std::strerror(errno) +
           "); a signal stack too small for tile state is a common cause";
  }
  return "";
}

bool probe_avx512_bf16() {
  uint32_t reg[4];
  return __get_cpuid_count(7, 1, &reg[0], &reg[1], &reg[2], &reg[3]) && (reg[0] >> 5 & 1) != 0;
}

#else

std::string probe() { return "AMX needs x86-64 Linux"; }
bool probe_avx512_bf16() { return false; }

#endif

}  // namespace

const std::string& amx_bf16_unavailable() {
  return process::once([] { return probe(); });
}

const std::string& processor_name() {
  return process::once([]() -> std::string {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
      const size_t colon = line.find(": ");
      if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
    }
    return "CPU";
  });
}

bool has_avx512_bf16() {
  return process::once([] { return probe_avx512_bf16(); });
}

}  // namespace tessella::cpu
