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

// Calls read(), and says the file of what the JSON library throws.
template <typename Read>
void read_json(const std::string& path, const Read& read) {
  try {
    read();
  } catch (const Json::exception& error) {
    fail(path, error.what());
  }
}

Json parsed(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) fail(path, "is no file");
  std::ifstream file(path);
  if (!file) fail(path, "cannot be read");
  return Json::parse(file);
}

// Members of an object of config.json. One that is null is absent.
class Members {
 public:
  Members(Json object, std::string path) : object_(std::move(object)), path_(std::move(path)) {
    if (!object_.is_object()) fail(path_, "is " + object_.dump() + ", expected an object");
  }

  const Json& at(const char* name) const {
    if (!has(name)) fail(path_, std::string("has no ") + name);
    return object_.at(name);
  }
  bool has(const char* name) const { return object_.contains(name) && !object_.at(name).is_null(); }

  // A number of layers, heads or the like, at most 2^24: products of three fit 64 bits.
  int64_t extent(const char* name) const {
    constexpr int64_t kMost = 1 << 24;
    const Json& value = at(name);
    const bool is_one = value.is_number_integer() && value >= 1 && value <= kMost;
    return is_one ? value.get<int64_t>() : wrong<int64_t>(name, "an integer from 1 to " + std::to_string(kMost));
  }
  double positive(const char* name) const {
    const Json& value = at(name);
    return value.is_number() && value > 0 ? value.get<double>() : wrong<double>(name, "a number above 0");
  }
  std::string word(const char* name, const char* otherwise) const {
    if (!has(name)) return otherwise;
    return at(name).is_string() ? at(name).get<std::string>() : wrong<std::string>(name, "a string");
  }
  bool flag(const char* name) const {
    if (!has(name)) return false;
    return at(name).is_boolean() ? at(name).get<bool>() : wrong<bool>(name, "true or false");
  }
  void expect(bool is_right, const char* name, const std::string& expected) const {
    if (!is_right) wrong<bool>(name, expected);
  }
  Members object(const char* name) const { return {has(name) ? at(name) : Json::object(), path_ + ", " + name}; }

 private:
  template <typename T>
  [[noreturn]] T wrong(const char* name, const std::string& expected) const {
    fail(path_, std::string(name) + " is " + (has(name) ? at(name).dump() : "absent") + ", expected " + expected);
  }

  Json object_;
  std::string path_;
};

// Radians a position of each pair of columns (RoPE, arXiv 2104.09864), stretched as Llama 3.1 does where the config
// says so.
std::vector<float> rotary_frequencies(const Members& config, int64_t head_dim) {
  const Members given = config.object(config.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  const double theta = given.has("rope_theta")    ? given.positive("rope_theta")
                       : config.has("rope_theta") ? config.positive("rope_theta")
                                                  : 10000;
  const char* const name = given.has("rope_type") ? "rope_type" : "type";
  const std::string type = given.word(name, "default");
  given.expect(type == "default" || type == "llama3", name, "default or llama3");
  std::vector<float> frequencies;
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    if (type == "llama3") {
      // Of the positions that the model was first trained for: how many turns a pair makes in them.
      const double turns = given.positive("original_max_position_embeddings") * frequency / (2 * std::numbers::pi);
      const double low = given.positive("low_freq_factor"), high = given.positive("high_freq_factor");
      given.expect(high > low, "high_freq_factor", "more than low_freq_factor");
      const double kept = std::clamp((turns - low) / (high - low), 0.0, 1.0);
      frequency *= kept + (1 - kept) / given.positive("factor");
    }
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

std::string string_of(std::span<const int64_t> shape) {
  std::string string = "(";
  for (const int64_t extent : shape) string += (string.size() > 1 ? ", " : "") + std::to_string(extent);
  return string + ")";
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
    const Members members(parsed(path), path);
    // Others may run, and their tokens are wrong.
    members.expect(members.word("model_type", "") == "llama", "model_type", "llama");
    members.expect(members.word("hidden_act", "silu") == "silu", "hidden_act", "silu");
    for (const char* name : {"attention_bias", "mlp_bias"}) members.expect(!members.flag(name), name, "false");
    Config& c = config_;
    c.hidden = members.extent("hidden_size");
    c.intermediate = members.extent("intermediate_size");
    c.layers = members.extent("num_hidden_layers");
    c.heads = members.extent("num_attention_heads");
    c.heads_kv = members.has("num_key_value_heads") ? members.extent("num_key_value_heads") : c.heads;
    members.expect(c.heads % c.heads_kv == 0, "num_attention_heads",
                   "a multiple of num_key_value_heads, " + std::to_string(c.heads_kv));
    c.head_dim = members.has("head_dim") ? members.extent("head_dim") : c.hidden / c.heads;
    members.expect(c.head_dim >= 2 && c.head_dim % 2 == 0, "head_dim",
                   "hidden_size / num_attention_heads or itself an even number");
    c.vocabulary = members.extent("vocab_size");
    c.epsilon = static_cast<float>(members.positive("rms_norm_eps"));
    c.rotary_frequencies = rotary_frequencies(members, c.head_dim);
    if (members.has("eos_token_id")) {
      const Json& end = members.at("eos_token_id");
      c.ends = end.is_array() ? end.get<std::vector<int64_t>>() : std::vector{end.get<int64_t>()};
    }
    c.is_tied = members.flag("tie_word_embeddings");
    const char* const dtype = members.has("dtype") ? "dtype" : "torch_dtype";
    const std::string stored = members.word(dtype, "float32");
    members.expect(stored == "bfloat16" || stored == "float32" || stored == "float16", dtype,
                   "float32, float16 or bfloat16");
    c.dtype = stored == "bfloat16" ? tessella::bf16 : tessella::f32;
  });
}

void Checkpoint::read_file(const std::string& path) {
  if (!std::filesystem::is_regular_file(path)) fail(path, "is no file");
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
  if (!std::ranges::equal(shape, tensor.shape)) {
    fail(folder_,
         name + " has shape " + string_of(tensor.shape) + ", expected " + string_of(shape) + " by config.json");
  }
  if (tensor.elements.size() != static_cast<size_t>(count) * element_bytes) {
    fail(folder_, name + " has " + std::to_string(tensor.elements.size()) + " bytes, expected " +
                      std::to_string(static_cast<size_t>(count) * element_bytes));
  }
  if (dtype == tessella::bf16) return converted<BFloat16>(tensor.elements, tensor.dtype);
  return converted<float>(tensor.elements, tensor.dtype);
}
