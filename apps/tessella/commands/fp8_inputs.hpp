// q, k and v whose quantisation `bench fp8-error` measures.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "files/array.hpp"

namespace tessella::cli {

// (1, seqlen, heads, head_dim) of bf16. The queries are few: each sees every key.
struct Fp8Inputs {
  Array q, k, v;
};

struct Fp8Sizes {
  int64_t queries, seqlen, heads, head_dim;
};

// Names of data, with what each is.
struct Fp8Data {
  const char* name;
  const char* meaning;
};
const std::vector<Fp8Data>& fp8_data();

// InputError if there are none of that name.
void check_fp8_data(std::string_view what, const std::string& name);

// Random numbers of that name.
Fp8Inputs random_fp8_inputs(const std::string& name, const Fp8Sizes& sizes, uint64_t seed);
// q, k and v of a file, rounded to bf16; the last `queries` rows of q.
Fp8Inputs read_fp8_inputs(const std::string& file, int64_t queries);

}  // namespace tessella::cli
