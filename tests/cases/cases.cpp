#include "cases/cases.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace tessella::tests {
namespace {

// The one list of a case's fields, for writing and reading.
template <typename AnyCase, typename Visit>
void fields(AnyCase& c, Visit visit) {
  visit("kernel", c.kernel);
  visit("device", c.device);
  visit("dtype", c.dtype);
  visit("out_dtype", c.out_dtype);
  visit("kv_dtype", c.kv_dtype);
  visit("kv_scale", c.kv_scale);
  visit("q_scale", c.q_scale);
  visit("out_scale", c.out_scale);
  visit("amax", c.amax);
  visit("scale_block", c.scale_block);
  visit("outliers", c.outliers);
  visit("v_in_k", c.v_in_k);
  visit("transposed_v", c.transposed_v);
  visit("layout", c.layout);
  visit("shift", c.shift);
  visit("batch", c.batch);
  visit("heads_q", c.heads_q);
  visit("heads_kv", c.heads_kv);
  visit("seqlen_q", c.seqlen_q);
  visit("seqlen_kv", c.seqlen_kv);
  visit("head_dim_qk", c.head_dim_qk);
  visit("head_dim_v", c.head_dim_v);
  visit("packed_q", c.packed_q);
  visit("packed_kv", c.packed_kv);
  visit("seqlens_q", c.seqlens_q);
  visit("seqlens_kv", c.seqlens_kv);
  visit("leftpad_kv", c.leftpad_kv);
  visit("cache_batch_idx", c.cache_batch_idx);
  visit("page_size", c.page_size);
  visit("window_left", c.window_left);
  visit("window_right", c.window_right);
  visit("causal_top_left", c.causal_top_left);
  visit("chunk", c.chunk);
  visit("keep_first", c.keep_first);
  visit("prefix", c.prefix);
  visit("document", c.document);
  visit("dense", c.dense);
  visit("block_map", c.block_map);
  visit("block_q", c.block_q);
  visit("block_kv", c.block_kv);
  visit("draft_mask", c.draft_mask);
  visit("key_ranges", c.key_ranges);
  visit("query_ranges", c.query_ranges);
  visit("mask_region", c.mask_region);
  visit("score_order", c.score_order);
  visit("bias", c.bias);
  visit("bias_f32", c.bias_f32);
  visit("bias_mean", c.bias_mean);
  visit("alibi", c.alibi);
  visit("scale", c.scale);
  visit("softcap", c.softcap);
  visit("sink", c.sink);
  visit("dropout", c.dropout);
  visit("spread", c.spread);
  visit("mean", c.mean);
  visit("lse", c.lse);
  visit("threads", c.threads);
  visit("plan", c.plan);
  visit("batch_invariant", c.batch_invariant);
  visit("few", c.few);
  visit("num_splits", c.num_splits);
  visit("need_not_be_deterministic", c.need_not_be_deterministic);
  visit("max_seqlen", c.max_seqlen);
  visit("memory_seed", c.memory_seed);
  visit("guard", c.guard);
  visit("gradients", c.gradients);
  visit("gradients_f32", c.gradients_f32);
  visit("d_lse", c.d_lse);
  visit("masked_nan", c.masked_nan);
  visit("seed", c.seed);
}

// Numbers with as many digits as it takes to read them back: a dropout of 0.9999999 is not 1.
template <typename T>
std::string string_of(const T& value) {
  if constexpr (std::is_same_v<T, double>) {
    std::array<char, 32> digits{};
    return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
  } else {
    std::ostringstream line;
    line << value;
    return line.str();
  }
}

template <typename T>
void read(std::string_view shown, T& value) {
  if constexpr (std::is_same_v<T, std::string>) {
    value = shown;
  } else {
    std::istringstream stream{std::string(shown)};
    if (!(stream >> value)) throw std::invalid_argument("not a value: " + std::string(shown));
  }
}

}  // namespace

std::string to_string(const Case& c) {
  std::vector<std::string> defaults;
  const Case untouched;
  fields(untouched, [&](const char*, const auto& value) { defaults.push_back(string_of(value)); });
  std::string line;
  size_t field = 0;
  fields(c, [&](const char* name, const auto& value) {
    const std::string shown = string_of(value);
    if (shown != defaults[field++]) line += (line.empty() ? "" : " ") + std::string(name) + "=" + shown;
  });
  return line;
}

Case parse(std::string_view line) {
  Case c;
  std::istringstream words{std::string(line)};
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    bool known = false;
    fields(c, [&](const char* name, auto& value) {
      if (word.substr(0, equals) != name || equals == std::string::npos) return;
      read(std::string_view(word).substr(equals + 1), value);
      known = true;
    });
    if (!known) throw std::invalid_argument("no field of a case: " + word);
  }
  return c;
}

