#include "api/tune.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "api/arena.hpp"
#include "api/backends.hpp"
#include "api/dataflow.hpp"
#include "api/plan_cache.hpp"
#include "core/cancel.hpp"
#include "core/choose.hpp"
#include "core/error.hpp"
#include "core/message.hpp"
#include "operations/grow.hpp"
#include "operations/linear/linear.hpp"
#include "portable/float16.hpp"
#include "portable/float8.hpp"

namespace tessella::api {
namespace {

using core::DType;
using core::LinearArguments;
using core::message;

constexpr int64_t kRows[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128};
constexpr int64_t kLargestRows = 128;
constexpr int64_t kRotatedBytes = int64_t{512} << 20;  // of weights that are read in turn: no cache holds them
constexpr double kWindow = 0.01;                       // seconds that a measurement takes at least
constexpr size_t kWindows = 3;                         // of which the middle one counts
constexpr double kSame = 1.02;                         // times that differ by less are the same
constexpr double kFarBehind = 4;                       // times the least time

// Memory of a device, or of the host.
class Memory {
 public:
  Memory(core::Device device, int64_t bytes) : device_(device) {
    const auto size = static_cast<size_t>(bytes + 63) / 64 * 64;
    if (device.type != core::DeviceType::cpu) {
      data_ = static_cast<std::byte*>(backend_of(device).allocate(device, size, nullptr));
    } else {
      data_ = static_cast<std::byte*>(std::aligned_alloc(64, size));
    }
    if (data_ == nullptr) {
      throw core::Error(core::ErrorCode::out_of_memory, message("tune: no memory for ", bytes, " bytes"));
    }
  }
  ~Memory() {
    if (device_.type != core::DeviceType::cpu) {
      backend_of(device_).free(device_, data_, nullptr);
    } else {
      std::free(data_);
    }
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data() const { return data_; }

  // Normal numbers of this size; a long matrix repeats the first ones.
  void fill(DType dtype, int64_t bytes, double size) const {
    constexpr int64_t kPattern = 1 << 20;
    std::vector<std::byte> pattern(static_cast<size_t>(std::min(bytes, kPattern)));
    std::mt19937 bits(1);
    std::normal_distribution<float> normal(0, static_cast<float>(size));
    const auto put = [&](auto round) {
      using T = decltype(round(0.0F));
      for (size_t at = 0; at + sizeof(T) <= pattern.size(); at += sizeof(T)) {
        const T value = round(normal(bits));
        std::memcpy(pattern.data() + at, &value, sizeof value);
      }
    };
    switch (dtype) {
      case DType::f32: put([](float x) { return x; }); break;
      case DType::bf16: put(portable::to_bfloat16); break;
      case DType::f16: put(portable::to_float16); break;
      case DType::i8: put([](float x) { return static_cast<int8_t>(std::clamp(x, -127.0F, 127.0F)); }); break;
      default: put([](float x) { return portable::to_float8(x); }); break;
    }
    for (int64_t at = 0; at < bytes; at += kPattern) {
      const auto count = static_cast<size_t>(std::min(kPattern, bytes - at));
      if (device_.type != core::DeviceType::cpu) {
        backend_of(device_).copy_from_host(device_, data_ + at, pattern.data(), count, nullptr);
      } else {
        std::memcpy(data_ + at, pattern.data(), count);
      }
    }
  }

 private:
  core::Device device_;
  std::byte* data_ = nullptr;
};

LinearArguments arguments_of(const tessella_tune_options& options) {
  const auto reject = [](const char* member, int64_t got, const char* expected) {
    core::invalid(message("tune: ", member, " is ", got, ", expected ", expected));
  };
  // A number that is no dtype stays one.
  const auto dtype_of = [](int32_t given) {
    const bool is_one = given >= TESSELLA_F64 && given <= static_cast<int32_t>(core::kLastDType);
    return is_one ? std::string(core::name(static_cast<DType>(given))) : std::to_string(given);
  };
  LinearArguments a;
  if (options.device_type != TESSELLA_DEVICE_DEFAULT && options.device_type != TESSELLA_CPU &&
      options.device_type != TESSELLA_CUDA) {
    reject("device_type", options.device_type, "TESSELLA_CPU, TESSELLA_CUDA or the default");
  }
  if (options.device_type == TESSELLA_CUDA) {
    a.device = {core::DeviceType::cuda, options.device_id};
    if (const std::string problem = backend_of(a.device).device_problem(a.device.id); !problem.empty()) {
      core::unsupported("tune: " + problem);
    }
  }
  const auto dtype = static_cast<DType>(options.dtype == TESSELLA_DTYPE_DEFAULT ? TESSELLA_BF16 : options.dtype);
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) {
    core::invalid(message("tune: dtype is ", dtype_of(options.dtype), ", expected f32, bf16 or f16"));
  }
  const auto w_dtype = options.w_dtype == TESSELLA_DTYPE_DEFAULT ? dtype : static_cast<DType>(options.w_dtype);
  if (w_dtype != dtype && w_dtype != DType::i8 && w_dtype != DType::f8e4m3fn) {
    core::invalid(message("tune: w_dtype is ", dtype_of(options.w_dtype), ", expected ", core::name(dtype),
                          " = dtype, i8 or f8e4m3fn"));
  }
  if (options.activation != TESSELLA_ACTIVATION_NONE && options.activation != TESSELLA_SWIGLU) {
    reject("activation", options.activation, "TESSELLA_ACTIVATION_NONE or TESSELLA_SWIGLU");
  }
  for (const auto& [name, value] :
       {std::pair{"in_features", options.in_features}, std::pair{"out_features", options.out_features}}) {
    if (value < 1) reject(name, value, "at least 1");
  }
  if (options.num_threads < 0) reject("num_threads", options.num_threads, "at least 0");
  a.rows = kLargestRows;
  a.in_features = options.in_features;
  a.out_features = options.out_features;
  a.activation = static_cast<core::Activation>(options.activation);
  a.num_threads = threads_of_key(a.device, options.num_threads);
  a.weights_ready = true;
  a.cancel = options.cancel;
  core::Linear::validate_sizes(a, "tune");
  if (static_cast<double>(a.weight_rows()) * static_cast<double>(a.in_features) > 0x1p36) {
    core::unsupported(
        message("tune: w has ", a.weight_rows(), " times ", a.in_features, " elements, expected at most 2^36"));
  }
  a.x = {.data = nullptr, .dtype = dtype, .row_stride = a.in_features};
  a.w = {.data = nullptr, .dtype = w_dtype, .row_stride = a.in_features};
  a.out = {.data = nullptr, .dtype = dtype, .row_stride = a.out_features};
  return a;
}

// A kernel that is ready to run with so many rows.
class Candidate {
 public:
  Candidate(const core::Kernel& kernel, core::Plan plan)
      : kernel_(&kernel),
        plan_(std::move(plan)),
        memory_(plan_.workspace, core::device(plan_.shape), nullptr, nullptr, "tune") {}

