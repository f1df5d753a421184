// Masks are joined with &: a key is visible iff every part says so.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include <tessella/attention.hpp>
#include <tessella/ranges.hpp>

namespace ts = tessella;

int main() try {
  constexpr int64_t seqlen = 300, heads = 4, head_dim = 32;
  std::vector<float> data(seqlen * heads * head_dim);
  for (size_t i = 0; i < data.size(); ++i) data[i] = std::sin(0.37f * static_cast<float>(i));
  std::vector<float> result(data.size());
  const auto x = ts::view(data.data(), ts::f32, {1, seqlen, heads, head_dim});
  const auto out = ts::view(result.data(), ts::f32, {1, seqlen, heads, head_dim});
  const ts::ForwardArgs args{.q = x, .k = x, .v = x, .out = out};

  // Three documents of 100 tokens in one sequence: none sees another.
  std::vector<int32_t> document_of(seqlen);
  for (int64_t i = 0; i < seqlen; ++i) document_of[i] = static_cast<int32_t>(i / 100);
  const auto ids = ts::view(document_of.data(), ts::i32, {1, seqlen});

  // Causal text with two images, the tokens of each of which see each other.
  const auto images = ts::ranges::bidirectional_spans(seqlen, {{20, 84}, {150, 214}});

  // Any pattern at all, one bool per query and key, the same for every head.
  std::vector<uint8_t> even(seqlen * seqlen);
  for (int64_t i = 0; i < seqlen * seqlen; ++i) even[i] = (i % seqlen) % 2 == 0;
  const auto visible = ts::view(even.data(), ts::boolean, {1, 1, seqlen, seqlen});

  const struct {
    const char* name;
    ts::Mask mask;
  } masks[] = {
      {"causal", ts::Mask::causal()},
      {"sliding window, and always the first 4 keys", ts::Mask::window(64, 0) & ts::Mask::keep_first(4)},
      {"packed documents, causal in each", ts::Mask::causal() & ts::Mask::document(ids, ids)},
      {"images that are seen whole, in text", ts::Mask::key_ranges(images.view())},
      {"every other key", ts::Mask::dense(visible)},
  };
  bool passed = true;
  for (const auto& [name, mask] : masks) {
    const ts::AttentionOptions options{.mask = mask};
    ts::forward(args, options);
    const auto report = ts::check_forward(args, options, 100);
    std::printf("%-36s max error %.1e, allowed %.1e\n", name, report.max_error, report.tolerance);
    passed = passed && report.passed;
  }
  return passed ? 0 : 1;
} catch (const ts::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
