#include "cases/quantize_call.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>

#include "cases/random.hpp"
#include "portable/float16.hpp"
#include "portable/sequence_rows.hpp"

namespace tessella::tests {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(), kNan = std::numeric_limits<double>::quiet_NaN();
const std::vector<double> kExtremes[] = {{0},
                                         {-0.0, 1e-40},
                                         {kNan, 1},
                                         {-kNan, 2, 3},
                                         {kInf, 1},
                                         {-kInf, -1, 5},
                                         {1e-30},
                                         {0x1p-81, 1e-38, 0x1p-90},
                                         {0x1p127, -0x1p127, 1e-40, 1},
                                         {1, 1e-40, -1e-40, 1e-9, -1e-9},
                                         {0.5, 1.5, 2.5, -0.5, -2.5, 448, 449, 464, -480, 57344, -61440, 1e9, -1e9},
                                         {1, 0x1p-9, 0x1p-10, 3 * 0x1p-10, 0x1p-11, 0x1p-6, 17, 448},
                                         {1, 0x1p-16, 0x1p-17, 3 * 0x1p-17, 0x1p-18, 0x1p-14, 57344}};
constexpr float kExtremeScales[] = {
    1, -0.5F, 0, 0x1p-90F, 0x1p-91F, 1e-40F, static_cast<float>(kNan), static_cast<float>(kInf)};

void store(std::byte* at, int32_t dtype, double value) {
  const auto put = [at](auto rounded) { std::memcpy(at, &rounded, sizeof rounded); };
  switch (dtype) {
    case TESSELLA_F32: return put(static_cast<float>(value));
    case TESSELLA_BF16: return put(portable::to_bfloat16(static_cast<float>(value)));
    default: return put(portable::to_float16(static_cast<float>(value)));
  }
}

int64_t blocks_of(int64_t rows, int64_t block) { return block == 0 ? 1 : (rows + block - 1) / block; }

// All bytes of a tensor's elements.
void mark(const tessella_tensor& t, int axis, int64_t at, Tensors::Bytes& bytes, int64_t first) {
  if (axis == t.ndim) {
    std::fill_n(bytes.begin() + first + at * size_of(t.dtype), size_of(t.dtype), true);
    return;
  }
  for (int64_t i = 0; i < t.shape[axis]; ++i) mark(t, axis + 1, at + i * t.strides[axis], bytes, first);
}

}  // namespace

std::string to_string(const QuantizeCase& c) {
  std::ostringstream line;
  line << "kernel=" << c.kernel << " dtype=" << c.dtype << " out_dtype=" << c.out_dtype << " scale=" << c.scale
       << " scale_block=" << c.scale_block << " given=" << c.given << " extremes=" << c.extremes << " batch=" << c.batch
       << " seqlen=" << c.seqlen << " heads=" << c.heads << " head_dim=" << c.head_dim << " packed=" << c.packed
       << " transposed=" << c.transposed << " hadamard=" << c.hadamard << " smooth=" << c.smooth
       << " heads_mean=" << c.heads_mean << " rotary_dim=" << c.rotary_dim << " interleaved=" << c.interleaved
       << " f32_angles=" << c.f32_angles << " rotary_offsets=" << c.rotary_offsets << " heads_first=" << c.heads_first
       << " offset=" << c.offset << " gap=" << c.gap << " guard=" << c.guard << " plan=" << c.plan
       << " num_threads=" << c.num_threads << " seed=" << c.seed;
  return line.str();
}

