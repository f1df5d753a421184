// A model of Hugging Face's on disk: a folder with config.json and .safetensors files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <tessella/tensor.hpp>

// Of a Llama (arXiv 2302.13971, 2307.09288).
struct Config {
  int64_t hidden, intermediate, layers, heads, heads_kv, head_dim, vocabulary;
  float epsilon;                          // of RMSNorm
  std::vector<float> rotary_frequencies;  // (head_dim / 2): radians a position
  std::vector<int64_t> ends;              // tokens after which there is nothing
  bool is_tied;                           // the head is the embedding
  tessella::DType dtype;                  // f32 or bf16: how it is best computed; f16 is widened
};

class Checkpoint {
 public:
  // Throws std::runtime_error, as all functions do, with the file and what is wrong with it.
  explicit Checkpoint(const std::string& folder);

  const Config& config() const { return config_; }
  // Elements of a tensor in row-major order, as f32 or bf16.
  std::vector<std::byte> read(const std::string& name, std::initializer_list<int64_t> shape,
                              tessella::DType dtype) const;

 private:
  struct Tensor {
    std::string dtype;  // "F32", "F16" or "BF16"
    std::vector<int64_t> shape;
    std::span<const std::byte> elements;
  };
  void read_config();
  void read_file(const std::string& path);

  std::string folder_;
  Config config_{};
  std::vector<std::shared_ptr<const void>> files_;  // mapped
  std::map<std::string, Tensor> tensors_;
};
