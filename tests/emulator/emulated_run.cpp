#include "emulated_run.hpp"

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>
#include <type_traits>

#include "api/call.hpp"
#include "cases/hostile_tables.hpp"
#include "cuda/kernels/forward_sm80/config.hpp"
#include "cuda/kernels/forward_sm80/recipe.hpp"
#include "cuda/kernels/forward_sm90/recipe.hpp"
#include "emulated_step.hpp"
#include "operations/attention/attention.hpp"
#include "operations/attention/sequence.hpp"

namespace tessella::tests {
namespace {

using core::AttentionArguments;

// Few multiprocessors and a small cache: sections of few heads, and a last one of more.
cuda::DeviceInfo small_gpu(int num_sms = 3) {
  cuda::DeviceInfo device = cuda::typical_device(90);
  device.num_sms = num_sms;
  device.l2_bytes = 256 << 10;
  return device;
}

// What the sources in user.hpp read: slopes by head, and the sequences' lengths.
struct SourceArrays {
  std::vector<float> slopes;  // halved
  std::vector<int32_t> len_q, len_kv;

  SourceArrays(AttentionArguments& p, Sources sources) {
    if (sources == Sources::beside_alibi) {
      const auto* whole = static_cast<const float*>(p.alibi_slopes.data);
      slopes.assign(whole, whole + p.heads_q);
      for (float& slope : slopes) slope /= 2;
      p.alibi_slopes.data = slopes.data();
    }
    for (int64_t batch_idx = 0; batch_idx < p.batch; ++batch_idx) {
      const core::Sequence sequence = core::sequence(p, batch_idx);
      len_q.push_back(static_cast<int32_t>(sequence.len_q));
      len_kv.push_back(static_cast<int32_t>(sequence.len_kv));
    }
    p.num_arrays = 3;
    p.arrays[0] = {p.alibi_slopes.data, core::DType::f32, p.heads_q};
    p.arrays[1] = {len_q.data(), core::DType::i32, p.batch};
    p.arrays[2] = {len_kv.data(), core::DType::i32, p.batch};
  }
};

void set_sources(AttentionArguments& p, Sources sources) {
  if (p.features.has(core::Feature::causal_top_left)) p.features |= core::Feature::mask_mod;
  if (p.features.has(core::Feature::alibi)) p.features |= core::Feature::score_mod;
  p.features = p.features.without(core::Feature::causal_top_left);
  if (sources == Sources::any) p.features = p.features.without(core::Feature::alibi);
}

// Memory as a plan wants it: state zero, scratch full of NaN.
class WorkspaceMemory {
 public:
  explicit WorkspaceMemory(const core::WorkspaceSize& size)
      : state_(static_cast<size_t>(size.state_bytes), Placement::guarded),
        scratch_(static_cast<size_t>(size.scratch_bytes + 63) / 64 * 64, Placement::guarded) {
    std::fill_n(state_.data(), state_.size(), std::byte{0});
    std::fill_n(scratch_.data(), scratch_.size(), std::byte{0xFF});
  }
  core::Workspace workspace() const { return {state_.data(), scratch_.data()}; }
  bool state_is_zero() const {
    return std::all_of(state_.data(), state_.data() + state_.size(), [](std::byte b) { return b == std::byte{0}; });
  }