QuantizeCase random_quantize(const std::string& kernel, uint64_t seed) {
  Random random(seed);
  QuantizeCase c{.kernel = kernel, .seed = seed};
  const int32_t floats[] = {TESSELLA_F32, TESSELLA_BF16, TESSELLA_F16};
  c.dtype = random.one_of(floats);
  c.out_dtype = random.chance(0.7) ? TESSELLA_F8E4M3FN : TESSELLA_F8E5M2;
  const int64_t blocks[] = {0, 0, 1, 1, 2, 16, 128};
  c.scale_block = random.one_of(blocks);
  for (const char axis : {'b', 'n', 'h'}) {
    if (random.chance(0.4)) c.scale.erase(c.scale.find(axis), 1);
  }
  c.given = random.chance(0.4);
  if (c.given && random.chance(0.2)) c.scale = "0";
  c.batch = random.in(random.chance(0.05) ? 0 : 1, 4);
  c.seqlen = random.in(random.chance(0.05) ? 0 : 1, random.chance(0.2) ? 150 : 9);
  c.heads = random.in(1, 4);
  const int64_t dims[] = {1, 7, 8, 16, 24, 48, 64, 80, 96, 100, 128, 192, 256};
  c.head_dim = random.one_of(dims);
  c.packed = random.chance(0.3);
  c.transposed = !c.packed && random.chance(0.25);
  c.hadamard = c.head_dim % 16 == 0 && random.chance(0.5);
  c.smooth = random.chance(0.25);
  if (!c.smooth && random.chance(0.25)) c.heads_mean = c.heads % 2 == 0 && random.chance(0.5) ? c.heads / 2 : c.heads;
  if (c.head_dim >= 2 && random.chance(0.4)) {
    c.rotary_dim = random.chance(0.5) ? c.head_dim / 2 * 2 : 2 * random.in(1, c.head_dim / 2);
    c.interleaved = random.chance(0.5);
    c.f32_angles = random.chance(0.5);
    c.rotary_offsets = random.chance(0.4);
  }
  c.extremes = !c.hadamard && !c.smooth && c.heads_mean == 0 && c.rotary_dim == 0 && random.chance(0.5);
  c.heads_first = random.chance(0.3);
  c.offset = random.chance(0.4) ? static_cast<int32_t>(random.below(8)) : 0;
  c.gap = random.chance(0.3) ? random.in(1, 16) : 0;
  c.guard = random.chance(0.3);
  c.plan = random.chance(0.3);
  c.num_threads = static_cast<int32_t>(random.below(4));
  return c;
}

QuantizeCase random_quantize_of_few(const std::string& kernel, uint64_t seed) {
  QuantizeCase c = random_quantize(kernel, seed);
  const QuantizeCase kinds[] = {{.dtype = TESSELLA_BF16, .head_dim = 128},
                                {.dtype = TESSELLA_F32,
                                 .out_dtype = TESSELLA_F8E5M2,
                                 .head_dim = 64,
                                 .hadamard = true,
                                 .smooth = true,
                                 .rotary_dim = 32},
                                {.dtype = TESSELLA_BF16,
                                 .head_dim = 96,
                                 .hadamard = true,
                                 .heads_mean = 1,
                                 .rotary_dim = 96,
                                 .interleaved = true},
                                {.dtype = TESSELLA_F16, .out_dtype = TESSELLA_F8E5M2, .head_dim = 100, .smooth = true}};
  const QuantizeCase& kind = kinds[seed % 4];
  c.dtype = kind.dtype;
  c.out_dtype = kind.out_dtype;
  c.head_dim = kind.head_dim;
  c.hadamard = kind.hadamard;
  c.smooth = kind.smooth;
  c.heads_mean = kind.heads_mean;
  c.rotary_dim = kind.rotary_dim;
  c.interleaved = kind.interleaved;
  c.f32_angles = true;
  c.extremes = c.extremes && seed % 4 == 0;
  if (seed % 4 != 3) {
    c.offset = 0;
    c.gap = c.gap / 16 * 16;
  }
  c.plan = false;
  return c;
}

