// Sixteen answers to one prompt, trained as one tree in which the prompt stands once, beside sixteen sequences: out and
// gradients must be the same, where the prompt's gradients are the sums over the sequences.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <random>
#include <vector>

#include <tessella/attention.hpp>
#include <tessella/backward.hpp>
#include <tessella/ranges.hpp>

namespace ts = tessella;

constexpr int64_t kAnswers = 16, kPrompt = 512, kLongest = 128, kHeadsQ = 8, kHeadsKv = 2, kDim = 64;
constexpr double kMostError = 1e-4;
using Floats = std::vector<float>;

// Tokens of sequences that stand one behind the other, and what a step of training makes of them.
struct Tokens {
  int64_t count;
  Floats q = Floats(count * kHeadsQ * kDim), k = Floats(count * kHeadsKv * kDim), v = k, d_out = q;
  Floats out = q, lse = Floats(kHeadsQ * count), dq = q, dk = k, dv = v;

  void step(const std::vector<int32_t>& cu_seqlens, const ts::Mask& mask) {
    const auto rows = [&](Floats& x, int64_t heads) { return ts::view(x.data(), ts::f32, {count, heads, kDim}); };
    const auto starts = ts::view(cu_seqlens.data(), ts::i32, {std::ssize(cu_seqlens)});
    const ts::ForwardArgs args{.q = rows(q, kHeadsQ),
                               .k = rows(k, kHeadsKv),
                               .v = rows(v, kHeadsKv),
                               .out = rows(out, kHeadsQ),
                               .lse = ts::view(lse.data(), ts::f32, {kHeadsQ, count}),
                               .cu_seqlens_q = starts,
                               .cu_seqlens_kv = starts};
    ts::forward(args, {.mask = mask});
    ts::backward(
        args,
        {.d_out = rows(d_out, kHeadsQ), .dq = rows(dq, kHeadsQ), .dk = rows(dk, kHeadsKv), .dv = rows(dv, kHeadsKv)},
        {.mask = mask});
  }
};

// The least milliseconds of three steps, after one that chooses kernels.
template <typename Step>
double milliseconds(const Step& step) {
  step();
  double least = INFINITY;
  for (int round = 0; round < 3; ++round) {
    const auto start = std::chrono::steady_clock::now();
    step();
    least =
        std::min(least, std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  }
  return least;
}

// Where in the tree the rows of the sequences are, and where each sequence starts: the prompt, then an answer.
struct Rows {
  std::vector<int64_t> in_tree;
  std::vector<int32_t> cu_seqlens = {0};

  explicit Rows(const std::vector<int64_t>& lengths) {
    int64_t start = kPrompt;
    for (size_t answer = 1; answer < lengths.size(); start += lengths[answer++]) {
      for (int64_t row = 0; row < kPrompt; ++row) in_tree.push_back(row);
      for (int64_t row = 0; row < lengths[answer]; ++row) in_tree.push_back(start + row);
      cu_seqlens.push_back(static_cast<int32_t>(in_tree.size()));
    }
  }
  // What the sequences read where the tree has x.
  Floats read(const Floats& x, int64_t row_size) const {
    Floats made;
    for (const int64_t row : in_tree) made.insert(made.end(), &x[row * row_size], &x[row * row_size] + row_size);
    return made;
  }
  // The sums of what the sequences have for each row of the tree.
  std::vector<double> sums(const Floats& x, int64_t row_size, int64_t num_rows) const {
    std::vector<double> made(num_rows * row_size);
    for (int64_t at = 0; at < std::ssize(x); ++at) made[in_tree[at / row_size] * row_size + at % row_size] += x[at];
    return made;
  }
};

// The size of the difference of elements [begin, end), by that of what is expected.
template <typename Numbers>
double error(const Floats& got, const Numbers& expected, int64_t begin, int64_t end) {
  double difference = 0, size = 1e-30;
  for (int64_t at = begin; at < end; ++at) {
    difference += std::pow(static_cast<double>(got[at]) - expected[at], 2);
    size += std::pow(static_cast<double>(expected[at]), 2);
  }
  return std::sqrt(difference / size);
}

int main() try {
  std::mt19937 random(1);
  std::vector<int64_t> lengths = {kPrompt}, parents = {-1};
  for (int64_t answer = 0; answer < kAnswers; ++answer) {
    lengths.push_back(1 + static_cast<int64_t>(random() % kLongest));
    parents.push_back(0);
  }
  const Rows rows(lengths);
  const ts::ranges::Ranges ranges = ts::ranges::prefix_tree(lengths, parents);
  const int64_t total = ranges.shape[2];

  Tokens tree{total}, sequences{std::ssize(rows.in_tree)};
  std::normal_distribution<float> normal;
  for (Floats Tokens::*operand : {&Tokens::q, &Tokens::k, &Tokens::v, &Tokens::d_out}) {
    Floats& of_tree = tree.*operand;
    std::generate(of_tree.begin(), of_tree.end(), [&] { return normal(random); });
    if (operand == &Tokens::d_out)
      std::fill_n(of_tree.begin(), kPrompt * kHeadsQ * kDim, 0.0f);  // answers have the loss
    sequences.*operand = rows.read(of_tree, std::ssize(of_tree) / total);
  }
  const std::vector<int32_t> one_sequence = {0, static_cast<int32_t>(total)};
  const double of_tree = milliseconds([&] { tree.step(one_sequence, ts::Mask::query_ranges(ranges.view())); });
  const double of_sequences = milliseconds([&] { sequences.step(rows.cu_seqlens, ts::Mask::causal()); });
  std::printf("one tree           %7zu tokens %9.2f ms a step\n", static_cast<size_t>(tree.count), of_tree);
  std::printf("sixteen sequences  %7zu tokens %9.2f ms a step\n", rows.in_tree.size(), of_sequences);

  bool is_same = true;
  const auto compare = [&](const char* name, double of) {
    std::printf("%-12s error %.1e, expected at most %.0e\n", name, of, kMostError);
    is_same = is_same && of <= kMostError;
  };
  const Floats out = rows.read(tree.out, kHeadsQ * kDim);
  compare("out", error(out, sequences.out, 0, std::ssize(out)));
  const struct {
    const char *of_prompt, *of_answers;
    Floats Tokens::*gradient;
  } gradients[] = {{"dq, prompt", "dq, answers", &Tokens::dq},
                   {"dk, prompt", "dk, answers", &Tokens::dk},
                   {"dv, prompt", "dv, answers", &Tokens::dv}};
  for (const auto& [of_prompt, of_answers, gradient] : gradients) {
    const int64_t size = std::ssize(tree.*gradient), row_size = size / total;
    const std::vector<double> sums = rows.sums(sequences.*gradient, row_size, total);
    compare(of_prompt, error(tree.*gradient, sums, 0, kPrompt * row_size));
    compare(of_answers, error(tree.*gradient, sums, kPrompt * row_size, size));
  }
  return is_same ? 0 : 1;
} catch (const ts::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 2;
}