 private:
  Memory state_, scratch_;
};

// Most words of a schedule.
void spoil(const Memory& schedule, uint64_t seed) {
  Random random(seed);
  auto* words = reinterpret_cast<int32_t*>(schedule.data());
  const double chance = random.chance(0.5) ? 0.1 : 0.8;
  for (size_t i = 0; i < schedule.size() / sizeof(int32_t); ++i) {
    if (random.chance(chance)) words[i] = hostile_word(random);
  }
}

// Other lengths of the same caches. Returns what was there.
std::vector<int32_t> change_lengths(const tessella_tensor& seqlens_kv, int64_t slots, uint64_t seed) {
  Random random(seed);
  auto* lengths = static_cast<int32_t*>(seqlens_kv.data);
  std::vector<int32_t> before(lengths, lengths + seqlens_kv.shape[0]);
  for (size_t i = 0; i < before.size(); ++i) lengths[i] = static_cast<int32_t>(random.in(0, slots));
  return before;
}

template <class SomeCall>
std::string run(SomeCall& call, AttentionArguments p, MakeRecipe recipe_of, int64_t max_seqlen, uint64_t seed,
                Sources sources, const Gpu& gpu = {}) {
  for (const core::Name name : core::kNames) p.operands[name].alignment = 16;
  std::optional<SourceArrays> arrays;
  if (sources != Sources::none) {
    arrays.emplace(p, sources);
    set_sources(p, sources);
    p.derive_mask_shape();
  }
  p.num_splits = gpu.num_splits;
  if (gpu.few) p.query_class = core::QueryClass::few;
  const bool is_map = p.features.has_any(core::kMappedMasks);
  if (gpu.scheduled) p.features |= is_map ? core::Feature::mask_map : core::Feature::schedule;
  core::AttentionShape bounds = p;
  bounds.seqlen_q = std::max(p.seqlen_q, max_seqlen);
  bounds.seqlen_kv = std::max(p.seqlen_kv, max_seqlen);
  const cuda::DeviceInfo device = small_gpu(gpu.num_sms);
  const cuda::Recipe recipe = recipe_of(bounds, device);
  if (!recipe.ineligible.empty()) return recipe.ineligible;
  const WorkspaceMemory memory(recipe.workspace);
  Memory schedule(static_cast<size_t>(recipe.made_bytes), Placement::guarded);
  std::fill_n(schedule.data(), schedule.size(), std::byte{0xFF});
  if (gpu.scheduled) p.schedule = schedule.data(), p.mask_map = schedule.data();
  try {
    std::optional<HostileTables> spoiled;
    if constexpr (std::is_same_v<SomeCall, Call>) {
      if (gpu.hostile_tables != 0) spoiled.emplace(call.args(), gpu.hostile_tables);
    }
    std::vector<int32_t> lengths;
    if constexpr (std::is_same_v<SomeCall, Call>) {
      if (gpu.stale_schedule != 0)
        lengths = change_lengths(*call.args().seqlens_kv, call.args().k->shape[1], gpu.stale_schedule);
    }
    for (const cuda::Step& step : recipe.made_before) {
      const auto launch = step.launch(bounds, &p, cuda::concurrency(step, bounds, device), {});
      if (launch) run_step(step, *launch, seed);
    }
    if constexpr (std::is_same_v<SomeCall, Call>) {
      if (gpu.stale_schedule != 0)
        std::copy(lengths.begin(), lengths.end(), static_cast<int32_t*>(call.args().seqlens_kv->data));
    }
    if (gpu.hostile_schedule != 0) spoil(schedule, gpu.hostile_schedule);
    for (const cuda::Step& step : recipe.steps) {
      const auto launch = step.launch(bounds, &p, cuda::concurrency(step, bounds, device), memory.workspace());
      if (launch) run_step(step, *launch, seed);
    }
    spoiled.reset();
    finish(call);
  } catch (const std::exception& error) {
    return error.what();
  }
  return memory.state_is_zero() ? "" : "the state is not left zero";
}

}  // namespace

std::string run_recipe(Call& call, MakeRecipe recipe, int64_t max_seqlen, uint64_t seed, Sources sources,
                       const Gpu& gpu) {
  return run(call, api::read<core::Forward>(&call.args(), call.options(), "emulated", nullptr), recipe, max_seqlen,
             seed, sources, gpu);
}

std::string run_decode(Call& call, MakeRecipe recipe, int64_t max_seqlen, uint64_t seed, const Gpu& gpu) {
  return run_recipe(call, recipe, max_seqlen, seed, Sources::none, gpu);
}

std::string run_backward(BackwardCall& call, MakeRecipe recipe, int64_t max_seqlen, uint64_t seed, Sources sources,
                         const Gpu& gpu) {
  return run(call, api::read<core::Backward>(&call.args(), call.options(), "emulated", nullptr), recipe, max_seqlen,
             seed, sources, gpu);
}

std::string run_sm90(Call& call, const Case& c, uint64_t seed, Sources sources) {
  return run_recipe(call, cuda::forward_sm90_recipe, c.max_seqlen, seed, sources);
}

std::string run_sm80(Call& call, uint64_t seed) { return run_recipe(call, cuda::forward_sm80_recipe, 0, seed); }

std::string run_sm90(const Case& c, uint64_t seed, std::vector<std::byte>* results, Sources sources) {
  Call call(c);
  if (const std::string message = run_sm90(call, c, seed, sources); !message.empty()) return message;
  if (results != nullptr) *results = call.results();
  return call.check();
}

std::string run_sm80(const Case& c, uint64_t seed) {
  Call call(c);
  const std::string message = run_sm80(call, seed);
  return message.empty() ? call.check() : message;
}

}  // namespace tessella::tests
