// What every reader's fuzz target does with what was read: touch all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "files/conversion.hpp"
#include "files/input_error.hpp"
#include "files/listed_array.hpp"

namespace tessella::fuzz {

inline void walk(const cli::Array& array) {
  if (array.tensor.dtype == TESSELLA_DTYPE_DEFAULT) return;
  volatile double last = 0;
  for (int64_t i = 0; i < cli::num_elements(array.tensor); ++i) {
    last = cli::load_element(array.tensor.data, array.tensor.dtype, cli::element_index(array.tensor, i));
  }
  (void)last;
}

template <typename Read>
int run(Read read) {
  try {
    read();
  } catch (const cli::InputError&) {  // the one way out that readers have
  }
  return 0;
}

// One array may be wrong and the next one right.
inline void walk(const cli::ListedArray& listed) {
  run([&] {
    const cli::Array array = listed.read();
    walk(array);
    walk(cli::with_contiguous_rows(array));
    for (const tessella_dtype dtype : {TESSELLA_BOOL, TESSELLA_I32, TESSELLA_F32, TESSELLA_BF16}) {
      run([&] { walk(cli::converted(array, dtype)); });
    }
  });
}

}  // namespace tessella::fuzz