  const core::Kernel& kernel() const { return *kernel_; }
  void run(const LinearArguments& a) const { kernel_->run(&a, plan_, memory_.workspace(), nullptr); }
  void add(double seconds) { seconds_.push_back(seconds); }
  double seconds() {
    std::ranges::sort(seconds_);
    return seconds_[seconds_.size() / 2];
  }
  double least_seconds() const { return *std::ranges::min_element(seconds_); }

 private:
  const core::Kernel* kernel_;
  core::Plan plan_;
  RunMemory memory_;
  std::vector<double> seconds_;
};

class Tuning {
 public:
  explicit Tuning(const tessella_tune_options& options)
      : a_(arguments_of(options)),
        w_bytes_(core::bytes_of(a_.w.dtype, a_.weight_rows() * a_.in_features)),
        num_w_(std::clamp<int64_t>(kRotatedBytes / w_bytes_ + 1, 2, 512)),
        x_(a_.device, core::bytes_of(a_.x.dtype, kLargestRows * a_.in_features)),
        w_(a_.device, num_w_ * w_bytes_),
        scale_(a_.device, a_.weight_rows() * static_cast<int64_t>(sizeof(float))),
        out_(a_.device, core::bytes_of(a_.out.dtype, kLargestRows * a_.out_features)) {
    const bool is_quantized = core::is_quantized(a_.w.dtype);
    const double size = 1 / std::sqrt(static_cast<double>(a_.in_features));
    x_.fill(a_.x.dtype, core::bytes_of(a_.x.dtype, kLargestRows * a_.in_features), 1);
    w_.fill(a_.w.dtype, num_w_ * w_bytes_, is_quantized ? 40 : size);
    scale_.fill(DType::f32, a_.weight_rows() * static_cast<int64_t>(sizeof(float)), size / 40);
    a_.x.data = x_.data();
    a_.w.data = w_.data();
    a_.out.data = out_.data();
    if (is_quantized) a_.w_scale = {reinterpret_cast<const float*>(scale_.data()), 0, 1};
  }

