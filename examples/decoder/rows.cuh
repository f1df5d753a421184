// What a decoder does beside attention and linear layers, a row at a time: the row of a token, RMSNorm, the choice of
// the next token. One source: NVRTC compiles it for a GPU, where the threads of a block share a row, and the compiler
// of the program for the CPU, where one thread has it. `team` is who shares the row.
#pragma once

#ifdef __CUDACC_RTC__
#define ROWS_FUNCTION __device__ inline
#else
#include <cmath>
#include <cstring>
#define ROWS_FUNCTION inline
#endif

struct BFloat16 {
  unsigned short bits;
};
ROWS_FUNCTION unsigned bits_of(float x) {
  unsigned bits;
  memcpy(&bits, &x, 4);
  return bits;
}
ROWS_FUNCTION float float_of(unsigned bits) {
  float x;
  memcpy(&x, &bits, 4);
  return x;
}
ROWS_FUNCTION float to_float(float x) { return x; }
ROWS_FUNCTION float to_float(BFloat16 x) { return float_of(unsigned{x.bits} << 16); }
ROWS_FUNCTION void store(float& to, float x) { to = x; }
ROWS_FUNCTION void store(BFloat16& to, float x) {  // to nearest, ties to even
  const unsigned bits = bits_of(x), odd = bits >> 16 & 1;
  to.bits = static_cast<unsigned short>(x != x ? 0x7FC0 : (bits + 0x7FFF + odd) >> 16);
}

// out[row] = table[tokens[row]]
struct Embedding {
  const int* tokens;
  const void* table;  // (vocabulary, size)
  void* out;          // (rows, size)
  int size;
};
template <typename Element, typename Team>
ROWS_FUNCTION void compute(const Embedding& p, int row, const Team& team) {
  const Element* from = static_cast<const Element*>(p.table) + static_cast<long long>(p.tokens[row]) * p.size;
  Element* to = static_cast<Element*>(p.out) + static_cast<long long>(row) * p.size;
  for (int i = team.rank(); i < p.size; i += team.size()) to[i] = from[i];
}

// out[row] = weight * x[row] / sqrt(mean(x[row]^2) + epsilon), rounded before weight multiplies, as Hugging Face does
// (RMSNorm, arXiv 1910.07467).
struct RmsNorm {
  const void* x;  // rows `stride` elements apart
  const void* weight;
  void* out;  // (rows, size)
  long long stride;
  int size;
  float epsilon;
};
template <typename Element, typename Team>
ROWS_FUNCTION void compute(const RmsNorm& p, int row, const Team& team) {
  const Element* x = static_cast<const Element*>(p.x) + row * p.stride;
  const Element* weight = static_cast<const Element*>(p.weight);
  Element* out = static_cast<Element*>(p.out) + static_cast<long long>(row) * p.size;
  float squares = 0;
  for (int i = team.rank(); i < p.size; i += team.size()) squares += to_float(x[i]) * to_float(x[i]);
  const float factor = 1 / sqrtf(team.sum(squares) / static_cast<float>(p.size) + p.epsilon);
  for (int i = team.rank(); i < p.size; i += team.size()) {
    Element normal;
    store(normal, to_float(x[i]) * factor);
    store(out[i], to_float(weight[i]) * to_float(normal));
  }
}

// The next token of a sequence: the likeliest, or one drawn by its probability from the fewest that have top_p together
// (arXiv 1904.09751).
struct NextToken {
  const float* logits;  // (rows, vocabulary)
  int* tokens;          // (rows): written
  int* lengths;         // (rows): each grows by the token
  int first;            // the sequence of row 0
  unsigned long long seed;
  int vocabulary;
  float temperature;  // 0: the likeliest
  float top_p;
};

// In [0, 1); another one for each sequence and length (splitmix64).
ROWS_FUNCTION float random_of(unsigned long long seed, int sequence, int length) {
  unsigned long long x =
      seed + 0x9E3779B97F4A7C15ULL * ((static_cast<unsigned long long>(sequence) << 32) + length + 1);
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ x >> 27) * 0x94D049BB133111EBULL;
  return static_cast<float>((x ^ x >> 31) >> 40) * 0x1p-24F;
}

