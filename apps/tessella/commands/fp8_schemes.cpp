#include "commands/fp8_schemes.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <span>
#include <tuple>
#include <utility>

#include "files/conversion.hpp"

namespace tessella::cli {
namespace {

constexpr int64_t kBlock = 128;

// Arrays where the call runs. Addresses of tensors stay.
class Placed {
 public:
  explicit Placed(const Placement& placement) : placement_(placement) {}
  const tessella_tensor* add(const Array& array) {
    arrays_.push_back(array);
    tensors_.push_back(placement_.gpu ? copied_to_gpu(Gpu::open(*placement_.gpu), array.tensor, memories_)
                                      : array.tensor);
    return &tensors_.back();
  }
  const tessella_tensor* add(tessella_dtype dtype, std::span<const int64_t> shape) {
    return add(allocate_array("", dtype, shape));
  }
  // The numbers that are there now.
  std::vector<double> values(const tessella_tensor* tensor) const {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (&tensors_[i] != tensor) continue;
      const Array& array = arrays_[i];
      fetch(placement_, *tensor, array);
      std::vector<double> values(static_cast<size_t>(num_elements(array.tensor)));
      load_elements(array.tensor.data, array.tensor.dtype, 0, 1, static_cast<int64_t>(values.size()), values.data());
      return values;
    }
    return {};
  }

 private:
  const Placement& placement_;
  std::deque<Array> arrays_;
  std::deque<tessella_tensor> tensors_;
  std::deque<GpuMemory> memories_;
};

std::vector<int64_t> shape_of(const tessella_tensor& tensor) { return {tensor.shape, tensor.shape + tensor.ndim}; }

struct Quantized {
  const tessella_tensor *elements, *scale;
};
// spreads: takes part in incoherent processing, as q and k do.
Quantized quantize(const Fp8Scheme& scheme, const Array& array, bool spreads, uint64_t seed, Placed& placed) {
  const int64_t rows = array.tensor.shape[1], heads = array.tensor.shape[2];
  tessella_quantize_options options = TESSELLA_QUANTIZE_OPTIONS_INIT;
  if (scheme.scale == "block") options.scale_block = kBlock;
  if (scheme.scale == "token") options.scale_block = 1;
  if (spreads && scheme.hadamard) {
    options.hadamard = 1;
    options.hadamard_seed = seed;
  }
  const int64_t blocks = options.scale_block == 0 ? 1 : (rows + options.scale_block - 1) / options.scale_block;
  const int64_t scales[] = {1, blocks, scheme.scale == "tensor" ? 1 : heads};
  const Quantized to{placed.add(TESSELLA_F8E4M3FN, shape_of(array.tensor)), placed.add(TESSELLA_F32, scales)};
  tessella_quantize_args args = TESSELLA_QUANTIZE_ARGS_INIT;
  args.x = placed.add(array);
  args.out = to.elements;
  args.scale = to.scale;
  check(tessella_quantize(&args, &options, nullptr));
  return to;
}

Fp8Result attend(const tessella_forward_args& args, const tessella_attention_options& options, const Placed& placed) {
  const tessella_call call{sizeof(tessella_call), TESSELLA_FORWARD, &args, &options};
  const PlanHandle plan = make_plan(&call);
  check(tessella_plan_run(plan.get(), &call, nullptr, nullptr));
  return {tessella_plan_kernel(plan.get()), placed.values(args.out)};
}

std::vector<float> dequantized(const Quantized& from, int64_t scale_block, Placed& placed) {
  tessella_dequantize_args args = TESSELLA_DEQUANTIZE_ARGS_INIT;
  tessella_dequantize_options options = TESSELLA_DEQUANTIZE_OPTIONS_INIT;
  options.scale_block = scale_block;
  args.x = from.elements;
  args.scale = from.scale;
  args.out = placed.add(TESSELLA_F32, shape_of(*from.elements));
  check(tessella_dequantize(&args, &options, nullptr));
  const std::vector<double> values = placed.values(args.out);
  return {values.begin(), values.end()};
}

// To nearest even, of numbers from 0 to 448.
float rounded_to_e4m3(float x) {
  const float step = std::ldexp(1.0f, std::max(x > 0 ? std::ilogb(x) : -6, -6) - 3);
  return std::nearbyint(x / step) * step;
}

// sums[j] += sum over c of a[c] * b[c * stride + j], for at most kBlock sums, as Hopper's matrix unit adds products of
// 8 bits: 32 of them and the sum so far, each cut, toward zero, 13 bits below the largest (DeepSeek-V3, arXiv
// 2412.19437, section 3.5.2).
void add_products(const float* a, int64_t terms, const float* b, int64_t stride, int64_t count, float* sums) {
  constexpr int64_t kTerms = 32;
  constexpr float kLeast = 0x1p-100f;
  for (int64_t begin = 0; begin < terms; begin += kTerms) {
    const int64_t end = std::min(begin + kTerms, terms);
    float sizes[kBlock], units[kBlock];
    int32_t totals[kBlock];
    for (int64_t j = 0; j < count; ++j) sizes[j] = std::max(std::abs(sums[j]), kLeast);
    for (int64_t c = begin; c < end; ++c) {
      for (int64_t j = 0; j < count; ++j) sizes[j] = std::max(sizes[j], std::abs(a[c] * b[c * stride + j]));
    }
    for (int64_t j = 0; j < count; ++j) {
      constexpr uint32_t kExponent = 0x7F800000;
      units[j] = std::bit_cast<float>(std::bit_cast<uint32_t>(sizes[j]) & kExponent) * 0x1p-13f;
      sizes[j] = 1 / units[j];
      totals[j] = static_cast<int32_t>(sums[j] * sizes[j]);
    }
    for (int64_t c = begin; c < end; ++c) {
      for (int64_t j = 0; j < count; ++j) totals[j] += static_cast<int32_t>(a[c] * b[c * stride + j] * sizes[j]);
    }
    for (int64_t j = 0; j < count; ++j) {
      constexpr uint32_t kKept = ~0u << (23 - 13);  // the new sum has as many bits
      sums[j] = std::bit_cast<float>(std::bit_cast<uint32_t>(static_cast<float>(totals[j]) * units[j]) & kKept);
    }
  }
}

// One row over all keys of a head. k: transposed, (head_dim, seqlen).
class EmulatedRow {
 public:
  EmulatedRow(const float* q, int64_t head_dim, float scale)
      : q_(q), out_(static_cast<size_t>(head_dim)), scale_(scale) {}