QuantizeCall::QuantizeCall(const QuantizeCase& c) : c_(c) {
  Random random(c.seed + 1000);
  cu_.assign(static_cast<size_t>(c.batch) + 1, 0);
  for (size_t b = 0; b + 1 < cu_.size(); ++b) {
    cu_[b + 1] = cu_[b] + static_cast<int32_t>(b == 0 ? c.seqlen : random.in(0, c.seqlen));
    offsets_.push_back(static_cast<int32_t>(c.rotary_offsets ? random.in(0, 9) : 0));
  }
  total_ = c.packed ? cu_.back() + 2 : c.seqlen;
  const auto rows = [&](int32_t dtype, bool is_written) {
    const std::vector<int64_t> shape = c.packed ? std::vector<int64_t>{total_, c.heads, c.head_dim}
                                                : std::vector<int64_t>{c.batch, total_, c.heads, c.head_dim};
    return &tensors_.add(dtype, shape, c.heads_first, c.gap, c.offset, c.guard, is_written);
  };
  x_ = rows(c.dtype, false);
  fill_rows();
  if (c.transposed) {
    const int64_t padded = (total_ + 127) / 128 * 128;
    out_ = &tensors_.add(c.out_dtype, {c.batch, c.heads, c.head_dim, padded}, false, c.gap, c.offset, c.guard, true);
    out_->tensor.flags = TESSELLA_TRANSPOSED;
  } else {
    out_ = rows(c.out_dtype, true);
  }
  back_ = rows(c.dtype, true);
  if (c.scale != "0") {
    const int64_t blocks = blocks_of(total_, c.scale_block);
    const auto has = [&](char axis) { return c.scale.find(axis) != std::string::npos; };
    const bool has_batch = has('b') && !(c.packed && blocks != 1);
    scale_ = &tensors_.add(TESSELLA_F32, {has_batch ? c.batch : 1, has('n') ? blocks : 1, has('h') ? c.heads : 1},
                           false, c.gap, c.offset, c.guard, !c.given);
    if (c.given) fill_scales();
  }
  if (c.smooth) {
    mean_ = &tensors_.add(TESSELLA_F32, {c.batch, 1, c.heads, c.head_dim}, false, c.gap, c.offset, c.guard, true);
  }
  if (c.heads_mean > 0) {
    k_mean_ =
        &tensors_.add(TESSELLA_F32, {c.batch, 1, c.heads_mean, c.head_dim}, false, c.gap, c.offset, c.guard, false);
    const tessella_tensor& t = k_mean_->tensor;
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t head = 0; head < c.heads_mean; ++head) {
        auto* mean = static_cast<float*>(t.data) + element(t, b, 0, head);
        for (int64_t col = 0; col < c.head_dim; ++col) mean[col] = static_cast<float>(random.normal());
      }
    }
    const std::vector<int64_t> shape =
        c.packed ? std::vector<int64_t>{c.heads, total_} : std::vector<int64_t>{c.batch, c.heads, total_};
    shift_ = &tensors_.add(TESSELLA_F32, shape, false, c.gap, c.offset, c.guard, true);
  }
  if (c.rotary_dim > 0) angles();
  if (c.packed) cu_table_ = &tensors_.add_table(cu_, {c.batch + 1});
  if (c.rotary_dim > 0 && c.rotary_offsets) offset_table_ = &tensors_.add_table(offsets_, {c.batch});
  const auto pointer = [](Tensors::Tensor* made) { return made == nullptr ? nullptr : &made->tensor; };
  args_.x = pointer(x_);
  args_.out = pointer(out_);
  args_.scale = pointer(scale_);
  args_.mean = pointer(mean_);
  args_.k_mean = pointer(k_mean_);
  args_.lse_shift = pointer(shift_);
  args_.cu_seqlens = pointer(cu_table_);
  args_.rotary_cos = pointer(cos_);
  args_.rotary_sin = pointer(sin_);
  args_.rotary_offsets = pointer(offset_table_);
  options_.scale_block = c.scale_block;
  options_.scales_given = c.given ? 1 : 0;
  options_.hadamard = c.hadamard ? 1 : 0;
  options_.hadamard_seed = c.seed * 0x9E3779B97F4A7C15;
  options_.rotary_interleaved = c.interleaved && c.rotary_dim > 0 ? 1 : 0;
  options_.num_threads = c.num_threads;
  options_.kernel = c_.kernel.empty() ? nullptr : c_.kernel.c_str();
  back_args_.x = args_.out;
  back_args_.out = pointer(back_);
  back_args_.scale = args_.scale;
  back_args_.mean = args_.mean;
  back_args_.cu_seqlens = args_.cu_seqlens;
  back_options_.scale_block = options_.scale_block;
  back_options_.hadamard = options_.hadamard;
  back_options_.hadamard_seed = options_.hadamard_seed;
  back_options_.num_threads = c.num_threads;
}

