#include "cases/configurations.hpp"

#include <iterator>
#include <sstream>
#include <vector>

#include "cases/random.hpp"

namespace tessella::tests {

using portable::ElementMaskSet;

namespace {

struct HeadDims {
  int64_t qk, v;
  bool long_rows = false;  // which take other tiles at this head dim, if there is nothing beside them
};
constexpr HeadDims kHeadDims[] = {{64, 64}, {128, 128}, {32, 32},         {96, 96}, {256, 256}, {192, 128},
                                  {16, 16}, {80, 80},   {128, 128, true}, {64, 64}, {17, 17},   {40, 72},
                                  {1, 40},  {512, 512}, {5, 3},           {64, 128}};

bool rows_are_whole(const Configuration& config) {
  const int64_t per_16_bytes = config.dtype == "f32" ? 4 : 8;
  return config.head_dim_qk % per_16_bytes == 0 && config.head_dim_v % per_16_bytes == 0;
}

void align(const Configuration& config, Random& random, Case& c) {
  static constexpr const char* kAligned[] = {"bshd", "bshd", "bhsd", "gaps"};
  static constexpr int64_t kOdd[] = {1, 2, 3, 5, 6, 7};  // no multiples of 16 bytes in any dtype
  if (config.is_aligned) {
    c.layout = random.one_of(kAligned);
    c.shift = 8 * random.below(5);
  } else if (rows_are_whole(config)) {
    c.shift = random.one_of(kOdd);
  }
}

// What the masks of a configuration are drawn from: each set is compiled apart. Gradients have no drafts: the last one.
constexpr ElementMaskSet kElementMasks[] = {{.documents = true},
                                            {.key_ranges = true},
                                            {.query_ranges = true},
                                            {.dense_mask = true},
                                            {.block_map = true},
                                            {.documents = true, .key_ranges = true},
                                            {.key_ranges = true, .query_ranges = true},
                                            {.draft_mask = true}};

void mask(const Configuration& config, Random& random, Case& c) {
  const auto draw = [&](bool is_there, std::string& axes, const char* fewest, const char* most) {
    if (!is_there) {
      axes.clear();
    } else if (axes.empty()) {
      axes = random.chance(0.5) ? fewest : most;
    }
  };
  const ElementMaskSet& masks = config.element_masks;
  c.document = masks.documents;
  if (masks.block_map && c.block_map.empty()) {
    c.block_q = random.in(1, 40);
    c.block_kv = random.in(1, 40);
  }
  draw(masks.dense_mask, c.dense, "qk", "bhqk");
  draw(masks.block_map, c.block_map, "qk", "hqk");
  draw(masks.draft_mask, c.draft_mask, "1", "b");
  draw(masks.key_ranges, c.key_ranges, "1", "bh");
  draw(masks.query_ranges, c.query_ranges, "1", "bh");
}

void page(const Configuration& config, Random& random, Case& c) {
  static constexpr int64_t kWhole[] = {8, 16, 48, 64, 128}, kAny[] = {1, 3, 16, 50};
  c.page_size = 0;
  if (!config.paged) return;
  c.packed_kv = c.cache_batch_idx = false;
  c.page_size = config.is_aligned ? random.one_of(kWhole) : random.one_of(kAny);
  if (config.is_aligned) c.leftpad_kv = false;  // as the copy engine wants it
}

void change_scores(const Configuration& config, Random& random, Case& c) {
  if (!config.softcap) {
    c.softcap = 0;
  } else {
    if (c.softcap == 0) c.softcap = 30;
    c.lse = config.lse;
  }
  if (!config.alibi) {
    c.alibi = "";
  } else if (c.alibi.empty()) {
    c.alibi = random.chance(0.5) ? "h" : "bh";
  }
  if (!config.bias) {
    c.bias = "";
    c.bias_f32 = true;
  } else if (c.bias.empty()) {
    c.bias = random.chance(0.5) ? "bhqk" : "k";
    c.bias_f32 = random.chance(0.5);
  }
  if (!config.dropout) {
    c.dropout = 0;
    c.memory_seed = false;
  } else if (c.dropout == 0) {
    c.dropout = 0.6 * random.uniform() + 0.01;
    c.memory_seed = random.chance(0.3);
  }
}

void apply(const Configuration& config, Random& random, Case& c) {
  c.dtype = config.dtype;
  c.head_dim_qk = config.head_dim_qk;
  c.head_dim_v = config.head_dim_v;
  if (config.long_rows) {
    c.plan = true;
    c.max_seqlen = 8192;
  }
  c.batch_invariant = config.batch_invariant;
  c.need_not_be_deterministic = config.need_not_be_deterministic;
  align(config, random, c);
  mask(config, random, c);
  page(config, random, c);
  change_scores(config, random, c);
}

}  // namespace

Configuration configuration(int idx, std::string_view dtypes, Takes takes) {
  const bool for_copy_engine = takes == Takes::copy_engine;
  std::istringstream stream{std::string(dtypes)};
  const std::vector<std::string> list{std::istream_iterator<std::string>(stream), {}};
  const auto count = static_cast<int>(list.size());
  std::vector<HeadDims> head_dims;
  for (const HeadDims& dims : kHeadDims) {
    const bool is_whole = dims.qk % 8 == 0 && dims.v % 8 == 0;
    const bool is_small = dims.qk <= 256;
    if ((is_whole || !for_copy_engine) && (is_small || takes == Takes::everything)) head_dims.push_back(dims);
  }
  const HeadDims dims = head_dims[static_cast<size_t>(idx / count) % head_dims.size()];
  Random random(static_cast<uint64_t>(idx));
  Configuration config{.dtype = list[static_cast<size_t>(idx % count)], .head_dim_qk = dims.qk, .head_dim_v = dims.v};
  config.long_rows = dims.long_rows && for_copy_engine;
  config.is_aligned = (random.chance(0.75) || for_copy_engine) && rows_are_whole(config);
  if (config.long_rows) {
    config.softcap = random.chance(0.5);  // without lse, which would take the tiles of short rows
    return config;
  }
  if (random.chance(0.3)) {
    Random of_masks(~static_cast<uint64_t>(idx));  // other draws stay
    const size_t count_of_sets = std::size(kElementMasks) - (takes == Takes::backward ? 1 : 0);
    config.element_masks = kElementMasks[static_cast<size_t>(of_masks.below(static_cast<int64_t>(count_of_sets)))];
  }
  config.softcap = random.chance(0.2);
  config.alibi = random.chance(0.2);
  config.bias = random.chance(0.25);
  config.dropout = random.chance(0.25);
  config.paged = random.chance(0.25);
  config.lse = random.chance(0.5);
  config.batch_invariant = random.chance(0.2);
  if (takes == Takes::backward) {
    config.paged = config.batch_invariant = false;
    config.need_not_be_deterministic = random.chance(0.2);
  }
  return config;
}

Case smallest_case(const Configuration& config, std::string_view kernel) {
  Case c;
  c.kernel = kernel;
  Random random(0);
  apply(config, random, c);
  return c;
}

Case random_case_of(const Configuration& config, uint64_t seed, std::string_view kernel) {
  Case c = random_case(seed, kernel, config.dtype);
  Random random(~seed);
  apply(config, random, c);
  limit_work(random, c);
  return c;
}

}  // namespace tessella::tests