template <typename Element, typename Team>
ROWS_FUNCTION void compute(const NextToken& p, int row, const Team& team) {
  const float* logits = p.logits + static_cast<long long>(row) * p.vocabulary;
  int likeliest = p.vocabulary;
  float largest = -float_of(0x7F800000U);  // infinity
  for (int i = team.rank(); i < p.vocabulary; i += team.size()) {
    const bool is_first = likeliest == p.vocabulary && logits[i] == logits[i];  // NaN never leads
    if (is_first || logits[i] > largest) largest = logits[likeliest = i];
  }
  const float most = team.largest(largest);
  likeliest = team.least(largest == most ? likeliest : p.vocabulary);
  if (likeliest == p.vocabulary) likeliest = 0;  // all are NaN
  int chosen = likeliest;
  if (p.temperature > 0) {
    const auto weight = [&](int i) { return expf((logits[i] - most) / p.temperature); };
    const auto weight_from = [&](float least) {  // of all tokens that have so much
      float sum = 0;
      for (int i = team.rank(); i < p.vocabulary; i += team.size()) sum += weight(i) >= least ? weight(i) : 0;
      return team.sum(sum);
    };
    // The largest weight from which on tokens have top_p, between `least` and `above`.
    const float wanted = p.top_p * weight_from(0);
    float least = 0, above = 1;
    for (int i = 0; i < 30; ++i) {
      const float middle = (least + above) / 2;
      (weight_from(middle) >= wanted ? least : above) = middle;
    }
    const float goal = weight_from(least) * random_of(p.seed, p.first + row, p.lengths[row]);
    // Each thread has neighbours here, so that tokens are passed in their order.
    const auto border = [&](int rank) {
      return static_cast<int>(static_cast<long long>(p.vocabulary) * rank / team.size());
    };
    float own = 0;
    for (int i = border(team.rank()); i < border(team.rank() + 1); ++i) own += weight(i) >= least ? weight(i) : 0;
    float passed = team.sum_before(own);
    int drawn = p.vocabulary;
    for (int i = border(team.rank()); i < border(team.rank() + 1); ++i) {
      if (weight(i) < least) continue;
      passed += weight(i);
      if (drawn == p.vocabulary && passed > goal) drawn = i;
    }
    drawn = team.least(drawn);
    if (drawn < p.vocabulary) chosen = drawn;
  }
  if (team.rank() == 0) {
    p.tokens[row] = chosen;
    ++p.lengths[row];
  }
}

#ifdef __CUDACC_RTC__

// The threads of a block.
struct Team {
  static constexpr int kMostThreads = 1024;

  __device__ int rank() const { return threadIdx.x; }
  __device__ int size() const { return blockDim.x; }
  __device__ float sum(float x) const {
    return joined(x, [](float a, float b) { return a + b; });
  }
  __device__ float largest(float x) const {
    return joined(x, [](float a, float b) { return fmaxf(a, b); });
  }
  __device__ int least(int x) const {
    return joined(x, [](int a, int b) { return min(a, b); });
  }
  // Of the threads before this one.
  __device__ float sum_before(float x) const {
    __shared__ float values[kMostThreads];
    __syncthreads();
    values[rank()] = x;
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < rank(); ++i) sum += values[i];
    return sum;
  }

 private:
  // size() is a power of two.
  template <typename T, typename Join>
  __device__ T joined(T x, Join join) const {
    __shared__ T values[kMostThreads];
    __syncthreads();  // all have read what was here
    values[rank()] = x;
    for (int step = size() / 2; step > 0; step /= 2) {
      __syncthreads();
      if (rank() < step) values[rank()] = join(values[rank()], values[rank() + step]);
    }
    __syncthreads();
    return values[0];
  }
};

// Grid: a block a row. ELEMENT is defined by who compiles.
extern "C" __global__ void __launch_bounds__(Team::kMostThreads) embedding(Embedding p) {
  compute<ELEMENT>(p, blockIdx.x, Team());
}
extern "C" __global__ void __launch_bounds__(Team::kMostThreads) rms_norm(RmsNorm p) {
  compute<ELEMENT>(p, blockIdx.x, Team());
}
extern "C" __global__ void __launch_bounds__(Team::kMostThreads) next_token(NextToken p) {
  compute<ELEMENT>(p, blockIdx.x, Team());
}

#else

// One thread.
struct Team {
  static int rank() { return 0; }
  static int size() { return 1; }
  static float sum(float x) { return x; }
  static float largest(float x) { return x; }
  static int least(int x) { return x; }
  static float sum_before(float) { return 0; }
};

#endif
