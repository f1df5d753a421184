#include "cases/linear_call.hpp"

#include <cmath>
#include <cstring>
#include <deque>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "cases/random.hpp"
#include "cases/tensor_elements.hpp"

namespace tessella::tests {

namespace {

// f(name, member) of every member.
template <typename C, typename F>
void fields(C& c, F&& f) {
  f("kernel", c.kernel);
  f("dtype", c.dtype);
  f("w_dtype", c.w_dtype);
  f("out_dtype", c.out_dtype);
  f("bias_dtype", c.bias_dtype);
  f("residual", c.residual);
  f("in_place", c.in_place);
  f("swiglu", c.swiglu);
  f("weights_ready", c.weights_ready);
  f("batch_invariant", c.batch_invariant);
  f("rows", c.rows);
  f("in_features", c.in_features);
  f("out_features", c.out_features);
  f("positive", c.positive);
  f("offset", c.offset);
  f("gap", c.gap);
  f("guard", c.guard);
  f("plan", c.plan);
  f("max_rows", c.max_rows);
  f("num_threads", c.num_threads);
  f("seed", c.seed);
}

// Those of one room, which leave rows that the copy engine does not read, and w of 8 bits, to kernels behind them.
bool is_made_for_hopper(const std::string& kernel) {
  for (int32_t idx = 0; idx < tessella_kernel_count(); ++idx) {
    tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
    if (tessella_kernel_describe(idx, &info) == TESSELLA_OK && info.name == kernel) {
      return info.architectures == std::string_view("sm_90a");
    }
  }
  return false;
}

}  // namespace

std::string to_string(const LinearCase& c) {
  std::ostringstream line;
  fields(c,
         [&](const char* name, const auto& value) { line << (line.tellp() == 0 ? "" : " ") << name << '=' << value; });
  return line.str();
}

LinearCase parse_linear(const std::string& line) {
  LinearCase c;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    bool is_read = false;
    fields(c, [&](const std::string& name, auto& value) {
      if (!word.starts_with(name + '=')) return;
      std::istringstream given(word.substr(name.size() + 1));
      is_read = static_cast<bool>(given >> value) || name == "kernel";  // which may be ""
    });
    if (!is_read) throw std::invalid_argument("no field of a case of linear: " + word);
  }
  return c;
}

LinearCase supported(LinearCase c) {
  if (c.kernel == "cpu.linear_amx") {
    c.w_dtype = c.dtype;
    c.batch_invariant = true;  // for any number of rows
  } else if (c.kernel == "cuda.linear_blas") {
    c.w_dtype = c.dtype;
    c.batch_invariant = false;
  } else if (c.kernel == "cpu.linear_avx512_bf16") {
    c.w_dtype = c.dtype;
  } else if (c.kernel == "cpu.linear_blas") {
    constexpr int64_t kFewest = 128;
    c.w_dtype = c.dtype;
    c.batch_invariant = false;
    c.num_threads = 0;
    if (c.max_rows > 0) {
      c.max_rows += kFewest;
    } else {
      c.rows += kFewest;
    }
  } else if (is_made_for_hopper(c.kernel)) {
    const int64_t piece = 16 / size_of(c.dtype);
    const auto whole = [&](int64_t columns) { return (columns + piece - 1) / piece * piece; };
    c.w_dtype = c.dtype;
    c.in_features = whole(c.in_features);
    c.offset = static_cast<int32_t>(whole(c.offset));
    c.gap = whole(c.gap);
  }
  return c;
}