  void run(const core::Progress& progress) {
    expect_writable_dataflow();
    std::vector<core::DataflowChoice> choices;
    int done = 0;
    for (const int64_t rows : kRows) {
      a_.rows = rows;
      a_.derive_shape();
      std::vector<std::unique_ptr<Candidate>> candidates = this->candidates();
      if (candidates.empty()) core::unsupported(message("tune: no kernel computes such a layer, for rows = ", rows));
      for (size_t window = 0; window < kWindows; ++window) {
        for (const auto& candidate : candidates) candidate->add(seconds_of(*candidate));
      }
      leave_behind(candidates);
      std::ranges::sort(candidates, {}, [](const auto& candidate) { return candidate->seconds(); });
      std::string times = message(rows, rows == 1 ? " row" : " rows");
      for (const auto& candidate : candidates) {
        times += message(candidate == candidates.front() ? ": " : ", ", candidate->kernel().name, " ",
                         std::round(candidate->seconds() * 1e7) / 10, " us");
      }
      choose(choices, rows, candidates);
      progress(++done, static_cast<int>(std::size(kRows)), times);
    }
    keep_dataflow(dataflow_key(a_), choices);
    forget_plans();
  }

 private:
  std::vector<std::unique_ptr<Candidate>> candidates() const {
    std::vector<std::unique_ptr<Candidate>> candidates;
    for (const core::KernelTable& table : kernel_tables()) {
      for (const core::Kernel& kernel : table) {
        const bool is_for_this = kernel.operation == core::Operation::linear && kernel.device == a_.device.type &&
                                 (kernel.automatic & core::dtype_bit(a_.dtype())) != 0;
        if (!is_for_this || left_behind_.contains(&kernel)) continue;
        if (!core::ineligible(kernel, core::Shape::view(a_)).empty()) continue;
        candidates.push_back(
            std::make_unique<Candidate>(kernel, make_plan(core::Shape::view(a_), {kernel.name}, "tune")));
      }
    }
    return candidates;
  }

  // Kernels that are far behind, at their best, are not measured for more rows.
  void leave_behind(std::vector<std::unique_ptr<Candidate>>& candidates) {
    double least = candidates.front()->least_seconds();
    for (const auto& candidate : candidates) least = std::min(least, candidate->least_seconds());
    for (const auto& candidate : candidates) {
      if (candidate->least_seconds() >= kFarBehind * least) left_behind_.insert(&candidate->kernel());
    }
  }

  // The kernel of fewer rows stays where it is as fast.
  static void choose(std::vector<core::DataflowChoice>& choices, int64_t rows,
                     const std::vector<std::unique_ptr<Candidate>>& candidates) {
    const double least = candidates.front()->seconds();
    const bool stays = !choices.empty() && std::ranges::any_of(candidates, [&](const auto& candidate) {
      return candidate->kernel().name == choices.back().kernel && candidate->seconds() < kSame * least;
    });
    if (stays) {
      choices.back().rows = rows;
    } else {
      choices.push_back({rows, std::string(candidates.front()->kernel().name)});
    }
  }

  double seconds_of(const Candidate& candidate) {
    timed(candidate, 2);
    for (int64_t count = 1;; count *= 2) {
      const double seconds = timed(candidate, count);
      if (seconds >= kWindow) return seconds / static_cast<double>(count);
    }
  }

  double timed(const Candidate& candidate, int64_t count) {
    if (core::is_cancelled(a_.cancel)) throw core::Cancelled();
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < count; ++i) {
      a_.w.data = w_.data() + next_++ % num_w_ * w_bytes_;
      candidate.run(a_);
    }
    if (a_.device.type != core::DeviceType::cpu) backend_of(a_.device).synchronize(a_.device);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  LinearArguments a_;
  int64_t w_bytes_, num_w_;
  Memory x_, w_, scale_, out_;
  int64_t next_ = 0;
  std::set<const core::Kernel*> left_behind_;
};

}  // namespace

void tune(const tessella_tune_options* options, const core::Progress& progress) {
  const tessella_tune_options defaults = TESSELLA_TUNE_OPTIONS_INIT;
  const tessella_tune_options given = core::grow(options, defaults, "tune", "options");
  try {
    Tuning(given).run(progress);
  } catch (const core::Cancelled&) {
    throw core::Error(core::ErrorCode::cancelled, "tune: it was cancelled; nothing of this layer is kept");
  }
}

}  // namespace tessella::api