namespace {

int64_t random_length(Random& random) {
  static constexpr int64_t kBorders[] = {15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 95, 96, 127, 128, 129};
  if (random.chance(0.03)) return 0;
  if (random.chance(0.2)) return random.one_of(kBorders);
  if (random.chance(0.02)) return random.in(250, 260);
  return random.chance(0.3) ? random.in(1, 3) : random.in(1, 40);
}

int64_t random_head_dim(Random& random) {
  static constexpr int64_t kUsual[] = {16, 32, 64, 80, 96, 128};
  if (random.chance(0.4)) return random.one_of(kUsual);
  if (random.chance(0.02)) return random.one_of({int64_t{192}, int64_t{256}, int64_t{512}});
  return random.in(1, 40);
}

}  // namespace

std::string random_axes(Random& random) {
  std::string axes;
  for (const char axis : {'b', 'h', 'q', 'k'}) {
    if (random.chance(0.6)) axes += axis;
  }
  return axes.empty() ? "1" : axes;
}

std::string random_axes_of_ranges(Random& random) {
  static constexpr const char* kAxes[] = {"1", "1", "b", "h", "bh"};
  return random.one_of(kAxes);
}

namespace {

std::vector<std::string> split(std::string_view words) {
  std::vector<std::string> list;
  std::istringstream stream{std::string(words)};
  for (std::string word; stream >> word;) list.push_back(word);
  return list;
}

void random_shape(Random& random, Case& c) {
  static constexpr int64_t kGroups[] = {1, 1, 1, 2, 3, 4, 8};
  c.batch = random.chance(0.02) ? 0 : random.in(1, 3);
  c.heads_kv = random.in(1, 3);
  c.heads_q = c.heads_kv * random.one_of(kGroups);
  c.seqlen_q = random_length(random);
  c.seqlen_kv = random.chance(0.4) ? c.seqlen_q : random_length(random);
  c.head_dim_qk = random_head_dim(random);
  c.head_dim_v = random.chance(0.7) ? c.head_dim_qk : random_head_dim(random);
  limit_work(random, c);
  const double tables = 0.2;
  c.packed_q = random.chance(tables);
  c.packed_kv = random.chance(c.packed_q ? 0.8 : 0.1);
  c.seqlens_q = random.chance(tables);
  c.seqlens_kv = random.chance(tables);
  c.leftpad_kv = random.chance(0.12);
  static constexpr int64_t kPages[] = {1, 3, 8, 16, 32, 64, 128};
  if (!c.packed_kv && random.chance(tables)) c.page_size = random.one_of(kPages);
}

void random_masks(Random& random, Case& c) {
  if (random.chance(0.35)) c.window_right = random.chance(0.7) ? 0 : random.in(0, 20);
  if (random.chance(0.2)) c.window_left = random.in(0, 50);
  c.causal_top_left = random.chance(0.06);
  if (random.chance(0.08)) c.chunk = random.in(1, 40);
  if (random.chance(0.1)) c.keep_first = random.in(1, 12);
  c.prefix = random.chance(0.08);
  c.document = random.chance(0.1);
  if (random.chance(0.1)) c.dense = random_axes(random);
  if (random.chance(0.08)) {
    c.block_map = random_axes(random);
    c.block_q = random.in(1, 40);
    c.block_kv = random.in(1, 40);
  }
}

// Masks with regions larger than tiles, and NaN in keys that no query sees.
void random_regions(Random& random, Case& c) {
  c.mask_region = random.one_of({int64_t{16}, int64_t{48}, int64_t{64}, int64_t{100}, int64_t{200}});
  c.masked_nan = random.chance(0.5);
  c.batch = random.in(1, 2);
  c.heads_kv = random.in(1, 2);
  c.heads_q = c.heads_kv * random.in(1, 3);
  c.seqlen_q = random.chance(0.2) ? random.in(1, 20) : random.in(20, 300);
  c.seqlen_kv = random.chance(0.3) ? c.seqlen_q : random.in(64, 700);
  c.head_dim_qk = random.in(1, 20);
  c.head_dim_v = random.in(1, 20);
  limit_work(random, c);
  const double kind = random.uniform();
  if (kind < 0.55) c.dense = random_axes(random);
  if (kind > 0.4 && kind < 0.8) {
    c.block_map = random_axes(random);
    c.block_q = random.chance(0.3) ? 1 : random.in(1, 150);
    c.block_kv = random.chance(0.3) ? 1 : random.in(1, 150);
  }
  c.document = kind > 0.75;
  if (random.chance(0.2)) {  // a band with holes, with element masks and without
    c.causal_top_left = true;
    (random.chance(0.5) ? c.chunk : c.window_left) = random.in(1, 150);
    if (random.chance(0.3)) c.keep_first = random.in(1, 12);
    if (random.chance(0.5)) {
      c.dense.clear();
      c.block_map.clear();
      c.document = false;
    }
  }
}

void random_scores(Random& random, Case& c) {
  if (random.chance(0.15)) {
    c.bias = random_axes(random);
    c.bias_f32 = random.chance(0.5);
  }
  if (random.chance(0.1)) c.alibi = random.chance(0.5) ? "h" : "bh";
  if (random.chance(0.15)) c.scale = random.chance(0.1) ? -0.25 : random.uniform() + 0.01;
  if (random.chance(0.1)) c.softcap = random.chance(0.5) ? 30 : 1 + 4 * random.uniform();
  c.sink = random.chance(0.12);
  if (random.chance(0.12))
    c.dropout = random.chance(0.2) ? random.one_of({1e-6, 0.99, 0.9999999}) : random.uniform() * 0.6;
  if (random.chance(0.2)) c.spread = random.chance(0.5) ? 8 : 40;
  if (random.chance(0.1)) c.mean = 30 * random.uniform() - 15;
  c.lse = random.chance(0.8);
}

}  // namespace

