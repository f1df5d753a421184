// Decoding with keys and values in pages: two sequences have a prompt in common, by a fork, and go on each by itself.
#include <cmath>
#include <cstdio>
#include <vector>

#include <tessella/attention.hpp>
#include <tessella/paged_cache.hpp>

namespace ts = tessella;
constexpr int64_t kHeads = 4, kHeadsKv = 2, kDim = 32;
// What a model's projections would give: rows (tokens, heads, head_dim) of numbers, others for q, k and v.
std::vector<float> project(const std::vector<int>& tokens, size_t heads, double angle) {
  std::vector<float> rows(tokens.size() * heads * kDim);
  for (size_t i = 0, row = heads * kDim; i < rows.size(); ++i) {
    rows[i] = static_cast<float>(2 * std::sin(angle * tokens[i / row] * static_cast<double>(i % row + 1)));
  }
  return rows;
}
ts::TensorView view(std::vector<float>& rows, int64_t heads) {
  return ts::view(rows.data(), ts::f32, {1, static_cast<int64_t>(rows.size()) / (heads * kDim), heads, kDim});
}
int main() try {
  ts::PagedCache cache({.num_pages = 16, .page_size = 8, .heads_kv = kHeadsKv, .head_dim = kDim});
  float error = 0;
  // Attention of a sequence's last tokens over all of them: in the cache, which has them from now on, and without it.
  const auto attend = [&](int64_t id, std::vector<int> tokens, int64_t num_new) {
    auto all_k = project(tokens, kHeadsKv, 0.3), all_v = project(tokens, kHeadsKv, 0.5);
    tokens.erase(tokens.begin(), tokens.end() - num_new);
    std::vector<float> q = project(tokens, kHeads, 0.7), out(q.size()), expected(q.size());
    auto k = project(tokens, kHeadsKv, 0.3), v = project(tokens, kHeadsKv, 0.5);
    cache.reserve({id}, {cache.seqlens({id})[0] + num_new});
    const ts::PageTable table = cache.page_table({id});
    const std::vector<int32_t> lengths = cache.seqlens({id});
    const auto seqlens = ts::view(lengths.data(), ts::i32, {1});
    const ts::TensorView k_new = view(k, kHeadsKv), v_new = view(v, kHeadsKv);
    cache.append({.k_new = k_new, .v_new = v_new, .seqlens_kv = seqlens, .page_table = table.view()});
    ts::ForwardArgs args{.q = view(q, kHeads), .k = cache.k(), .v = cache.v(), .out = view(out, kHeads)};
    args.seqlens_kv = seqlens;
    args.page_table = table.view();
    ts::forward(args, {.mask = ts::Mask::causal()});
    args = {.q = args.q, .k = view(all_k, kHeadsKv), .v = view(all_v, kHeadsKv), .out = view(expected, kHeads)};
    ts::forward(args, {.mask = ts::Mask::causal()});
    for (size_t i = 0; i < out.size(); ++i) error = std::fmax(error, std::fabs(out[i] - expected[i]));
    return static_cast<int>(1000 * std::fabs(out[0])) % 50;  // a token, as a model would choose one
  };
  const std::vector<int> prompt = {31, 41, 5, 9, 26, 5, 35, 8, 9, 7, 9, 32, 38};
  const int64_t parent = cache.new_sequence();
  attend(parent, prompt, std::ssize(prompt));
  for (const int64_t id : {cache.fork(parent), parent}) {
    std::vector<int> tokens = prompt;
    tokens.push_back(50 + static_cast<int>(id));
    for (int step = 0; step < 12; ++step) tokens.push_back(attend(id, tokens, 1));
  }
  std::printf("largest difference to attention without a cache: %.1e\n", static_cast<double>(error));
  return error < 1e-5f ? 0 : 1;
} catch (const ts::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
