// Any bytes as a .npz file: arrays whose every element can be read, or an InputError.
#include "files/npz.hpp"
#include "fuzz/walk.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return tessella::fuzz::run([&] {
    for (const tessella::cli::Array& array : tessella::cli::read_npz("fuzz", std::as_bytes(std::span(data, size)))) {
      tessella::fuzz::walk(array);
    }
  });
}
