#include "cases/wrong_forward.hpp"

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "cases/backward_call.hpp"
#include "cases/tensor_elements.hpp"

namespace tessella::tests {
namespace {

// A tensor of f32 with memory of its own.
struct Floats {
  std::vector<float> values;
  tessella_tensor tensor{};
  Floats(std::vector<int64_t> shape, float first, float step) {
    int64_t count = 1;
    tensor.dtype = TESSELLA_F32;
    tensor.ndim = static_cast<int32_t>(shape.size());
    for (size_t axis = shape.size(); axis-- > 0; count *= shape[axis]) {
      tensor.shape[axis] = shape[axis];
      tensor.strides[axis] = count;
    }
    for (int64_t n = 0; n < count; ++n) values.push_back(first + step * static_cast<float>(n % 5));
    tensor.data = values.data();
  }
};

// The last place of one.
double unit(tessella_dtype dtype) {
  switch (dtype) {
    case TESSELLA_BF16: return 0x1p-7;
    case TESSELLA_F16: return 0x1p-10;
    case TESSELLA_F64: return 0x1p-52;
    default: return 0x1p-23;
  }
}

class WrongForward {
 public:
  WrongForward(BackwardCall& call, const Case& c) : c_(c), args_(call.forward().args()), options_(call.options()) {
    options_.kernel = "reference.attention";
  }

  // Moves out and LSE to either side in turn, as far as a right forward may have rounded them: out to its own dtype,
  // and P to that of the inputs before it met V.
  void round_otherwise() const {
    const double smallest = args_.q->dtype == TESSELLA_F16 ? 0x1p-24 : 0;
    double sign = 1;
    const auto move = [&](const tessella_tensor& tensor, double unit, double least) {
      for_each_element(tensor, [&](int64_t at) {
        const double value = get(tensor, at);
        if (!std::isfinite(value)) return;  // the LSE of a row without a key
        set(tensor, at, value + (sign = -sign) * (unit * std::abs(value) + least));
      });
    };
    move(*args_.out, std::max(unit(args_.q->dtype), unit(args_.out->dtype)), smallest);
    move(*args_.lse, unit(TESSELLA_F32), 0);
  }
  // Writes the out and LSE that the backward is given. False if the case has not what would be wrong.
  bool write(std::string_view what) {
    if (what == "lse") return shift(*args_.lse, 0.5);
    if (what == "out") return shift(*args_.out, 2);
    if (!change(what)) return false;
    if (tessella_forward(&args_, &options_, nullptr) != TESSELLA_OK) throw std::runtime_error(tessella_last_error());
    return true;
  }

 private:
  static bool shift(const tessella_tensor& tensor, double by) {
    for_each_element(tensor, [&](int64_t at) { set(tensor, at, get(tensor, at) + by); });
    return true;
  }
  bool change(std::string_view what) {
    if (what == "scale") {
      options_.scale =
          2 * (c_.scale != 0 ? static_cast<float>(c_.scale) : 1 / std::sqrt(static_cast<float>(c_.head_dim_qk)));
    } else if (what == "softcap") {
      options_.softcap = c_.softcap != 0 ? 0 : 0.5F;
    } else if (what == "mask") {
      options_.window_right = c_.window_right >= 0 ? -1 : 0;
    } else if (what == "sink") {
      args_.sink = c_.sink ? nullptr : &sink_.emplace(std::vector<int64_t>{c_.heads_q}, 1.0F, 0.5F).tensor;
    } else if (what == "bias") {
      const std::vector<int64_t> shape{1, 1, 1, c_.seqlen_kv};
      args_.bias = c_.bias.empty() ? &bias_.emplace(shape, 0.0F, 1.5F).tensor : nullptr;
    } else {
      if (c_.packed_kv || c_.seqlens_kv || c_.leftpad_kv || c_.seqlen_kv < 2) return false;
      lengths_.assign(static_cast<size_t>(c_.batch), static_cast<int32_t>(c_.seqlen_kv / 2));
      lengths_tensor_ = {.data = lengths_.data(), .dtype = TESSELLA_I32, .ndim = 1};
      lengths_tensor_.shape[0] = c_.batch;
      lengths_tensor_.strides[0] = 1;
      args_.seqlens_kv = &lengths_tensor_;
    }
    return true;
  }

