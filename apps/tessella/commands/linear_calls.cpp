#include "commands/linear_calls.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "commands/cache_type.hpp"
#include "device/rotation.hpp"
#include "files/element_type.hpp"

namespace tessella::cli {
namespace {

constexpr int64_t kFewestCalls = 3, kMostCalls = 512;  // weights under 800 kB come to less than what no cache holds
constexpr size_t kAlignment = 256;
constexpr uint8_t kNan = 0xff;  // of every byte

size_t bytes_of(tessella_dtype dtype, int64_t elements) {
  return static_cast<size_t>(elements) * static_cast<size_t>(find_element_type(dtype)->bytes);
}

}  // namespace

LinearCallsLayout::LinearCallsLayout(const LinearLayer& layer, const Placement& placement)
    : weight_bytes(bytes_of(layer.w_dtype, layer.w.rows * layer.w.columns)),
      weight_stride((weight_bytes + kAlignment - 1) / kAlignment * kAlignment),
      num_calls(std::clamp(static_cast<int64_t>(bytes_to_rotate(placement) / static_cast<double>(weight_bytes)) + 1,
                           kFewestCalls, kMostCalls)),
      x_bytes(bytes_of(layer.dtype, layer.most_rows * layer.w.columns)),
      out_bytes(bytes_of(layer.dtype, layer.most_rows * layer.out_features())) {}

double LinearCallsLayout::total_bytes() const {
  return static_cast<double>(num_calls) * static_cast<double>(weight_stride) + static_cast<double>(x_bytes + out_bytes);
}

LinearCalls::LinearCalls(const LinearLayer& layer, const Placement& placement)
    : layer_(layer),
      layout_(layer, placement),
      w_(placement, static_cast<size_t>(size()) * layout_.weight_stride),
      w_scale_(placement, static_cast<size_t>(layer.w.rows) * sizeof(float)),
      x_(placement, layout_.x_bytes),
      out_(placement, layout_.out_bytes),
      scale_tensor_(w_scale_.tensor(0, TESSELLA_F32, {layer.w.rows})) {
  fill();
  options_.activation = layer.is_gated ? TESSELLA_SWIGLU : TESSELLA_ACTIVATION_NONE;
  options_.weights_ready = 1;  // as a model's are
  options_.num_threads = layer.num_threads;
  for (int64_t idx = 0; idx < size(); ++idx) {
    w_tensors_.push_back(
        w_.tensor(static_cast<size_t>(idx) * layout_.weight_stride, layer.w_dtype, {layer.w.rows, layer.w.columns}));
    tessella_linear_args args = TESSELLA_LINEAR_ARGS_INIT;
    args.x = &x_tensor_;
    args.w = &w_tensors_.back();
    if (layer.w_dtype != layer.dtype) args.w_scale = &scale_tensor_;
    args.out = &out_tensor_;
    args_.push_back(args);
  }
}

// Sums are of about one, so that SwiGLU's products stay within f16.
void LinearCalls::fill() const {
  std::mt19937_64 random(1);
  const CacheType& w_type = cache_type_of(layer_.w_dtype);
  fill_random(w_, w_type, static_cast<size_t>(size()) * layout_.weight_stride, random);
  const std::vector<float> scales = random_scales(w_type, static_cast<size_t>(layer_.w.rows), random);
  w_scale_.write(0, scales.data(), scales.size() * sizeof(float));
  std::vector<std::byte> x(layout_.x_bytes);
  std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(layer_.w.columns)));
  for (int64_t i = 0; i < layer_.most_rows * layer_.w.columns; ++i) {
    store_element(x.data(), layer_.dtype, i, normal(random));
  }
  x_.write(0, x.data(), x.size());
}

void LinearCalls::begin(int64_t rows, const char* kernel) {
  x_tensor_ = x_.tensor(0, layer_.dtype, {rows, layer_.w.columns});
  out_tensor_ = out_.tensor(0, layer_.dtype, {rows, layer_.out_features()});
  out_.fill(0, kNan, layout_.out_bytes);
  options_.kernel = kernel;
}

tessella_call LinearCalls::at(int64_t idx) const {
  return {sizeof(tessella_call), TESSELLA_LINEAR, &args_[static_cast<size_t>(idx)], &options_};
}

}  // namespace tessella::cli