void draw_score_order(Random& random, Case& c) {
  static constexpr const char* kOrders[] = {"bhkq", "qbhk", "kqhb", "bqkh"};
  if (random.chance(0.3)) c.score_order = random.one_of(kOrders);
}

void limit_work(Random& random, Case& c) {
  constexpr int64_t kMostProducts = 2'000'000;
  const auto products = [&] {
    return c.batch * c.heads_q * c.seqlen_q * c.seqlen_kv * std::max(c.head_dim_qk, c.head_dim_v);
  };
  if (products() > kMostProducts) c.batch = 1;
  if (products() > kMostProducts) c.heads_q = c.heads_kv = 1;
  if (products() > kMostProducts) c.seqlen_q = random.in(1, 9);
}

namespace {

// Draws the kinds of a case's scales.
class ScaleKinds {
 public:
  ScaleKinds(Random& random, Case& c) : random_(random), finest_(random.one_of(kFinest)) {
    static constexpr int64_t kBlocks[] = {1, 3, 7, 64, 128, 200};
    if (finest_ == "bh") c.scale_block = random.one_of(kBlocks);
  }
  std::string operator()(double absent) {
    if (random_.chance(absent)) return "";
    return random_.chance(0.5) ? finest_ : random_.chance(0.5) ? "1" : "h";
  }

 private:
  // Packed tensors have scales of sequences only where they have none of blocks.
  static constexpr const char* kFinest[] = {"th", "bh", "bh", "sh"};
  Random& random_;
  std::string finest_;
};

}  // namespace

void draw_out_of_float8(Random& random, Case& c) {
  ScaleKinds scale(random, c);
  if (random.chance(0.7)) c.out_dtype = random.chance(0.5) ? "f8e4m3fn" : "f8e5m2";
  if (c.out_dtype.starts_with("f8")) c.out_scale = scale(0.2);
  c.amax = scale(0.3);
}

void draw_float8(Random& random, Case& c) {
  ScaleKinds scale(random, c);
  c.kv_dtype = c.dtype;
  c.q_scale = scale(0.2);
  c.kv_scale = scale(0.2);
  c.outliers = random.chance(0.2);
  c.bias_f32 = true;
  if (c.layout == "qkv") c.layout = "bshd";
  static constexpr const char* kOuts[] = {"bf16", "bf16", "f16", "f32", "f8e4m3fn", "f8e5m2"};
  c.out_dtype = random.one_of(kOuts);
  if (c.out_dtype.starts_with("f8")) c.out_scale = scale(0.2);
  c.amax = scale(0.7);
  c.transposed_v = !c.packed_kv && c.page_size == 0 && !c.cache_batch_idx && random.chance(0.3);
}

Case of_eight_bits(Case c) {
  Random random(~c.seed);
  c.out_scale = c.amax = "";
  c.scale_block = 0;
  if (c.dtype.starts_with("f8")) {
    draw_float8(random, c);
  } else {
    draw_out_of_float8(random, c);
    if (!c.out_dtype.starts_with("f8") && c.amax.empty()) c.amax = "1";
  }
  return c;
}