void QuantizeCall::fill_rows() {
  Random random(c_.seed + 2000);
  const tessella_tensor& t = x_->tensor;
  for (int64_t b = 0; b < (c_.packed ? 1 : c_.batch); ++b) {
    for (int64_t row = 0; row < total_; ++row) {
      if (!exists(row)) continue;
      for (int64_t head = 0; head < c_.heads; ++head) {
        auto* at = static_cast<std::byte*>(t.data) + byte_at(t, b, row, head);
        const std::vector<double>& numbers = random.one_of(kExtremes);
        for (int64_t col = 0; col < c_.head_dim; ++col) {
          const double number = c_.extremes ? numbers[static_cast<size_t>(col) % numbers.size()]
                                            : random.normal() + (col % 7 == 3 ? 20 : 0);
          store(at + col * size_of(c_.dtype), c_.dtype, number);
        }
      }
    }
  }
}

void QuantizeCall::fill_scales() {
  Random random(c_.seed + 3000);
  const tessella_tensor& t = scale_->tensor;
  for (int64_t b = 0; b < t.shape[0]; ++b) {
    for (int64_t block = 0; block < t.shape[1]; ++block) {
      for (int64_t head = 0; head < t.shape[2]; ++head) {
        const double largest = c_.out_dtype == TESSELLA_F8E4M3FN ? 448 : 57344;
        static_cast<float*>(t.data)[scale_element(t, b, block, head)] =
            c_.extremes ? random.one_of(kExtremeScales) : static_cast<float>(std::exp(random.normal()) * 10 / largest);
      }
    }
  }
}

void QuantizeCall::angles() {
  Random random(c_.seed + 4000);
  const int32_t dtype = c_.f32_angles ? TESSELLA_F32 : c_.dtype;
  const int64_t positions = c_.seqlen + 10;
  for (Tensors::Tensor** made : {&cos_, &sin_}) {
    *made = &tensors_.add(dtype, {positions, c_.rotary_dim / 2}, false, c_.gap, c_.offset, c_.guard, false);
  }
  for (int64_t position = 0; position < positions; ++position) {
    for (int64_t j = 0; j < c_.rotary_dim / 2; ++j) {
      const double angle = 3 * random.normal();
      for (const auto& [made, value] : {std::pair{cos_, std::cos(angle)}, std::pair{sin_, std::sin(angle)}}) {
        const tessella_tensor& t = made->tensor;
        store(static_cast<std::byte*>(t.data) + (position * t.strides[0] + j) * size_of(dtype), dtype, value);
      }
    }
  }
}

std::vector<Tensors::Written> QuantizeCall::written(bool exact) const {
  std::vector<Tensors::Written> all;
  for (const Tensors::Tensor* made : {out_, scale_, mean_, shift_}) {
    if (made == nullptr || !made->is_written) continue;
    Tensors::Bytes bytes(made->memory.size(), false);
    tessella_tensor t = made->tensor;
    // Rows that no sequence has are the last ones.
    if (exact && c_.packed && (made == out_ || made == shift_)) t.shape[made == out_ ? 0 : 1] = cu_.back();
    mark(t, 0, 0, bytes, static_cast<std::byte*>(t.data) - made->memory.data());
    all.push_back({made, std::move(bytes)});
  }
  return all;
}

tessella_status QuantizeCall::run() {
  remember();
  tessella_quantize_args args = args_;
  tessella_status status = TESSELLA_OK;
  const auto call_it = [&](void* stream) {
    if (!c_.plan) return tessella_quantize(&args, &options_, stream);
    const tessella_call call{sizeof call, TESSELLA_QUANTIZE, &args, &options_};
    tessella_plan* plan = nullptr;
    tessella_status planned = tessella_plan_make(&call, &plan);
    if (planned == TESSELLA_OK) planned = tessella_plan_run(plan, &call, nullptr, stream);
    tessella_plan_free(plan);
    return planned;
  };
  if (!c_.kernel.starts_with("cuda.")) return call_it(nullptr);
  spoiled_ = tensors_.run_on_gpu(c_.guard, [&](GpuTwin& twin) {
    tessella_tensor twins[10];
    size_t count = 0;
    for (const tessella_tensor** arg : {&args.x, &args.out, &args.scale, &args.mean, &args.k_mean, &args.lse_shift,
                                        &args.cu_seqlens, &args.rotary_cos, &args.rotary_sin, &args.rotary_offsets}) {
      if (*arg == nullptr) continue;
      twins[count] = twin.twin(**arg, true);
      *arg = &twins[count++];
    }
    return status = call_it(twin.stream());
  });
  return status;
}

