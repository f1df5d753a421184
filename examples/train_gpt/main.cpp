// Trains a GPT on the characters of a file, on the CPU, and prints characters that it draws.
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <numbers>
#include <stdexcept>
#include <string>

#include "gpt.hpp"

namespace {

constexpr char kUsage[] =
    "usage: train_gpt FILE [--standard | --compare] [STEPS]\n"
    "  FILE        what to learn\n"
    "  --standard  attention that keeps its matrix of probabilities, instead of tessella's\n"
    "  --compare   train with both from one seed; exit code 1 where a loss differs by more than 1 %\n"
    "  STEPS       1000, and 100 with --compare\n";

constexpr int kBatch = 8, kWarmUp = 50, kSeed = 1;
constexpr float kLearningRate = 3e-3f;

// The characters of a file by their numbers in the alphabet; the last tenth is held out.
struct Corpus {
  std::string alphabet;
  std::vector<int> training, held_out;

  explicit Corpus(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string all{std::istreambuf_iterator<char>(file), {}};
    if (all.size() < 20 * kContext) {
      throw std::invalid_argument(path + ": got " + (file.is_open() ? std::to_string(all.size()) : "no") +
                                  " readable characters, expected at least " + std::to_string(20 * kContext));
    }
    alphabet = all;
    std::sort(alphabet.begin(), alphabet.end());
    alphabet.erase(std::unique(alphabet.begin(), alphabet.end()), alphabet.end());
    for (const char character : all) {
      auto& tokens = training.size() < all.size() / 10 * 9 ? training : held_out;
      tokens.push_back(static_cast<int>(alphabet.find(character)));
    }
  }
};

// Windows from random beginnings, and the token that follows each token.
struct Batch {
  std::vector<int> tokens, targets;

  Batch(const std::vector<int>& from, std::mt19937& random) {
    for (int i = 0; i < kBatch; ++i) {
      const auto first = from.begin() + static_cast<long>(random() % (from.size() - kContext));
      tokens.insert(tokens.end(), first, first + kContext);
      targets.insert(targets.end(), first + 1, first + 1 + kContext);
    }
  }
};

class Training {
 public:
  Training(const Corpus& corpus, bool standard, int num_steps)
      : corpus_(corpus),
        num_steps_(num_steps),
        model_(static_cast<int>(corpus.alphabet.size()), standard, kSeed),
        random_(kSeed) {}

  // Returns the loss before the update.
  float step() {
    const Batch batch(corpus_.training, random_);
    model_.forward(batch.tokens, kContext);
    const float loss = model_.loss(batch.targets);
    model_.backward(batch.tokens);
    // Grows while it warms up, then falls to a tenth along a cosine.
    const float done = static_cast<float>(std::max(step_ - kWarmUp, 0)) / static_cast<float>(num_steps_);
    const float warmth = std::min(1.f, static_cast<float>(++step_) / kWarmUp);
    model_.update(kLearningRate * warmth * (0.55f + 0.45f * std::cos(std::numbers::pi_v<float> * done)));
    return loss;
  }

  float held_out_loss() {
    constexpr int num_batches = 8;
    float sum = 0;
    for (int i = 0; i < num_batches; ++i) {
      const Batch batch(corpus_.held_out, random_);
      model_.forward(batch.tokens, kContext);
      sum += model_.loss(batch.targets);
    }
    return sum / num_batches;
  }

  // Characters drawn one after the other, likely ones more often than they should be.
  std::string sample(int length) {
    std::vector<int> tokens{corpus_.training.front()};
    std::string drawn;
    while (static_cast<int>(drawn.size()) < length) {
      const int seqlen = std::min(kContext, static_cast<int>(tokens.size()));
      const Floats& logits = model_.forward({tokens.end() - seqlen, tokens.end()}, seqlen);
      Floats odds(logits.end() - static_cast<long>(corpus_.alphabet.size()), logits.end());
      for (float& x : odds) x = std::exp(x / 0.8f);
      tokens.push_back(std::discrete_distribution<int>(odds.begin(), odds.end())(random_));
      drawn += corpus_.alphabet[tokens.back()];
    }
    return drawn;
  }

 private:
  const Corpus& corpus_;
  int num_steps_, step_ = 0;
  Gpt model_;
  std::mt19937 random_;
};

void train(const Corpus& corpus, bool standard, int num_steps) {
  const auto start = std::chrono::steady_clock::now();
  Training training(corpus, standard, num_steps);
  for (int i = 1; i <= num_steps; ++i) {
    const float loss = training.step();
    if (i != 1 && i % 50 != 0 && i != num_steps) continue;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("step %4d of %d  loss %.4f  %5.1f s\n", i, num_steps, loss, seconds.count());
    std::fflush(stdout);
  }
  std::printf("loss of what was held out: %.4f\n\n%s\n", training.held_out_loss(), training.sample(400).c_str());
}

// Whether every loss is within 1 % of the one with standard attention.
bool compare(const Corpus& corpus, int num_steps) {
  Training ours(corpus, false, num_steps), standard(corpus, true, num_steps);
  bool is_close = true;
  for (int i = 1; i <= num_steps; ++i) {
    const float loss = ours.step(), expected = standard.step();
    is_close &= std::abs(loss - expected) <= 0.01f * expected;
    std::printf("step %3d  loss %.7f  with standard attention %.7f\n", i, loss, expected);
  }
  std::puts(is_close ? "each loss is within 1 % of the other" : "a loss differs by more than 1 %");
  return is_close;
}

}  // namespace

int main(int argc, char** argv) try {
  std::vector<std::string> given(argv + 1, argv + argc);
  const bool standard = std::erase(given, "--standard") != 0, compares = std::erase(given, "--compare") != 0;
  const bool is_number =
      given.size() == 2 && given[1].size() < 7 && given[1].find_first_not_of("0123456789") == std::string::npos;
  if (given.empty() || given.size() > 2 || (given.size() == 2 && !is_number) || (standard && compares)) {
    std::fputs(kUsage, stderr);
    return 1;
  }
  const Corpus corpus(given[0]);
  const int num_steps = is_number ? std::stoi(given[1]) : compares ? 100 : 1000;
  if (compares) return compare(corpus, num_steps) ? 0 : 1;
  train(corpus, standard, num_steps);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "train_gpt: %s\n", error.what());
  return 1;
}