LinearCase random_linear(const std::string& kernel, const std::string& dtypes, uint64_t seed, int64_t most_rows) {
  Random random(seed);
  LinearCase c{.kernel = kernel, .seed = seed};
  std::vector<int32_t> floats;
  std::istringstream words(dtypes);
  for (std::string word; words >> word;) floats.push_back(dtype_of(word));
  c.dtype = floats[static_cast<size_t>(random.below(static_cast<int64_t>(floats.size())))];
  const int32_t weights[] = {c.dtype, c.dtype, TESSELLA_I8, TESSELLA_F8E4M3FN};
  c.w_dtype = random.one_of(weights);
  const bool is_f64 = c.dtype == TESSELLA_F64;
  c.out_dtype = !is_f64 && random.chance(0.2) ? TESSELLA_F32 : c.dtype;
  if (random.chance(0.4)) c.bias_dtype = !is_f64 && random.chance(0.5) ? TESSELLA_F32 : c.dtype;
  c.residual = random.chance(0.4);
  c.in_place = c.residual && random.chance(0.5);
  c.swiglu = random.chance(0.3);
  c.weights_ready = random.chance(0.3);
  c.batch_invariant = random.chance(0.2);
  const int64_t few[] = {1, 1, 2, 3, 4, 7, 8, 9, 16, 17, 31, 32, 33, 63, 64};
  c.rows =
      random.chance(0.03) ? 0 : std::min(random.chance(0.8) ? random.one_of(few) : random.in(1, most_rows), most_rows);
  const bool is_whole = random.chance(0.5);
  c.in_features = is_whole ? 64 * random.in(1, 12) : random.in(1, 700);
  c.out_features = is_whole ? 16 * random.in(1, 20) : random.in(1, 300);
  c.positive = random.chance(0.2);
  if (!is_whole) {
    c.offset = random.chance(0.4) ? static_cast<int32_t>(random.below(8)) : 0;
    c.gap = random.chance(0.4) ? random.in(1, 16) : 0;
  } else if (random.chance(0.3)) {
    c.gap = 16 * random.in(1, 3);
  }
  c.guard = random.chance(0.4);
  c.plan = random.chance(0.3);
  if (c.plan && random.chance(0.5)) c.max_rows = c.rows + random.in(0, 40);
  c.num_threads = static_cast<int32_t>(random.below(4));
  return supported(c);
}

LinearCall::LinearCall(const LinearCase& c) : c_(c) {
  const int64_t w_rows = c.swiglu ? 2 * c.out_features : c.out_features;
  x_ = matrix(c.dtype, c.rows, c.in_features, 1);
  const bool is_quantized = c.w_dtype == TESSELLA_I8 || c.w_dtype == TESSELLA_F8E4M3FN;
  // Sums are of about one, whatever their length.
  const double size = 1 / std::sqrt(static_cast<double>(c.in_features));
  w_ = matrix(c.w_dtype, w_rows, c.in_features, is_quantized ? 40 : size);
  const auto vector = [&](int32_t dtype, double value) {
    Tensors::Tensor& made = tensors_.add(dtype, {w_rows}, false, 0, c.offset, c.guard, false);
    Random random(c.seed + 77 * tensors_.all().size());
    for_each_element(made.tensor, [&](int64_t at) { set(made.tensor, at, value * random.normal()); });
    return &made;
  };
  if (is_quantized) w_scale_ = vector(TESSELLA_F32, size / 40);
  if (c.bias_dtype != 0) bias_ = vector(c.bias_dtype, 1);
  if (c.residual) residual_ = matrix(c.out_dtype, c.rows, c.out_features, 1);
  out_ = matrix(c.out_dtype, c.rows, c.out_features, 1, true);
  args_.x = &x_->tensor;
  args_.w = &w_->tensor;
  args_.w_scale = w_scale_ == nullptr ? nullptr : &w_scale_->tensor;
  args_.bias = bias_ == nullptr ? nullptr : &bias_->tensor;
  args_.residual = residual_ == nullptr ? nullptr : &residual_->tensor;
  args_.out = &out_->tensor;
  options_.activation = c.swiglu ? TESSELLA_SWIGLU : TESSELLA_ACTIVATION_NONE;
  options_.weights_ready = c.weights_ready ? 1 : 0;
  options_.batch_invariant = c.batch_invariant ? 1 : 0;
  options_.max_rows = c.max_rows;
  options_.num_threads = c.num_threads;
  options_.kernel = c_.kernel.empty() ? nullptr : c_.kernel.c_str();
}