Case random_case(uint64_t seed, std::string_view kernel, std::string_view dtypes) {
  Random random(seed);
  Case c;
  c.kernel = kernel;
  c.seed = seed;
  const std::vector<std::string> list = split(dtypes);
  c.dtype = list[static_cast<size_t>(random.below(static_cast<int64_t>(list.size())))];
  if (random.chance(0.15)) c.out_dtype = "f32";
  static constexpr const char* kLayouts[] = {"bshd", "bshd", "bhsd", "sliced", "qkv"};
  c.layout = random.one_of(kLayouts);
  if (random.chance(0.3)) c.shift = random.in(1, 33);
  random_shape(random, c);
  random_masks(random, c);
  random_scores(random, c);
  c.threads = random.chance(0.7) ? 1 : random.in(2, 3);
  c.plan = random.chance(0.5);
  c.guard = random.chance(0.5);
  c.memory_seed = c.dropout > 0 && random.chance(0.3);
  c.batch_invariant = random.chance(0.2);
  if (random.chance(0.05)) {  // tiles that all rows see whole, between others
    c.seqlen_kv = random.in(300, 900);
    c.window_left = random.in(100, 600);
  }
  if ((!c.bias.empty() || c.sink) && random.chance(0.3)) c.bias_mean = 400 * random.uniform() - 200;
  if (random.chance(0.12)) c.draft_mask = random.chance(0.7) ? "b" : "1";
  if (kernel.starts_with("cpu.") && random.chance(0.15)) random_regions(random, c);
  Random of_ranges(seed ^ 0x72616e676573);  // other draws stay
  if (of_ranges.chance(0.1)) c.key_ranges = random_axes_of_ranges(of_ranges);
  if (of_ranges.chance(0.1)) c.query_ranges = random_axes_of_ranges(of_ranges);
  if (!c.packed_kv && c.page_size == 0) c.cache_batch_idx = random.chance(0.15);
  if (!(c.bias + c.dense + c.block_map + c.draft_mask).empty()) draw_score_order(random, c);
  if (c.dtype.starts_with("f8")) {
    draw_float8(random, c);
  } else if ((kernel.ends_with("forward_widened") || kernel == "reference.attention") && random.chance(0.3)) {
    draw_out_of_float8(random, c);
  }
  return c;
}

Case random_backward_case(uint64_t seed, std::string_view kernel, std::string_view dtypes) {
  return supported(backward_of(random_case(seed, kernel, dtypes)));
}

namespace {

Case supported_by_forward_f8(Case c) {
  c.dtype = c.kv_dtype = "f8e4m3fn";
  if (c.out_dtype.starts_with("f8")) c.out_dtype = "bf16";
  c.out_scale = c.amax = "";
  const bool takes_registers = !c.bias.empty() || c.dropout > 0;
  const int64_t most = takes_registers ? 128 : 256;
  c.head_dim_qk = std::min<int64_t>((c.head_dim_qk + 15) / 16 * 16, 256);
  c.head_dim_v = std::min<int64_t>((c.head_dim_v + 15) / 16 * 16, most);
  c.shift = c.shift / 16 * 16;
  if (c.layout == "sliced" || c.layout == "qkv") c.layout = "bshd";
  c.page_size = (c.page_size + 7) / 8 * 8;
  if (c.page_size > 0 || c.transposed_v) c.leftpad_kv = false;
  return c;
}

}  // namespace

Case supported(Case c) {
  if (c.kernel == "cuda.forward_f8_sm90") return supported_by_forward_f8(c);
  if (c.kernel != "cuda.backward_sm90") return c;
  if (c.dtype != "f16") c.dtype = "bf16";
  c.head_dim_qk = std::min<int64_t>((c.head_dim_qk + 7) / 8 * 8, 256);
  c.head_dim_v = std::min<int64_t>((c.head_dim_v + 7) / 8 * 8, 256);
  c.shift = c.shift / 8 * 8;
  if (c.layout == "sliced" || c.layout == "qkv") c.layout = "bshd";
  return c;
}

Case backward_of(Case c) {
  Random random(c.seed + 1);
  c.page_size = 0;
  c.cache_batch_idx = false;
  c.draft_mask = "";
  c.lse = true;
  c.spread = std::min(c.spread, 8.0);
  c.batch_invariant = false;
  for (const char of : {'q', 'k', 'v'}) {
    if (random.chance(0.85)) c.gradients += of;
  }
  if (!c.bias.empty() && random.chance(0.8)) c.gradients += 'b';
  if (c.sink && random.chance(0.8)) c.gradients += 's';
  if (!c.alibi.empty() && random.chance(0.8)) c.gradients += 'a';
  if (c.gradients.empty()) c.gradients = "qkv";
  c.gradients_f32 = random.chance(0.2);
  c.d_lse = random.chance(0.2);
  return c;
}

}  // namespace tessella::tests
