// Serves ragged requests, then compares each token with that of attention without a cache.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "model.hpp"
#include "server.hpp"

namespace {

// softmax(q k^T) v of one sequence's rows by its formula, all keys at hand; q and k are rotated first.
void attend_by_formula(Rows& rows, size_t count, const Rotary& rotary) {
  const auto rotate = [&](Floats& x, size_t heads) {
    for (size_t i = 0; i < count * heads * kDim / 2; ++i) {
      const size_t column = i % (kDim / 2), head = i / (kDim / 2), angle = head / heads * (kDim / 2) + column;
      float &a = x[head * kDim + column], &b = x[head * kDim + column + kDim / 2];
      const float turned = a * rotary.cos[angle] - b * rotary.sin[angle];
      b = b * rotary.cos[angle] + a * rotary.sin[angle];
      a = turned;
    }
  };
  rotate(rows.q, kHeads);
  rotate(rows.k, kHeadsKv);
  for (size_t i = 0; i < count * kHeads; ++i) {
    const size_t head_kv = i % kHeads / (kHeads / kHeadsKv);
    const float* q = &rows.q[i * kDim];
    float *out = &rows.out[i * kDim], sum = 0;
    std::fill(out, out + kDim, 0.f);
    for (size_t key = 0; key <= i / kHeads; ++key) {
      const size_t first = (key * kHeadsKv + head_kv) * kDim;
      const float score = std::inner_product(q, q + kDim, &rows.k[first], 0.f) / std::sqrt(float{kDim});
      const float weight = std::exp(score);  // of moderate scores: no maximum is taken off
      for (size_t j = 0; j < kDim; ++j) out[j] += weight * rows.v[first + j];
      sum += weight;
    }
    for (size_t j = 0; j < kDim; ++j) out[j] /= sum;
  }
}

// How many generated tokens the model, reading the whole sequence at once, would not have chosen.
size_t count_wrong(const Model& model, const Sequence& sequence, size_t prompt) {
  const Rotary rotary;
  Rows rows(sequence.tokens.size());
  const auto hidden =
      model.forward(sequence.tokens, rows, [&](size_t) { attend_by_formula(rows, sequence.tokens.size(), rotary); });
  size_t num_wrong = 0;
  for (size_t i = prompt; i < sequence.tokens.size(); ++i) {
    const size_t rank = i == prompt ? sequence.sample : 0;
    num_wrong += model.next_token(&hidden[(i - 1) * kWidth], rank) != sequence.tokens[i];
  }
  return num_wrong;
}

std::vector<Request> make_requests() {
  std::mt19937 rng(2);
  const auto up_to = [&](size_t first, size_t last) { return first + rng() % (last - first + 1); };
  std::vector<Request> requests;
  for (size_t i = 0; i < 16; ++i) {
    Request request{.arrival = 3 * i, .prompt = {}, .num_new = up_to(8, 40), .num_samples = i % 4 == 1 ? 3U : 1U};
    for (size_t length = up_to(1, 120); length > 0; --length) request.prompt.push_back(static_cast<int>(up_to(0, 255)));
    requests.push_back(std::move(request));
  }
  return requests;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string device_name = argc == 3 && std::string(argv[1]) == "--device" ? argv[2] : argc == 1 ? "cpu" : "";
  if (device_name != "cpu" && device_name != "cuda") {
    std::fputs("usage: example_decode_server [--device cpu|cuda]\n", stderr);
    return 2;
  }
  const Model model;
  const std::vector<Request> requests = make_requests();
  Device device(device_name == "cuda");
  Server server(model, requests, 32, device);
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<Sequence> sequences = server.serve();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;

  size_t num_tokens = 0, num_wrong = 0;
  for (const Sequence& sequence : sequences) {
    const Request& request = requests[sequence.request];
    num_tokens += request.num_new;
    num_wrong += count_wrong(model, sequence, request.prompt.size());
  }
  std::printf(
      "%zu requests, %zu sequences, %zu steps, %zu tokens, %.0f tokens/s, %d of 32 pages at most, %zu preempted: ",
      requests.size(), sequences.size(), server.num_steps, num_tokens,
      static_cast<double>(num_tokens) / seconds.count(), static_cast<int>(server.most_pages), server.num_preempted);
  if (num_wrong != 0) return std::printf("%zu tokens differ\n", num_wrong), 1;
  std::puts("tokens agree");
} catch (const std::exception& error) {
  std::fprintf(stderr, "decode_server: %s\n", error.what());
  return 2;
}