Tensors::Tensor* LinearCall::matrix(int32_t dtype, int64_t rows, int64_t columns, double size, bool is_written) {
  Tensors::Tensor& made = tensors_.add(dtype, {rows, columns}, false, c_.gap, c_.offset, c_.guard, is_written);
  if (is_written) return &made;
  Random random(c_.seed + 77 * tensors_.all().size());
  for_each_element(made.tensor, [&](int64_t at) {
    const double value = size * random.normal();
    set(made.tensor, at, c_.positive ? std::abs(value) : value);
  });
  return &made;
}

tessella_linear_args LinearCall::args() const {
  tessella_linear_args args = args_;
  if (c_.in_place) args.residual = args.out;
  return args;
}

void LinearCall::remember() {
  if (c_.in_place) {
    for_each_element(out_->tensor,
                     [&](int64_t at) { set(out_->tensor, at, get(residual_->tensor, at)); });  // of the same strides
  }
  tensors_.remember();
}

tessella_status LinearCall::run() {
  remember();
  tessella_linear_args args = this->args();
  const auto call_it = [&](void* stream) {
    if (!c_.plan) return tessella_linear(&args, &options_, stream);
    const tessella_call call{sizeof call, TESSELLA_LINEAR, &args, &options_};
    tessella_plan* plan = nullptr;
    tessella_status planned = tessella_plan_make(&call, &plan);
    if (planned == TESSELLA_OK) planned = tessella_plan_run(plan, &call, nullptr, stream);
    tessella_plan_free(plan);
    return planned;
  };
  if (!c_.kernel.starts_with("cuda.")) return call_it(nullptr);
  tessella_status status = TESSELLA_OK;
  spoiled_ = tensors_.run_on_gpu(c_.guard, [&](GpuTwin& twin) {
    std::deque<tessella_tensor> twins;
    for (const tessella_tensor** arg : {&args.x, &args.w, &args.w_scale, &args.bias, &args.residual, &args.out}) {
      if (*arg != nullptr) *arg = &twins.emplace_back(twin.twin(**arg, true));
    }
    return status = call_it(twin.stream());
  });
  return status;
}

std::string LinearCall::check() const {
  if (!spoiled_.empty()) return spoiled_ + ", " + to_string(c_);
  Tensors::Bytes bytes(out_->memory.size(), false);
  const int64_t first = static_cast<std::byte*>(out_->tensor.data) - out_->memory.data();
  const int64_t element_bytes = size_of(c_.out_dtype);
  for_each_element(out_->tensor,
                   [&](int64_t at) { std::fill_n(bytes.begin() + first + at * element_bytes, element_bytes, true); });
  if (std::string wrong = tensors_.spoiled({{out_, std::move(bytes)}}); !wrong.empty()) {
    return wrong + ", " + to_string(c_);
  }
  tessella_linear_options options = options_;
  options.kernel = nullptr;
  const tessella_call call{sizeof call, TESSELLA_LINEAR, &args_, &options};
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  if (tessella_check(&call, 0, c_.seed, &report) != TESSELLA_OK) return tessella_last_error() + to_string(c_);
  if (report.rows != c_.rows) return "tessella_check has left rows out, " + to_string(c_);
  if (report.passed != 0) return "";
  std::ostringstream line;
  line << "out at (" << report.worst_index[1] << ", " << report.worst_index[3] << ") is " << report.worst_got
       << ", expected " << report.worst_expected << " within " << report.tolerance << ", " << to_string(c_);
  return line.str();
}

std::vector<std::byte> LinearCall::results() const {
  return {out_->memory.data(), out_->memory.data() + out_->memory.size()};
}

}  // namespace tessella::tests
