// Any bytes as a .npy file: an array whose every element can be read, or an InputError.
#include "files/npy.hpp"
#include "fuzz/walk.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tessella::fuzz::run([&] {
    const tessella::cli::Array array =
        tessella::cli::read_npy("fuzz", "", std::as_bytes(std::span(data, size)), nullptr);
    tessella::fuzz::walk(array);
  });
}
