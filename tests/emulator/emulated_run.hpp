// A case's call on the GPU's kernels as the emulator runs them: the recipe's steps one after the other, as
// cuda/launch/run.hpp queues them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cases/backward_call.hpp"
#include "cases/call.hpp"
#include "cases/cases.hpp"
#include "cuda/launch/recipe.hpp"

namespace tessella::tests {

using MakeRecipe = cuda::Recipe (*)(const core::Shape& bounds, const cuda::DeviceInfo& device);

// Whether those of user.hpp take the place of causal_top_left and of alibi, which must be a slope a head; beside_alibi:
// of half of each slope, and ALiBi itself adds the other half.
enum class Sources { none, any, beside_alibi };

// A GPU of so many multiprocessors, by which decoding splits keys; or in so many splits, or by a schedule, which may be
// the map of a mask too.
struct Gpu {
  int num_sms = 3;
  int num_splits = 0;
  bool scheduled = false;
  bool few = false;  // query_class
  // Of what tables and a made schedule hold in place of what is right; 0: that.
  uint64_t hostile_tables = 0;
  uint64_t hostile_schedule = 0;
  // Of the seqlens_kv that a schedule was made of, which have changed since; 0: those of the call.
  uint64_t stale_schedule = 0;
};
// Over a call, whose results nobody checks, as a plan for sequences of max_seqlen queries and keys runs it. "" or what
// is wrong.
std::string run_recipe(Call& call, MakeRecipe recipe, int64_t max_seqlen, uint64_t seed,
                       Sources sources = Sources::none, const Gpu& gpu = {});
std::string run_decode(Call& call, MakeRecipe recipe, int64_t max_seqlen, uint64_t seed, const Gpu& gpu);
std::string run_sm90(Call& call, const Case& c, uint64_t seed, Sources sources = Sources::none);
std::string run_sm80(Call& call, uint64_t seed);
std::string run_backward(BackwardCall& call, MakeRecipe recipe, int64_t max_seqlen, uint64_t seed,
                         Sources sources = Sources::none, const Gpu& gpu = {});

// The same with results that are checked. `results`, if wanted, every byte of out and lse.
std::string run_sm90(const Case& c, uint64_t seed, std::vector<std::byte>* results = nullptr,
                     Sources sources = Sources::none);
std::string run_sm80(const Case& c, uint64_t seed);

}  // namespace tessella::tests
