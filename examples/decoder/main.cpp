// Continues prompts with a Llama's decoder: attention, the cache and linear layers by tessella, on the CPU or a GPU.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint.hpp"
#include "device.hpp"
#include "model.hpp"

namespace {

constexpr char kUsage[] = R"(usage: example_decoder FOLDER --prompt IDS [--prompt IDS]... [options]
Continues prompts by a Llama in Hugging Face's format and prints all token ids, a line a prompt.

  --prompt IDS     token ids, as 1,15043,3186; each prompt is a sequence of its own
  --tokens N       most new tokens a prompt [32]; fewer where a sequence ends
  --device cpu|cuda
  --dtype f32|bf16 of weights, cache and rows [that of config.json; f32 for float16]
  --temperature T  0: the likeliest token [0]
  --top-p P        draws from the fewest tokens that have this probability together, at most 1 [1]
  --seed N         of the draws [0]
)";

struct Options {
  std::string folder, device = "cpu", dtype;
  std::vector<std::vector<int32_t>> prompts;
  int64_t tokens = 32;
  Sampling sampling;
};

template <typename T>
T number(const std::string& option, std::string_view string) {
  T value{};
  const auto [end, error] = std::from_chars(string.data(), string.data() + string.size(), value);
  bool is_number = error == std::errc() && end == string.data() + string.size() && value >= 0;
  if constexpr (std::is_floating_point_v<T>) is_number = is_number && std::isfinite(value);
  if (!is_number)
    throw std::invalid_argument(option + " got '" + std::string(string) + "', expected a number from 0 on");
  return value;
}

std::string one_of(const std::string& option, std::string_view value, const char* first, const char* second) {
  if (value == first || value == second) return std::string(value);
  throw std::invalid_argument(option + " got '" + std::string(value) + "', expected " + first + " or " + second);
}

Options options_of(const std::vector<std::string>& arguments) {
  Options options;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& name = arguments[i];
    if (!name.starts_with("--")) {
      if (!options.folder.empty()) throw std::invalid_argument(name + " is a second folder, expected one");
      options.folder = name;
      continue;
    }
    if (++i == arguments.size()) throw std::invalid_argument(name + " wants a value");
    std::string_view value = arguments[i];
    if (name == "--prompt") {
      auto& prompt = options.prompts.emplace_back();
      for (size_t end = 0; end != value.npos; value.remove_prefix(end == value.npos ? 0 : end + 1)) {
        end = value.find(',');
        prompt.push_back(number<int32_t>(name, value.substr(0, end)));
      }
    } else if (name == "--tokens") {
      options.tokens = number<int64_t>(name, value);
    } else if (name == "--device") {
      options.device = one_of(name, value, "cpu", "cuda");
    } else if (name == "--dtype") {
      options.dtype = one_of(name, value, "f32", "bf16");
    } else if (name == "--temperature") {
      options.sampling.temperature = number<float>(name, value);
    } else if (name == "--top-p") {
      options.sampling.top_p = number<float>(name, value);
    } else if (name == "--seed") {
      options.sampling.seed = number<uint64_t>(name, value);
    } else {
      throw std::invalid_argument(name + " is no option");
    }
  }
  if (options.folder.empty() || options.prompts.empty()) throw std::invalid_argument("expected a folder and a prompt");
  constexpr int64_t kMostTokens = 1 << 24;
  if (options.tokens < 1 || options.tokens > kMostTokens) {
    throw std::invalid_argument("--tokens is " + std::to_string(options.tokens) + ", expected 1 to " +
                                std::to_string(kMostTokens));
  }
  if (options.sampling.top_p > 1) throw std::invalid_argument("--top-p is above 1, expected a probability");
  return options;
}

bool is_end(const Config& config, int32_t token) { return std::ranges::find(config.ends, token) != config.ends.end(); }

}  // namespace

int main(int argc, char** argv) try {
  if (argc == 2 && std::string_view(argv[1]) == "--help") return std::fputs(kUsage, stdout), 0;
  const Options options = options_of({argv + 1, argv + argc});
  const Checkpoint checkpoint(options.folder);
  const Config& config = checkpoint.config();
  std::vector<std::vector<int32_t>> sequences = options.prompts;
  size_t longest = 0;
  for (const auto& prompt : sequences) {
    longest = std::max(longest, prompt.size());
    for (const int32_t token : prompt) {
      if (token >= config.vocabulary) {
        throw std::invalid_argument("--prompt has the token " + std::to_string(token) + ", the vocabulary has " +
                                    std::to_string(config.vocabulary));
      }
    }
  }
  const tessella::DType dtype = options.dtype.empty()    ? config.dtype
                                : options.dtype == "f32" ? tessella::f32
                                                         : tessella::bf16;
  const std::unique_ptr<Device> device = options.device == "cuda" ? Device::gpu(dtype) : Device::cpu(dtype);
  Model model(checkpoint, dtype, std::ssize(sequences), static_cast<int64_t>(longest) + options.tokens,
              options.sampling, *device);

  std::vector<bool> has_ended(sequences.size());
  int64_t num_added = 0;
  const auto add = [&](size_t i, int32_t token) {
    if (has_ended[i]) return;
    ++num_added;
    sequences[i].push_back(token);
    has_ended[i] = is_end(config, token);
  };
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int32_t token = model.start(static_cast<int64_t>(i), sequences[i]);
    add(i, token);
  }
  const auto run = [&] {
    const std::vector<int32_t> tokens = model.step();
    for (size_t i = 0; i < sequences.size(); ++i) add(i, tokens[i]);
  };
  const auto all_ended = [&] { return std::ranges::find(has_ended, false) == has_ended.end(); };
  // The first steps make plans and, on a GPU, the graph.
  int64_t done = 1;
  for (; done < std::min<int64_t>(options.tokens, 3) && !all_ended(); ++done) run();
  const auto begin = std::chrono::steady_clock::now();
  const int64_t before = num_added;
  for (; done < options.tokens && !all_ended(); ++done) run();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;

  for (const auto& sequence : sequences) {
    for (size_t i = 0; i < sequence.size(); ++i) std::printf("%s%d", i == 0 ? "" : ",", sequence[i]);
    std::puts("");
  }
  if (std::fflush(stdout) != 0) throw std::runtime_error("the tokens cannot be written");
  if (num_added > before) {
    const double rate = static_cast<double>(num_added - before) / seconds.count();
    std::fprintf(stderr, "%.1f tokens/s, %zu sequences a step\n", rate, sequences.size());
  }
} catch (const std::invalid_argument& error) {
  std::fprintf(stderr, "decoder: %s\n%s", error.what(), kUsage);
  return 2;
} catch (const std::exception& error) {
  std::fprintf(stderr, "decoder: %s\n", error.what());
  return 1;
}