  const Case& c_;
  tessella_forward_args args_;
  tessella_attention_options options_;
  std::optional<Floats> sink_, bias_;
  std::vector<int32_t> lengths_;
  tessella_tensor lengths_tensor_{};
};

std::vector<std::string> gradients_of(const Case& c) {
  std::vector<std::string> names;
  const std::pair<char, const char*> all[] = {{'q', "dq"},     {'k', "dk"},     {'v', "dv"},
                                              {'b', "d_bias"}, {'s', "d_sink"}, {'a', "d_alibi_slopes"}};
  for (const auto& [letter, name] : all) {
    if (c.gradients.find(letter) != std::string::npos) names.emplace_back(name);
  }
  return names;
}

using Gradients = std::vector<std::vector<double>>;

Gradients run(BackwardCall& call, const Case& c) {
  if (call.run() != TESSELLA_OK) throw std::runtime_error(tessella_last_error());
  Gradients gradients;
  for (const std::string& name : gradients_of(c)) gradients.push_back(call.values(name));
  return gradients;
}

// The numbers of one tensor into another of the same form.
void copy(const tessella_tensor* from, const tessella_tensor* to) {
  if (from == nullptr || to == nullptr) return;
  std::vector<double> values;
  for_each_element(*from, [&](int64_t at) { values.push_back(get(*from, at)); });
  size_t n = 0;
  for_each_element(*to, [&](int64_t at) { set(*to, at, values[n++]); });
}

// Of the same numbers in f64, without rounding.
Gradients exact(const BackwardCall& rounded, Case c) {
  c.dtype = "f64";
  c.out_dtype = "";
  c.gradients_f32 = false;
  c.kernel = "reference.backward";
  BackwardCall call(c);
  const tessella_forward_args &from = *rounded.args().forward, &to = *call.args().forward;
  copy(from.q, to.q);
  copy(from.k, to.k);
  copy(from.v, to.v);
  copy(from.bias, to.bias);
  copy(rounded.args().d_out, call.args().d_out);
  copy(rounded.args().d_lse, call.args().d_lse);
  return run(call, c);
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double value : values) most = std::max(most, std::abs(value));
  return most;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (size_t n = 0; n < a.size(); ++n) most = std::max(most, std::abs(a[n] - b[n]));
  return most;
}

}  // namespace

Catch run_wrong_forward(const Case& c, std::string_view what) {
  BackwardCall call(c);
  WrongForward forward(call, c);
  const Gradients right = run(call, c);
  forward.round_otherwise();
  const Gradients rounded_otherwise = run(call, c);
  if (!forward.write(what)) return {Caught::no_need, "it has none"};
  const Gradients wrong = run(call, c);
  if (!call.check().empty()) return {Caught::yes, ""};
  const Gradients in_f64 = exact(call, c);
  // What rounding costs: the distance of the right gradients from those in f64, and half a unit of the inputs' dtype,
  // to which another kernel rounds P and dS.
  constexpr double kMoreThanRounding = 16, kUnderflow = 0x1p-96;
  const double of_operands = unit(call.args().forward->q->dtype) / 2;
  for (size_t n = 0; n < right.size(); ++n) {
    const double apart = distance(in_f64[n], wrong[n]);
    const double rounding = std::max(
        {distance(in_f64[n], right[n]), distance(in_f64[n], rounded_otherwise[n]), of_operands * largest(in_f64[n])});
    if (apart <= kMoreThanRounding * rounding + kUnderflow) continue;
    std::ostringstream message;
    message << what << ": " << gradients_of(c)[n] << " is off by " << apart << ", and rounding by " << rounding;
    return {Caught::no, message.str()};
  }
  return {Caught::no_need, "it differs by no more than rounding"};
}

}  // namespace tessella::tests
