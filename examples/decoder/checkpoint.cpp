#include "checkpoint.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <set>
#include <stdexcept>

#include <nlohmann/json.hpp>

#include "rows.cuh"

namespace {

using Json = nlohmann::json;

[[noreturn]] void fail(const std::string& file, const std::string& what) {
  throw std::runtime_error(file + ": " + what);
}

Json parsed(const std::string& path) {
  std::ifstream file(path);
  if (!file) fail(path, "cannot be read");
  return Json::parse(file);
}

// Calls read(), and says the file of what the JSON library throws.
template <typename Read>
void read_json(const std::string& path, const Read& read) {
  try {
    read();
  } catch (const Json::exception& error) {
    fail(path, error.what());
  }
}

// A number of layers, heads or the like, at most 2^24: products of three fit 64 bits.
int64_t extent(const Json& config, const std::string& path, const char* name) {
  const Json& value = config.at(name);
  constexpr int64_t kMost = 1 << 24;
  if (!value.is_number_integer() || value < 1 || value > kMost) {
    fail(path, std::string(name) + " is " + value.dump() + ", expected an integer from 1 to " + std::to_string(kMost));
  }
  return value;
}

// Radians a position of each pair of columns (RoPE, arXiv 2104.09864), stretched as Llama 3.1 does where the config
// says so.
std::vector<float> rotary_frequencies(const Json& config, int64_t head_dim, const std::string& path) {
  Json given = Json::object();
  for (const char* name : {"rope_parameters", "rope_scaling"}) {
    if (given.empty() && config.value(name, Json()).is_object()) given = config.at(name);
  }
  const double theta = given.value("rope_theta", config.value("rope_theta", 10000.0));
  const std::string type = given.value("rope_type", given.value("type", std::string("default")));
  if (type != "default" && type != "llama3") fail(path, "rope_type is " + type + ", expected default or llama3");
  std::vector<float> frequencies;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (type == "llama3") {
      // Of the positions that the model was first trained for: how many turns a pair makes in them.
      const double turns =
          given.at("original_max_position_embeddings").get<double>() * frequency / (2 * std::numbers::pi);
      const double low = given.at("low_freq_factor").get<double>(), high = given.at("high_freq_factor").get<double>();
      const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
      frequency *= kept + (1 - kept) / given.at("factor").get<double>();
    }
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

float half_to_float(uint16_t half) {
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  const double size = exponent == 31  ? (fraction == 0 ? HUGE_VAL : std::nan(""))
                      : exponent == 0 ? std::ldexp(fraction, -24)
                                      : std::ldexp(1024 + fraction, exponent - 25);
  return static_cast<float>((half & 0x8000) != 0 ? -size : size);
}

template <typename From, typename To, typename Convert>
std::vector<std::byte> converted(std::span<const std::byte> from, const Convert& convert) {
  std::vector<std::byte> bytes(from.size() / sizeof(From) * sizeof(To));
  for (size_t i = 0; i < from.size() / sizeof(From); ++i) {
    From element;
    std::memcpy(&element, from.data() + i * sizeof(From), sizeof(From));
    To to;
    store(to, convert(element));
    std::memcpy(bytes.data() + i * sizeof(To), &to, sizeof(To));
  }
  return bytes;
}
template <typename To>
std::vector<std::byte> converted(std::span<const std::byte> from, const std::string& dtype) {
  if (dtype == "F16") return converted<uint16_t, To>(from, half_to_float);
  if (dtype == "BF16") return converted<BFloat16, To>(from, [](BFloat16 x) { return to_float(x); });
  return converted<float, To>(from, [](float x) { return x; });
}

}  // namespace

Checkpoint::Checkpoint(const std::string& folder) : folder_(folder) {
  read_config();
  const std::string index = folder + "/model.safetensors.index.json";
  std::set<std::string> files = {"model.safetensors"};
  if (std::filesystem::exists(index)) {
    files.clear();
    read_json(index, [&] {
      const Json json = parsed(index);
      for (const auto& [name, file] : json.at("weight_map").items()) files.insert(file);
    });
  }
  for (const std::string& file : files) read_file(folder + "/" + file);
}

void Checkpoint::read_config() {
  const std::string path = folder_ + "/config.json";
  read_json(path, [&] {
    const Json json = parsed(path);
    // Of others some run, and none of their tokens is right.
    const std::string type = json.at("model_type");
    if (type != "llama") fail(path, "model_type is " + type + ", expected llama");
    Config& c = config_;
    c.hidden = extent(json, path, "hidden_size");
    c.intermediate = extent(json, path, "intermediate_size");
    c.layers = extent(json, path, "num_hidden_layers");
    c.heads = extent(json, path, "num_attention_heads");
    const auto is_given = [&](const char* name) { return json.contains(name) && !json.at(name).is_null(); };
    c.heads_kv = is_given("num_key_value_heads") ? extent(json, path, "num_key_value_heads") : c.heads;
    c.head_dim = is_given("head_dim") ? extent(json, path, "head_dim") : c.hidden / c.heads;
    c.vocabulary = extent(json, path, "vocab_size");
    if (c.heads % c.heads_kv != 0) {
      fail(path, "num_attention_heads is " + std::to_string(c.heads) +
                     ", expected a multiple of num_key_value_heads, " + std::to_string(c.heads_kv));
    }
    if (c.head_dim < 2 || c.head_dim % 2 != 0) {
      fail(path, "head_dim is " + std::to_string(c.head_dim) + ", expected an even number from 2 on");
    }
    c.epsilon = json.at("rms_norm_eps");
    c.rotary_frequencies = rotary_frequencies(json, c.head_dim, path);
    const Json end = json.value("eos_token_id", Json());
    if (end.is_number()) c.ends = {end.get<int64_t>()};
    if (end.is_array()) c.ends = end.get<std::vector<int64_t>>();
    c.is_tied = json.value("tie_word_embeddings", false);
    const std::string dtype = json.value("dtype", json.value("torch_dtype", std::string("float32")));
    c.dtype = dtype == "bfloat16" ? tessella::bf16 : tessella::f32;
    if (const std::string act = json.value("hidden_act", std::string("silu")); act != "silu") {
      fail(path, "hidden_act is " + act + ", expected silu");
    }
    for (const char* name : {"attention_bias", "mlp_bias"}) {
      if (json.value(name, false)) fail(path, std::string(name) + " is true, expected false");
    }
  });
}

void Checkpoint::read_file(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY);
  struct stat status {};
  if (file < 0 || ::fstat(file, &status) != 0) fail(path, "cannot be read");
  const auto size = static_cast<size_t>(status.st_size);
  if (size < 8) {
    ::close(file);
    fail(path, "is truncated");
  }
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  ::close(file);
  if (data == MAP_FAILED) fail(path, "cannot be mapped");
  files_.emplace_back(data, [size](const void* mapped) { ::munmap(const_cast<void*>(mapped), size); });
  // The length of a JSON header, the header, the elements (huggingface.co/docs/safetensors).
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(data), size);
  uint64_t length = 0;
  std::memcpy(&length, data, 8);
  if (length > size - 8) fail(path, "is truncated");
  const auto elements = bytes.subspan(8 + length);
  read_json(path, [&] {
    const Json header = Json::parse(std::string_view(static_cast<const char*>(data) + 8, length));
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      const auto [begin, end] = entry.at("data_offsets").get<std::pair<uint64_t, uint64_t>>();
      if (begin > end || end > elements.size()) fail(path, name + " lies outside the file");
      tensors_[name] = {entry.at("dtype"), entry.at("shape"), elements.subspan(begin, end - begin)};
    }
  });
}

std::vector<std::byte> Checkpoint::read(const std::string& name, std::initializer_list<int64_t> shape,
                                        tessella::DType dtype) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) fail(folder_, "there is no tensor " + name);
  const Tensor& tensor = found->second;
  int64_t count = 1;
  for (const int64_t extent : shape) count *= extent;
  const size_t element_bytes = tensor.dtype == "F32" ? 4 : tensor.dtype == "F16" || tensor.dtype == "BF16" ? 2 : 0;
  if (element_bytes == 0) fail(folder_, name + " is " + tensor.dtype + ", expected F32, F16 or BF16");
  const bool is_as_config_says = std::equal(shape.begin(), shape.end(), tensor.shape.begin(), tensor.shape.end());
  if (!is_as_config_says || tensor.elements.size() != static_cast<size_t>(count) * element_bytes) {
    fail(folder_, name + " has another shape than config.json says");
  }
  if (dtype == tessella::bf16) return converted<BFloat16>(tensor.elements, tensor.dtype);
  return converted<float>(tensor.elements, tensor.dtype);
}
