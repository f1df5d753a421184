// Trains a GPT on the characters of a file, on the CPU, and prints characters that it draws.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <numbers>
#include <stdexcept>
#include <string>

#include "gpt.hpp"

namespace {

constexpr char kUsage[] =
    "usage: train_gpt FILE [STEPS] [--standard | --compare]\n"
    "  FILE        what to learn\n"
    "  STEPS       800, and 100 with --compare\n"
    "  --standard  attention that keeps its matrix of probabilities, instead of tessella's\n"
    "  --compare   train with both from one seed; exit code 1 if a loss differs by more than 0.1 %\n";

constexpr int kBatch = 8, kWarmUp = 50, kSeed = 1;
constexpr float kLearningRate = 3e-3f;

// The characters of a file by their numbers in the alphabet; the last tenth is held out.
struct Corpus {
  std::string alphabet;
  std::vector<int> training, held_out;

  explicit Corpus(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error(path + " cannot be read");
    const std::string all{std::istreambuf_iterator<char>(file), {}};
    constexpr int least = 20 * kContext;
    if (all.size() < least)
      throw std::runtime_error(path + ": expected at least " + std::to_string(least) + " characters");
    alphabet = all;
    std::sort(alphabet.begin(), alphabet.end());
    alphabet.erase(std::unique(alphabet.begin(), alphabet.end()), alphabet.end());
    for (const char character : all) training.push_back(static_cast<int>(alphabet.find(character)));
    const auto end = training.begin() + static_cast<long>(all.size() / 10 * 9);
    held_out.assign(end, training.end());
    training.erase(end, training.end());
  }
};

class Training {
 public:
  Training(const Corpus& corpus, bool standard, int num_steps)
      : corpus_(corpus),
        vocabulary_(static_cast<int>(corpus.alphabet.size())),
        num_steps_(num_steps),
        model_(vocabulary_, standard, kSeed),
        random_(kSeed) {}

  // Returns the loss before the update.
  float step() {
    const float loss = loss_of_batch(corpus_.training);
    model_.backward(tokens_);
    // Grows while it warms up, then falls along a cosine.
    const float done = static_cast<float>(step_++) / static_cast<float>(num_steps_);
    const float warmth = std::min(1.f, static_cast<float>(step_) / kWarmUp);
    model_.update(kLearningRate * warmth * (0.5f + 0.5f * std::cos(std::numbers::pi_v<float> * done)));
    return loss;
  }

  // Of a batch of windows, whose targets are the tokens that follow each token.
  float loss_of_batch(const std::vector<int>& from) {
    tokens_.clear();
    targets_.clear();
    for (int i = 0; i < kBatch; ++i) {
      const auto first = from.begin() + static_cast<long>(random_() % (from.size() - kContext));
      tokens_.insert(tokens_.end(), first, first + kContext);
      targets_.insert(targets_.end(), first + 1, first + 1 + kContext);
    }
    model_.forward(tokens_, kContext);
    return model_.loss(targets_);
  }

  // Characters drawn one after the other, likely ones more often than they should be.
  std::string sample(int length) {
    std::vector<int> tokens{corpus_.training.front()};
    std::string drawn;
    while (static_cast<int>(drawn.size()) < length) {
      const int seqlen = std::min(kContext, static_cast<int>(tokens.size()));
      const Floats& logits = model_.forward({tokens.end() - seqlen, tokens.end()}, seqlen);
      Floats odds(logits.end() - vocabulary_, logits.end());
      for (float& x : odds) x = std::exp(x / 0.8f);
      tokens.push_back(std::discrete_distribution<int>(odds.begin(), odds.end())(random_));
      drawn += corpus_.alphabet[tokens.back()];
    }
    return drawn;
  }

 private:
  const Corpus& corpus_;
  int vocabulary_, num_steps_, step_ = 0;
  Gpt model_;
  std::mt19937 random_;
  std::vector<int> tokens_, targets_;
};

void train(const Corpus& corpus, bool standard, int num_steps) {
  const auto start = std::chrono::steady_clock::now();
  Training training(corpus, standard, num_steps);
  for (int i = 1; i <= num_steps; ++i) {
    const float loss = training.step();
    if (i != 1 && i % 50 != 0 && i != num_steps) continue;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("step %3d of %d  loss %.4f  %5.1f s\n", i, num_steps, loss, seconds.count());
    std::fflush(stdout);
  }
  float sum = 0;
  for (int i = 0; i < 10; ++i) sum += training.loss_of_batch(corpus.held_out);
  std::printf("loss of what was held out: %.4f\n\n%s\n", sum / 10, training.sample(400).c_str());
}

// Whether every loss is within 0.1 % of the one with standard attention.
bool compare(const Corpus& corpus, int num_steps) {
  Training ours(corpus, false, num_steps), standard(corpus, true, num_steps);
  int num_different = 0;
  for (int i = 1; i <= num_steps; ++i) {
    const float loss = ours.step(), expected = standard.step(), percent = 100 * std::abs(loss - expected) / expected;
    std::printf("step %3d  loss %.6f  with standard attention %.6f  difference %.6f %%\n", i, loss, expected, percent);
    num_different += !(percent <= 0.1f);  // NaN is different
  }
  std::printf("%d of %d losses differ by more than 0.1 %%\n", num_different, num_steps);
  return num_different == 0;
}

}  // namespace

int main(int argc, char** argv) try {
  std::vector<std::string> given(argv + 1, argv + argc);
  const bool standard = std::erase(given, "--standard") != 0, compares = std::erase(given, "--compare") != 0;
  if (given.size() == 1) given.push_back(compares ? "100" : "800");
  const bool is_number = given.size() == 2 && given[1].find_first_not_of("0123456789") == std::string::npos;
  const int num_steps = is_number ? std::atoi(given[1].c_str()) : 0;
  if (num_steps < 1 || (standard && compares)) {
    std::fputs(kUsage, stderr);
    return 1;
  }
  const Corpus corpus(given[0]);
  if (compares) return compare(corpus, num_steps) ? 0 : 1;
  train(corpus, standard, num_steps);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "train_gpt: %s\n", error.what());
  return 1;
}
