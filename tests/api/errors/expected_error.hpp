// A call of forward spoiled, the error that it must give, and what spoiled calls point to.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "cases/small_call.hpp"
#include "tessella/attention.hpp"

namespace tessella::tests {

namespace ts = tessella;

struct ExpectedError {
  const char* name;
  std::function<void(SmallCall&)> spoil;
  ts::ErrorCode code;
  const char* message;  // part of the message
};

// By subject.
std::span<const ExpectedError> tensor_errors();
std::span<const ExpectedError> length_errors();
std::span<const ExpectedError> mask_errors();
std::span<const ExpectedError> score_errors();
std::span<const ExpectedError> execution_errors();

inline constexpr auto kInvalid = ts::ErrorCode::invalid_argument;
inline constexpr auto kUnsupported = ts::ErrorCode::unsupported;

// Values that a spoiled call points to.
inline int32_t g_numbers[] = {0, 2, 4, 6, -1, 9};
inline float g_floats[64] = {};
inline uint8_t g_bools[64] = {};

inline ts::TensorView ints(int first, int64_t count) { return ts::view(g_numbers + first, ts::i32, {count}); }

// Two sequences of 4 and 2 queries and of 6 and 4 keys, packed.
inline void pack(SmallCall& c) {
  static const int32_t cu_q[] = {0, 4, 6}, cu_kv[] = {0, 6, 10};
  c.args.q = ts::view(c.q.data(), ts::f32, {6, kHeadsQ, kDim});
  c.args.k = ts::view(c.k.data(), ts::f32, {10, kHeadsKv, kDim});
  c.args.v = ts::view(c.v.data(), ts::f32, {10, kHeadsKv, kDim});
  c.args.out = ts::view(c.out.data(), ts::f32, {6, kHeadsQ, kDim});
  c.args.lse = {};
  c.args.cu_seqlens_q = ts::view(cu_q, ts::i32, {3});
  c.args.cu_seqlens_kv = ts::view(cu_kv, ts::i32, {3});
  c.options.max_seqlen_q = 4;
  c.options.max_seqlen_kv = 6;
}

}  // namespace tessella::tests
