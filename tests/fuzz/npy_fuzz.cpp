// Any bytes as a .npy file: an array whose every element can be read and converted, or an InputError.
#include "files/npy.hpp"
#include "fuzz/walk.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tessella::fuzz::run([&] {
    tessella::fuzz::walk(tessella::cli::list_npy("fuzz", {std::as_bytes(std::span(data, size)), nullptr}));
  });
}