  void add_tile(const float* k, int64_t seqlen, const float* v, int64_t v_stride, int64_t keys) {
    const auto head_dim = static_cast<int64_t>(out_.size());
    float scores[kBlock] = {}, probs[kBlock];
    add_products(q_, head_dim, k, seqlen, keys, scores);
    const float largest = std::max(largest_, *std::max_element(scores, scores + keys));
    const float kept = std::exp((largest_ - largest) * scale_);
    largest_ = largest;
    sum_ *= kept;
    for (float& value : out_) value *= kept;
    for (int64_t j = 0; j < keys; ++j) {
      const float prob = kLargestProb * std::exp((scores[j] - largest) * scale_);
      probs[j] = rounded_to_e4m3(prob);
      sum_ += prob;
    }
    for (int64_t c = 0; c < head_dim; c += kBlock) {
      add_products(probs, keys, v + c, v_stride, std::min(kBlock, head_dim - c), out_.data() + c);
    }
  }
  void store(double* to) const {
    for (size_t c = 0; c < out_.size(); ++c) to[c] = static_cast<double>(out_[c] / sum_);
  }

 private:
  static constexpr float kLargestProb = 256;
  const float* q_;
  std::vector<float> out_;
  float scale_;
  float largest_ = -std::numeric_limits<float>::infinity(), sum_ = 0;
};

std::vector<double> emulated_out(const Fp8Inputs& inputs, const std::vector<float>& q, const std::vector<float>& k,
                                 const std::vector<float>& v) {
  const int64_t queries = inputs.q.tensor.shape[1], seqlen = inputs.k.tensor.shape[1];
  const int64_t heads = inputs.q.tensor.shape[2], head_dim = inputs.q.tensor.shape[3], stride = heads * head_dim;
  const float scale = 1 / std::sqrt(static_cast<float>(head_dim));
  std::vector<double> out(q.size());
  std::vector<float> k_of_head(static_cast<size_t>(head_dim * seqlen));
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t j = 0; j < seqlen; ++j) {
      for (int64_t c = 0; c < head_dim; ++c) {
        k_of_head[static_cast<size_t>(c * seqlen + j)] = k[static_cast<size_t>(j * stride + head * head_dim + c)];
      }
    }
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t at = i * stride + head * head_dim;
      EmulatedRow row(q.data() + at, head_dim, scale);
      for (int64_t j = 0; j < seqlen; j += kBlock) {
        row.add_tile(k_of_head.data() + j, seqlen, v.data() + j * stride + head * head_dim, stride,
                     std::min(kBlock, seqlen - j));
      }
      row.store(out.data() + at);
    }
  }
  return out;
}

}  // namespace

std::vector<double> exact_out(const Fp8Inputs& inputs) {
  const Placement cpu;
  Placed placed(cpu);
  tessella_forward_args args = TESSELLA_FORWARD_ARGS_INIT;
  args.q = placed.add(converted(inputs.q, TESSELLA_F64));
  args.k = placed.add(converted(inputs.k, TESSELLA_F64));
  args.v = placed.add(converted(inputs.v, TESSELLA_F64));
  args.out = placed.add(TESSELLA_F64, shape_of(inputs.q.tensor));
  return attend(args, TESSELLA_ATTENTION_OPTIONS_INIT, placed).out;
}

Fp8Result run_scheme(const Fp8Scheme& scheme, const Fp8Inputs& inputs, const Placement& placement, uint64_t seed) {
  const Placement cpu;
  Placed placed(scheme.emulates_flash_3 ? cpu : placement);
  tessella_forward_args args = TESSELLA_FORWARD_ARGS_INIT;
  tessella_attention_options options = TESSELLA_ATTENTION_OPTIONS_INIT;
  if (scheme.scale.empty()) {
    args.q = placed.add(inputs.q);
    args.k = placed.add(inputs.k);
    args.v = placed.add(inputs.v);
  } else {
    const Quantized q = quantize(scheme, inputs.q, true, seed, placed);
    const Quantized k = quantize(scheme, inputs.k, true, seed, placed);
    const Quantized v = quantize(scheme, inputs.v, false, seed, placed);
    options.scale_block = scheme.scale == "block" ? kBlock : scheme.scale == "token" ? 1 : 0;
    if (scheme.emulates_flash_3) {
      return {"emulated",
              emulated_out(inputs, dequantized(q, options.scale_block, placed),
                           dequantized(k, options.scale_block, placed), dequantized(v, options.scale_block, placed))};
    }
    std::tie(args.q, args.q_scale) = std::pair(q.elements, q.scale);
    std::tie(args.k, args.k_scale) = std::pair(k.elements, k.scale);
    std::tie(args.v, args.v_scale) = std::pair(v.elements, v.scale);
  }
  args.out = placed.add(TESSELLA_F32, shape_of(inputs.q.tensor));
  options.out_dtype = TESSELLA_F32;
  return attend(args, options, placed);
}

}  // namespace tessella::cli