std::string QuantizeCall::check() const {
  if (!spoiled_.empty()) return spoiled_ + ", " + to_string(c_);
  if (std::string wrong = tensors_.spoiled(written(true)); !wrong.empty()) return wrong + ", " + to_string(c_);
  tessella_quantize_options options = options_;
  options.kernel = nullptr;
  const tessella_call call{sizeof call, TESSELLA_QUANTIZE, &args_, &options};
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  if (tessella_check(&call, 0, c_.seed, &report) != TESSELLA_OK) return tessella_last_error() + to_string(c_);
  const int64_t rows = c_.packed ? cu_.back() : c_.batch * total_;
  if (report.rows != rows * c_.heads) return "tessella_check has left rows out, " + to_string(c_);
  if (c_.transposed) {
    for (int64_t i = 0; i < c_.batch * c_.heads * c_.head_dim; ++i) {
      const tessella_tensor& t = out_->tensor;
      const auto* column = static_cast<const uint8_t*>(t.data) +
                           element(t, i / c_.head_dim / c_.heads, i / c_.head_dim % c_.heads, i % c_.head_dim);
      for (int64_t row = total_; row < t.shape[3]; ++row) {
        if (column[portable::key_place(row)] != 0) return "padding is not zero, " + to_string(c_);
      }
    }
  }
  if (report.passed != 0) return "";
  std::ostringstream line;
  line << report.worst_tensor << " at (" << report.worst_index[0] << ", " << report.worst_index[1] << ", "
       << report.worst_index[2] << ", " << report.worst_index[3] << ") is " << report.worst_got << ", expected "
       << report.worst_expected << " within " << report.tolerance << ", " << to_string(c_);
  return line.str();
}

tessella_status QuantizeCall::run_back(const std::string& name) {
  remember();
  back_kernel_ = name;
  back_options_.kernel = back_kernel_.empty() ? nullptr : back_kernel_.c_str();
  if (!name.starts_with("cuda.")) return tessella_dequantize(&back_args_, &back_options_, nullptr);
  tessella_status status = TESSELLA_OK;
  spoiled_ = tensors_.run_on_gpu(c_.guard, [&](GpuTwin& twin) {
    tessella_dequantize_args args = back_args_;
    tessella_tensor twins[5];
    size_t count = 0;
    for (const tessella_tensor** arg : {&args.x, &args.out, &args.scale, &args.mean, &args.cu_seqlens}) {
      if (*arg == nullptr) continue;
      twins[count] = twin.twin(**arg, true);
      *arg = &twins[count++];
    }
    return status = tessella_dequantize(&args, &back_options_, twin.stream());
  });
  return status;
}

std::string QuantizeCall::check_back() const {
  if (!spoiled_.empty()) return spoiled_ + ", " + to_string(c_);
  Tensors::Bytes bytes(back_->memory.size(), false);
  tessella_tensor t = back_->tensor;
  if (c_.packed) t.shape[0] = cu_.back();
  mark(t, 0, 0, bytes, static_cast<std::byte*>(t.data) - back_->memory.data());
  if (std::string wrong = tensors_.spoiled({{back_, std::move(bytes)}}); !wrong.empty()) {
    return wrong + ", " + to_string(c_);
  }
  tessella_dequantize_options options = back_options_;
  options.kernel = nullptr;
  const tessella_call call{sizeof call, TESSELLA_DEQUANTIZE, &back_args_, &options};
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  if (tessella_check(&call, 0, c_.seed, &report) != TESSELLA_OK) return tessella_last_error() + to_string(c_);
  if (report.passed != 0) return "";
  std::ostringstream line;
  line << "dequantized " << report.worst_tensor << " at (" << report.worst_index[0] << ", " << report.worst_index[1]
       << ", " << report.worst_index[2] << ", " << report.worst_index[3] << ") is " << report.worst_got << ", expected "
       << report.worst_expected << " within " << report.tolerance << ", " << to_string(c_);
  return line.str();
}

std::vector<std::byte> QuantizeCall::results() const {
  std::vector<std::byte> bytes;
  for (const auto& tensor : tensors_.all()) {
    if (tensor->is_written) {
      bytes.insert(bytes.end(), tensor->memory.data(), tensor->memory.data() + tensor->memory.size());
    }
  }
  return bytes;
}

}  // namespace tessella::tests
