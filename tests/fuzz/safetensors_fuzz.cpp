// Any bytes as a .safetensors file: arrays whose every element can be read and converted, or an InputError.
#include "files/safetensors.hpp"
#include "fuzz/walk.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tessella::fuzz::run([&] {
    for (const tessella::cli::ListedArray& listed :
         tessella::cli::list_safetensors("fuzz", {std::as_bytes(std::span(data, size)), nullptr})) {
      tessella::fuzz::walk(listed);
    }
  });
}
