// The records that embed_kernels wrote one after another; an empty file in a build without NVRTC.
#include "cuda/compile/embedded_cubins.hpp"

#include <optional>

#include "process/once.hpp"

__asm__(
    ".pushsection .rodata\n"
    ".balign 64\n"
    ".hidden tessella_embedded_cubins_begin\n"
    ".hidden tessella_embedded_cubins_end\n"
    ".globl tessella_embedded_cubins_begin\n"
    ".globl tessella_embedded_cubins_end\n"
    "tessella_embedded_cubins_begin:\n"
    ".incbin \"" TESSELLA_EMBEDDED_CUBINS
    "\"\n"
    "tessella_embedded_cubins_end:\n"
    ".byte 0\n"
    ".popsection\n");

extern "C" {
extern const char tessella_embedded_cubins_begin[];
extern const char tessella_embedded_cubins_end[];
}

namespace tessella::cuda {

const std::map<std::string, EmbeddedCubin>& embedded_cubins() {
  return process::once([] {
    std::map<std::string, EmbeddedCubin> read;
    const char* begin = static_cast<const char*>(tessella_embedded_cubins_begin);
    std::string_view rest(begin, static_cast<size_t>(tessella_embedded_cubins_end - begin));
    while (!rest.empty()) {
      const std::string_view record = rest;
      const std::optional<Cubin> cubin = unpack(rest, false);
      if (!cubin) break;
      read.emplace(cubin->key.hex(), EmbeddedCubin{cubin->compiler, cubin->target, record});
    }
    return read;
  });
}

}  // namespace tessella::cuda
