// Random cases of decoding.
#include <algorithm>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "cases/cases.hpp"

namespace tessella::tests {
namespace {

// What decode's kernels are compiled for.
struct DecodeConfiguration {
  std::string dtype;
  int64_t head_dim_qk, head_dim_v;  // the longest of those that are padded to the same
  int64_t rows;                     // of a sequence and KV head: more than half of them
  bool softcap, alibi, draft_mask, batch_invariant, dense, key_ranges, query_ranges;
};

DecodeConfiguration configuration(int idx, std::string_view dtypes) {
  struct HeadDims {
    int64_t qk, v;
  };
  static constexpr HeadDims kHeadDims[] = {{128, 128}, {64, 64}, {32, 32}, {256, 256}, {96, 96}, {192, 128}, {64, 96}};
  static constexpr int64_t kRows[] = {8, 8, 16, 32, 64};
  std::istringstream stream{std::string(dtypes)};
  const std::vector<std::string> list{std::istream_iterator<std::string>(stream), {}};
  const size_t of_dims = static_cast<size_t>(idx) / list.size();
  Random random(static_cast<uint64_t>(idx));
  const HeadDims dims = kHeadDims[of_dims % std::size(kHeadDims)];
  return {.dtype = list[static_cast<size_t>(idx) % list.size()],
          .head_dim_qk = dims.qk,
          .head_dim_v = dims.v,
          .rows = random.one_of(kRows),
          .softcap = random.chance(0.2),
          .alibi = random.chance(0.2),
          .draft_mask = random.chance(0.25),
          .batch_invariant = random.chance(0.15),
          .dense = random.chance(0.1),
          .key_ranges = random.chance(0.15),
          .query_ranges = random.chance(0.1)};
}

// Queries and heads on one that are together more than half of `rows`.
void draw_rows(const DecodeConfiguration& config, Random& random, Case& c) {
  const int64_t most = config.rows, least = most == 8 ? 1 : most / 2 + 1;
  int64_t group = 0;
  if (config.batch_invariant) {  // compiled for one query
    group = random.in(least, most);
    c.seqlen_q = random.in(1, std::min<int64_t>(16, 2 + 64 / group));
  } else {
    do {
      const int64_t rows = random.in(least, most);
      c.seqlen_q = random.chance(0.4) ? 1 : random.in(1, std::min<int64_t>(rows, 16));
      group = rows / c.seqlen_q;
    } while (group * c.seqlen_q < least);
  }
  c.heads_kv = random.in(1, 3);
  c.heads_q = c.heads_kv * group;
}

void draw_cache(Random& random, Case& c) {
  const double length = random.uniform();
  c.seqlen_kv = length < 0.1   ? random.in(0, 40)
                : length < 0.6 ? random.in(1, 600)
                : length < 0.9 ? random.in(300, 1500)
                               : random.in(1000, 3000);
  c.batch = random.chance(0.01) ? 0 : random.in(1, 6);
  const auto products = [&] {
    return c.batch * c.heads_q * c.seqlen_q * c.seqlen_kv * std::max(c.head_dim_qk, c.head_dim_v);
  };
  if (constexpr int64_t kMost = 6'000'000; products() > kMost && random.chance(0.98)) {
    c.batch = std::clamp<int64_t>(kMost * c.batch / products(), 1, c.batch);
    if (products() > kMost) {
      c.heads_q /= c.heads_kv;
      c.heads_kv = 1;
    }
    c.seqlen_kv = std::min(c.seqlen_kv, c.seqlen_kv * kMost / std::max<int64_t>(products(), 1));
  }
  c.packed_q = random.chance(0.15);
  c.seqlens_q = random.chance(0.15);
  c.seqlens_kv = random.chance(0.7);
  c.leftpad_kv = random.chance(0.2);
  static constexpr int64_t kPages[] = {1, 2, 3, 7, 16, 64, 256};
  const double held = random.uniform();
  if (held < 0.35) {
    c.page_size = random.one_of(kPages);
  } else if (held < 0.5) {
    c.cache_batch_idx = true;
  } else if (held < 0.6) {
    c.packed_kv = true;
  }
}

void draw_masks(Random& random, Case& c) {
  if (random.chance(0.5)) c.window_right = random.chance(0.8) ? 0 : random.in(0, 20);
  if (random.chance(0.25)) c.window_left = random.chance(0.5) ? random.in(0, 50) : random.in(50, 900);
  if (random.chance(0.15)) c.keep_first = random.chance(0.7) ? random.in(1, 12) : random.in(1, 400);
  if (random.chance(0.08)) c.chunk = random.chance(0.5) ? random.in(1, 40) : random.in(100, 700);
  c.prefix = random.chance(0.08);
  c.causal_top_left = random.chance(0.04);
}

// Of kernels that take every mask without being compiled for it.
void draw_element_masks(Random& random, Case& c) {
  c.mask_region = random.one_of({int64_t{0}, int64_t{64}, int64_t{300}, int64_t{600}});
  static constexpr const char* kAxes[] = {"bhqk", "bqk", "hk", "bk", "k"};
  const double kind = random.uniform();
  if (kind < 0.5) c.dense = random.one_of(kAxes);
  if (kind > 0.4 && kind < 0.8) {
    c.block_map = random.one_of(kAxes);
    c.block_q = random.in(1, 4);
    c.block_kv = random.chance(0.3) ? 1 : random.in(1, 400);
  }
  c.document = kind > 0.75;
}

}  // namespace

Case random_decode_case(uint64_t seed, std::string_view kernel, std::string_view dtypes, int num_configurations) {
  const DecodeConfiguration config =
      configuration(static_cast<int>(seed % static_cast<uint64_t>(num_configurations)), dtypes);
  const bool splits = kernel == "cuda.decode", decodes = splits || kernel == "cuda.decode_unified_max";
  Random random(seed);
  Case c;
  c.kernel = kernel;
  c.seed = seed;
  c.dtype = config.dtype;
  if (random.chance(0.15)) c.out_dtype = "f32";
  static constexpr const char* kAligned[] = {"bshd", "bshd", "bhsd", "gaps"};
  static constexpr const char* kAny[] = {"bshd", "bhsd", "gaps", "sliced"};
  c.layout = decodes ? random.one_of(kAligned) : random.one_of(kAny);
  if (random.chance(0.3)) c.shift = decodes ? 8 * random.in(1, 4) : random.in(1, 33);
  const int64_t shorter = random.chance(0.75) ? 0 : decodes ? 8 * random.in(1, 3) : random.in(1, 31);
  c.head_dim_qk = config.head_dim_qk - shorter;
  c.head_dim_v = config.head_dim_v - (random.chance(0.7) ? shorter : 0);
  draw_rows(config, random, c);
  draw_cache(random, c);
  draw_masks(random, c);
  if (config.softcap) c.softcap = random.chance(0.5) ? 30 : 1 + 4 * random.uniform();
  if (config.alibi) c.alibi = random.chance(0.5) ? "h" : "bh";
  if (config.draft_mask) c.draft_mask = random.chance(0.7) ? "b" : "1";
  if (config.dense) c.dense = random_axes(random);
  if (config.key_ranges) c.key_ranges = random_axes_of_ranges(random);
  if (config.query_ranges) c.query_ranges = random_axes_of_ranges(random);
  if (random.chance(0.15)) c.scale = random.chance(0.4) ? -0.25 : random.uniform() + 0.01;
  if (random.chance(0.25)) c.spread = random.chance(0.5) ? 8 : 40;
  if (random.chance(0.1)) c.mean = 60 * random.uniform() - 30;
  c.sink = random.chance(0.15);
  if (c.sink && random.chance(0.3)) c.bias_mean = 400 * random.uniform() - 200;
  c.lse = random.chance(0.8);
  c.masked_nan = random.chance(0.3);
  c.threads = random.chance(0.7) ? 1 : random.in(2, 3);
  c.plan = random.chance(0.5);
  c.guard = random.chance(0.3);
  const bool is_few =
      kernel.starts_with("cpu.decode") && c.seqlen_q * (c.heads_q / c.heads_kv) > 12;  // unless named so
  c.batch_invariant = is_few || (config.batch_invariant && kernel != "cuda.decode_unified_max");
  c.few = c.batch_invariant && (splits || kernel.starts_with("cpu.decode"));
  if (kernel.starts_with("cpu.") && random.chance(0.3)) draw_element_masks(random, c);
  if (!c.batch_invariant && random.chance(0.6)) c.num_splits = splits ? random.in(1, 20) : 1;
  // As many queries as keys are another kernel's, where nothing asks for splits.
  if (splits && !c.few && c.seqlen_q > 8 && c.seqlen_kv < 4 * c.seqlen_q)
    c.num_splits = std::max<int64_t>(c.num_splits, 2);
  if (!(c.dense + c.block_map + c.draft_mask).empty()) draw_score_order(random, c);
  return c;
}

Case random_quantized_case(uint64_t seed, std::string_view kernel, std::string_view dtypes, int num_configurations) {
  Case c = random_decode_case(seed, kernel, dtypes, num_configurations);
  Random random(~seed);
  static constexpr const char* kDTypes[] = {"f8e4m3fn", "i8", "i4"};
  static constexpr const char* kScales[] = {"1", "h", "bh", "th", "th", "ph"};
  c.kv_dtype = kDTypes[seed / static_cast<uint64_t>(num_configurations) % 3];
  c.kv_scale = random.one_of(kScales);
  if (c.layout == "qkv") c.layout = "bshd";
  // A byte has two elements of 4 bits; on a GPU rows begin at 16 bytes.
  const int64_t step = kernel.starts_with("cuda.") ? 32 : 2;
  c.head_dim_qk = (c.head_dim_qk + step - 1) / step * step;
  c.head_dim_v = (c.head_dim_v + step - 1) / step * step;
  c.shift = c.shift / 32 * 32;
  return c;
}

Case random_mla_case(uint64_t seed, std::string_view kernel, std::string_view dtypes, int num_configurations) {
  Case c = random_decode_case(seed, kernel, dtypes, num_configurations);
  Random random(~seed);
  if (c.dtype == "f32" && kernel.starts_with("cuda.")) c.dtype = "bf16";
  c.v_in_k = true;
  struct HeadDims {
    int64_t qk, v;
  };
  static constexpr HeadDims kHeadDims[] = {{576, 512}, {576, 512}, {320, 256}, {288, 256}, {264, 256}};
  const HeadDims dims = random.one_of(kHeadDims);
  c.head_dim_qk = dims.qk;
  c.head_dim_v = dims.v;
  c.heads_q /= c.heads_kv;
  c.heads_kv = 1;
  if (random.chance(0.1) && c.heads_q > 32) c.heads_q = 128;
  constexpr int64_t kMost = 20'000'000;
  const int64_t of_key = std::max<int64_t>(c.batch, 1) * c.heads_q * c.seqlen_q * c.head_dim_qk;
  c.seqlen_kv = std::min(c.seqlen_kv, std::max<int64_t>(kMost / of_key, 20));
  return c;
}

}  // namespace tessella::tests
