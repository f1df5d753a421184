#include "cases/append_call.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <sstream>

#include "cases/random.hpp"
#include "portable/float16.hpp"

namespace tessella::tests {
namespace {

constexpr int32_t kFloats[] = {TESSELLA_F64, TESSELLA_F32, TESSELLA_BF16, TESSELLA_F16};
constexpr int32_t kQuantized[] = {TESSELLA_F8E4M3FN, TESSELLA_I8, TESSELLA_I4};

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
                                         {0.5, 1.5, 2.5, -0.5, -2.5, 7, 127, 448, 449, 1e9, -1e9},
                                         {1, 0x1p-9, 0x1p-10, 3 * 0x1p-10, 0x1p-11, 0x1p-6, 17}};
constexpr float kExtremeScales[] = {
    1, -0.5F, 0, 0x1p-90F, 0x1p-91F, 1e-40F, static_cast<float>(kNan), static_cast<float>(kInf)};

template <typename T>
T read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}
double load(const std::byte* at, int32_t dtype) {
  switch (dtype) {
    case TESSELLA_F64: return read<double>(at);
    case TESSELLA_F32: return read<float>(at);
    case TESSELLA_BF16: return portable::to_float(read<portable::BFloat16>(at));
    default: return portable::to_float(read<portable::Float16>(at));
  }
}
void store(std::byte* at, int32_t dtype, double value) {
  const auto put = [at](auto rounded) { std::memcpy(at, &rounded, sizeof rounded); };
  switch (dtype) {
    case TESSELLA_F64: return put(value);
    case TESSELLA_F32: return put(static_cast<float>(value));
    case TESSELLA_BF16: return put(portable::to_bfloat16(static_cast<float>(value)));
    default: return put(portable::to_float16(static_cast<float>(value)));
  }
}

// What is stored in a quantised cache, by definition and not by the library's arithmetic.
double largest(int32_t dtype) { return dtype == TESSELLA_F8E4M3FN ? 448 : dtype == TESSELLA_I8 ? 127 : 7; }
double number(int32_t dtype, uint32_t bits) {
  if (dtype != TESSELLA_F8E4M3FN) {
    const int32_t span = dtype == TESSELLA_I4 ? 16 : 256, value = static_cast<int32_t>(bits);
    return value < span / 2 ? value : value - span;
  }
  const double sign = (bits & 0x80) != 0 ? -1 : 1;
  const int exponent = static_cast<int>(bits >> 3 & 15), mantissa = static_cast<int>(bits & 7);
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<double>::quiet_NaN();
  return sign * (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
}
// The bits nearest to x, of two as near those that are even.
uint32_t nearest(int32_t dtype, double x) {
  if (std::isnan(x)) return dtype == TESSELLA_F8E4M3FN ? 0x7F : 0;
  const double most = largest(dtype), within = std::clamp(x, -most, most);
  if (dtype != TESSELLA_F8E4M3FN) {
    return static_cast<uint32_t>(std::lrint(within)) & (dtype == TESSELLA_I4 ? 0xFu : 0xFFu);
  }
  uint32_t best = 0;
  double least = std::abs(within);
  for (uint32_t bits = within < 0 ? 0x81 : 1; bits % 128 != 127; ++bits) {
    const double away = std::abs(number(dtype, bits) - within);
    if (away < least || (away == least && bits % 2 == 0)) best = bits, least = away;
  }
  return best;
}
// Element of a scale: (1), (heads), or (slots, rows or 1, heads).
int64_t scale_at_of(const tessella_tensor& t, int64_t slot, int64_t row, int64_t head) {
  int64_t at = 0;
  const int64_t indices[3] = {slot, row, head};
  for (int axis = 0; axis < t.ndim; ++axis) {
    if (t.shape[axis] != 1) at += indices[3 - t.ndim + axis] * t.strides[axis];
  }
  return at;
}
uint32_t bits_at(int32_t dtype, const std::byte* row, int64_t column) {
  if (dtype != TESSELLA_I4) return std::to_integer<uint32_t>(row[column]);
  return std::to_integer<uint32_t>(row[column / 2]) >> (column % 2 * 4) & 0xF;
}

// "" or what is wrong with a quantised row and its scale. row: the exact numbers, each right within its tolerance;
// where that is 0 they are floats, and every bit is known.
std::string wrong_in_quantized(int32_t dtype, const std::byte* stored, float scale, bool is_computed,
                               const std::vector<double>& row, const std::vector<double>& tolerance) {
  std::ostringstream wrong;
  const double most_stored = largest(dtype), unit = 0x1p-22;
  if (is_computed) {
    double most = 0, moved = 0;
    for (size_t c = 0; c < row.size(); ++c) {
      most = std::isfinite(row[c]) ? std::max(most, std::abs(row[c])) : std::numeric_limits<double>::infinity();
      moved = std::max(moved, tolerance[c]);
      if (std::isinf(most)) break;
    }
    const auto exact = static_cast<float>(most) / static_cast<float>(most_stored);
    const float expected = std::isinf(most) ? std::numeric_limits<float>::quiet_NaN() : exact < 0x1p-90F ? 1.0F : exact;
    const double away = moved == 0 ? 0 : (moved + unit * most) / most_stored;
    const bool is_right = std::isnan(expected) ? std::isnan(scale) : std::abs(double{scale} - expected) <= away;
    if (!is_right) wrong << ", scale " << scale << ", expected " << expected;
  }
  for (size_t c = 0; c < row.size() && wrong.tellp() == 0; ++c) {
    const uint32_t bits = bits_at(dtype, stored, static_cast<int64_t>(c));
    const bool is_zero = std::abs(scale) < 0x1p-90F;
    if (tolerance[c] == 0) {
      const float quotient = is_zero ? static_cast<float>(row[c]) * 0 : static_cast<float>(row[c]) / scale;
      const uint32_t expected = nearest(dtype, quotient);
      if (bits != expected) wrong << ", column " << c << ": got bits " << bits << ", expected " << expected;
      continue;
    }
    const double exact = is_zero ? 0 : std::clamp(row[c] / scale, -most_stored, most_stored);
    const double away = std::abs(number(dtype, bits) - exact);
    const double least = std::abs(number(dtype, nearest(dtype, exact)) - exact);
    if (!(away <= least + 2 * (tolerance[c] / std::abs(scale) + unit * std::abs(exact)))) {
      wrong << ", column " << c << ": got " << number(dtype, bits) << " of the scale " << scale << ", expected "
            << exact;
    }
  }
  return wrong.str();
}

}  // namespace

std::string to_string(const AppendCase& c) {
  std::ostringstream line;
  line << "kernel=" << c.kernel << " dtype=" << c.dtype << " cache_dtype=" << c.cache_dtype << " scale=" << c.scale
       << " extremes=" << c.extremes << " batch=" << c.batch << " seqlen_new=" << c.seqlen_new
       << " seqlen_kv=" << c.seqlen_kv << " heads_kv=" << c.heads_kv << " heads_q=" << c.heads_q
       << " head_dim_qk=" << c.head_dim_qk << " head_dim_v=" << c.head_dim_v << " k=" << c.k << " v=" << c.v
       << " page_size=" << c.page_size << " heads_first=" << c.heads_first << " slots=" << c.slots
       << " ragged=" << c.ragged << " packed=" << c.packed << " leftpad=" << c.leftpad << " rotary_dim=" << c.rotary_dim
       << " interleaved=" << c.interleaved << " f32_angles=" << c.f32_angles << " rotary_offsets=" << c.rotary_offsets
       << " in_place=" << c.in_place << " offset=" << c.offset << " gap=" << c.gap << " guard=" << c.guard
       << " plan=" << c.plan << " num_threads=" << c.num_threads << " seed=" << c.seed;
  return line.str();
}

AppendCase random_append(const std::string& kernel, const std::string& dtypes, uint64_t seed) {
  Random random(seed);
  AppendCase c{.kernel = kernel, .seed = seed};
  const char* names[] = {"f64", "f32", "bf16", "f16"};
  std::vector<int32_t> known;
  for (size_t i = 0; i < std::size(names); ++i) {
    if ((" " + dtypes + " ").find(std::string(" ") + names[i] + " ") != std::string::npos) known.push_back(kFloats[i]);
  }
  c.dtype = known[static_cast<size_t>(random.below(static_cast<int64_t>(known.size())))];
  c.batch = random.in(random.chance(0.05) ? 0 : 1, 5);
  c.seqlen_new = random.in(random.chance(0.05) ? 0 : 1, random.chance(0.2) ? 70 : 4);
  c.seqlen_kv = c.seqlen_new + random.in(0, 60);
  c.heads_kv = random.in(1, 4);
  const int64_t dims[] = {1, 2, 7, 8, 16, 24, 40, 64, 72, 128, 192, 256, 576};
  c.head_dim_qk = random.one_of(dims);
  c.head_dim_v = random.chance(0.6) ? c.head_dim_qk : random.one_of(dims);
  c.k = !random.chance(0.1);
  c.v = !c.k || !random.chance(0.1);
  const int64_t pages[] = {1, 3, 16, 64};
  if (random.chance(0.6)) c.page_size = random.one_of(pages);
  c.heads_first = random.chance(0.4);
  c.slots = c.page_size == 0 && random.chance(0.4);
  c.packed = random.chance(0.3);
  c.ragged = random.chance(0.4);
  c.leftpad = random.chance(0.3);
  if (c.head_dim_qk >= 2 && random.chance(0.8)) {
    c.heads_q = random.chance(0.5) ? c.heads_kv * random.in(1, 3) : 0;
    if (c.k || c.heads_q > 0) {
      c.rotary_dim = random.chance(0.5) ? c.head_dim_qk / 2 * 2 : 2 * random.in(1, c.head_dim_qk / 2);
      if (random.chance(0.5) && c.head_dim_qk % 32 == 0) c.rotary_dim = c.head_dim_qk / 2;
      c.interleaved = random.chance(0.5);
      c.f32_angles = random.chance(0.5);
      c.rotary_offsets = random.chance(0.4);
      c.in_place = c.heads_q > 0 && random.chance(0.4);
    }
  }
  c.offset = random.chance(0.4) ? static_cast<int32_t>(random.below(8)) : 0;
  c.gap = random.chance(0.3) ? random.in(1, 16) : 0;
  c.guard = random.chance(0.3);
  c.plan = random.chance(0.3);
  c.num_threads = static_cast<int32_t>(random.below(4));
  if (c.dtype != TESSELLA_F64 && random.chance(0.5)) {
    c.cache_dtype = random.one_of(kQuantized);
    const char* scales[] = {"", "1", "h", "s", "th", "th", "ph"};
    c.scale = random.one_of(scales);
    c.extremes = c.rotary_dim == 0 && random.chance(0.4);  // rotated, they overflow where doubles do not
    c.head_dim_qk += c.head_dim_qk % 2;
    c.head_dim_v += c.head_dim_v % 2;
  }
  return c;
}

AppendCall::AppendCall(const AppendCase& c) : c_(c) {
  Random random(c.seed + 1000);
  const auto batch = static_cast<size_t>(c.batch);
  // Lengths.
  cu_.assign(batch + 1, 0);
  std::vector<int64_t> own(batch, c.seqlen_new);  // rows of a sequence of k_new
  for (size_t b = 0; b < batch; ++b) {
    if (c.packed) own[b] = b == 0 ? c.seqlen_new : random.in(0, c.seqlen_new);
    cu_[b + 1] = cu_[b] + static_cast<int32_t>(own[b]);
  }
  const int64_t page_size = std::max<int64_t>(c.page_size, 1);
  pages_of_sequence_ = (c.seqlen_kv + page_size - 1) / page_size;
  const int64_t most = c.page_size == 0 ? c.seqlen_kv : pages_of_sequence_ * page_size;
  int64_t positions = 1;
  for (size_t b = 0; b < batch; ++b) {
    new_.push_back(static_cast<int32_t>(c.ragged ? random.in(0, own[b]) : own[b]));
    seqlens_.push_back(static_cast<int32_t>(random.in(new_[b], most)));
    leftpad_.push_back(static_cast<int32_t>(c.leftpad ? random.in(0, seqlens_[b] - new_[b]) : 0));
    const int64_t first = seqlens_[b] - new_[b] - leftpad_[b];
    offsets_.push_back(static_cast<int32_t>(c.rotary_offsets ? random.in(-first, 9) : 0));
    positions = std::max<int64_t>(positions, seqlens_[b] - leftpad_[b] + offsets_[b]);
  }
  // Caches.
  const int64_t num_slots = c.page_size > 0 ? c.batch * pages_of_sequence_ + 3 : c.slots ? c.batch + 2 : c.batch;
  std::vector<int32_t> shuffled(static_cast<size_t>(num_slots));
  std::iota(shuffled.begin(), shuffled.end(), 0);
  for (size_t i = shuffled.size(); i > 1; --i)
    std::swap(shuffled[i - 1], shuffled[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  if (c.page_size > 0) {
    for (size_t b = 0; b < batch; ++b) {
      for (int64_t page = 0; page < pages_of_sequence_; ++page) {
        const bool is_written = page * page_size < seqlens_[b] && (page + 1) * page_size > seqlens_[b] - new_[b];
        const int32_t hostile[] = {-1, 1 << 30, 0};
        pages_.push_back(is_written && new_[b] > 0
                             ? shuffled[b * static_cast<size_t>(pages_of_sequence_) + static_cast<size_t>(page)]
                             : random.one_of(hostile));
      }
    }
  }
  for (size_t b = 0; b < batch; ++b) slots_.push_back(c.slots ? shuffled[b] : static_cast<int32_t>(b));

  // Tensors.
  const int64_t rows_of_slot = c.page_size > 0 ? c.page_size : c.seqlen_kv;
  const auto rows = [&](int64_t heads, int64_t dim, bool is_written) -> Tensors::Tensor* {
    const std::vector<int64_t> shape = c.packed ? std::vector<int64_t>{cu_.back(), heads, dim}
                                                : std::vector<int64_t>{c.batch, c.seqlen_new, heads, dim};
    return &tensors_.add(c.dtype, shape, random.chance(0.2), c.gap, c.offset, c.guard, is_written);
  };
  const auto fill = [&](Tensors::Tensor& made, int64_t heads, int64_t dim) {
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t i = 0; i < new_[static_cast<size_t>(b)]; ++i) {
        for (int64_t head = 0; head < heads; ++head) {
          auto* row = static_cast<std::byte*>(made.tensor.data) +
                      (c.packed ? byte_at(made.tensor, 0, cu_[static_cast<size_t>(b)] + i, head)
                                : byte_at(made.tensor, b, i, head));
          const std::vector<double>& numbers = random.one_of(kExtremes);
          for (int64_t col = 0; col < dim; ++col) {
            const double number = c.extremes ? numbers[static_cast<size_t>(col) % numbers.size()] : random.normal();
            store(row + col * size_of(c.dtype), c.dtype, number);
          }
        }
      }
    }
  };
  const auto cache = [&](int64_t dim, tessella_tensor& view, tessella_tensor& scale,
                         const tessella_tensor*& scale_arg) {
    const int32_t dtype = cache_dtype();
    const bool is_i4 = dtype == TESSELLA_I4, is_behind = c.scale == "ph";
    const auto whole_bytes = [is_i4](int64_t elements) { return is_i4 ? elements / 2 * 2 : elements; };
    const int64_t scale_at = (bytes_of(dtype, dim) + 3) / 4 * 4;
    const int64_t columns = is_behind ? (scale_at + 4) * (is_i4 ? 2 : 1) : dim;
    Tensors::Tensor& made =
        tensors_.add(dtype, {num_slots, rows_of_slot, c.heads_kv, columns}, c.heads_first,
                     is_behind ? 0 : whole_bytes(c.gap), is_behind ? 0 : whole_bytes(c.offset), c.guard, true);
    view = made.tensor;
    view.shape[3] = dim;
    if (c.scale.empty()) return &made;
    scale_arg = &scale;
    if (is_behind) {
      scale = made.tensor;
      scale.data = static_cast<std::byte*>(made.tensor.data) + scale_at;
      scale.dtype = TESSELLA_F32;
      scale.ndim = 3;
      for (int axis = 0; axis < 3; ++axis) scale.strides[axis] = bytes_of(dtype, scale.strides[axis]) / 4;
      return &made;
    }
    std::vector<int64_t> shape = {num_slots, computes_scales() ? rows_of_slot : 1, c.heads_kv};
    if (c.scale == "1") shape = {1};
    if (c.scale == "h") shape = {c.heads_kv};
    scale = tensors_.add(TESSELLA_F32, shape, false, c.gap, c.offset, c.guard, computes_scales()).tensor;
    if (computes_scales()) return &made;
    for (int64_t slot = 0; slot < num_slots; ++slot) {
      for (int64_t head = 0; head < c.heads_kv; ++head) {
        const float usual = static_cast<float>(std::exp(random.normal()) * 3 / largest(dtype));
        static_cast<float*>(scale.data)[scale_at_of(scale, slot, 0, head)] =
            c.extremes ? random.one_of(kExtremeScales) : usual;
      }
    }
    return &made;
  };
  if (c.k) {
    k_new_ = rows(c.heads_kv, c.head_dim_qk, false);
    fill(*k_new_, c.heads_kv, c.head_dim_qk);
    k_ = cache(c.head_dim_qk, k_view_, k_scale_, args_.k_scale);
  }
  if (c.v) {
    v_new_ = rows(c.heads_kv, c.head_dim_v, false);
    fill(*v_new_, c.heads_kv, c.head_dim_v);
    v_ = cache(c.head_dim_v, v_view_, v_scale_, args_.v_scale);
  }
  if (c.heads_q > 0) {
    q_ = rows(c.heads_q, c.head_dim_qk, c.in_place);
    fill(*q_, c.heads_q, c.head_dim_qk);
    q_out_ = c.in_place ? q_ : rows(c.heads_q, c.head_dim_qk, true);
  }
  if (c.rotary_dim > 0) {
    const int32_t dtype = c.f32_angles ? TESSELLA_F32 : c.dtype;
    for (Tensors::Tensor** made : {&cos_, &sin_}) {
      *made = &tensors_.add(dtype, {positions, c.rotary_dim / 2}, false, c.gap, c.offset, c.guard, false);
    }
    for (int64_t position = 0; position < positions; ++position) {
      for (int64_t j = 0; j < c.rotary_dim / 2; ++j) {
        const double angle = 3 * random.normal();
        for (const auto& [made, value] : {std::pair{cos_, std::cos(angle)}, std::pair{sin_, std::sin(angle)}}) {
          const tessella_tensor& t = made->tensor;
          store(static_cast<std::byte*>(t.data) + (position * t.strides[0] + j) * size_of(dtype), dtype, value);
        }
      }
    }
  }
  const auto table = [&](const char* name, const std::vector<int32_t>& values, const tessella_tensor*& arg,
                         std::vector<int64_t> shape = {}) {
    if (shape.empty()) shape = {static_cast<int64_t>(values.size())};
    tables_.emplace_back(name, &tensors_.add_table(values, shape));
    arg = &tables_.back().second->tensor;
  };
  table("seqlens_kv", seqlens_, args_.seqlens_kv);
  if (c.ragged) table("seqlens_new", new_, args_.seqlens_new);
  if (c.packed) table("cu_seqlens_new", cu_, args_.cu_seqlens_new);
  if (c.page_size > 0) table("page_table", pages_, args_.page_table, {c.batch, pages_of_sequence_});
  if (c.slots) table("cache_batch_idx", slots_, args_.cache_batch_idx);
  if (c.leftpad) table("leftpad_kv", leftpad_, args_.leftpad_kv);
  if (c.rotary_dim > 0 && c.rotary_offsets) table("rotary_offsets", offsets_, args_.rotary_offsets);
  const auto pointer = [](Tensors::Tensor* made) { return made == nullptr ? nullptr : &made->tensor; };
  args_.k_new = pointer(k_new_);
  args_.v_new = pointer(v_new_);
  args_.k = k_ == nullptr ? nullptr : &k_view_;
  args_.v = v_ == nullptr ? nullptr : &v_view_;
  args_.q = pointer(q_);
  args_.q_out = pointer(q_out_);
  args_.rotary_cos = pointer(cos_);
  args_.rotary_sin = pointer(sin_);
  options_.rotary_interleaved = c.interleaved && c.rotary_dim > 0 ? 1 : 0;
  options_.scale_block = computes_scales() ? 1 : 0;
  options_.num_threads = c.num_threads;
  options_.kernel = c_.kernel.empty() ? nullptr : c_.kernel.c_str();
}

tessella_tensor* AppendCall::table(const std::string& name) {
  for (auto& [known, made] : tables_) {
    if (known == name) return &made->tensor;
  }
  return nullptr;
}

tessella_status AppendCall::run() {
  remember();
  tessella_append_args args = args_;
  tessella_status status = TESSELLA_OK;
  const auto call_it = [&](void* stream) {
    if (!c_.plan) return tessella_append(&args, &options_, stream);
    const tessella_call call{sizeof call, TESSELLA_APPEND, &args, &options_};
    tessella_plan* plan = nullptr;
    tessella_status planned = tessella_plan_make(&call, &plan);
    if (planned == TESSELLA_OK) planned = tessella_plan_run(plan, &call, nullptr, stream);
    tessella_plan_free(plan);
    return planned;
  };
  if (!c_.kernel.starts_with("cuda.")) return call_it(nullptr);
  spoiled_ = on_gpu([&](const tessella_append_args& twins, void* stream) {
    args = twins;
    return status = call_it(stream);
  });
  return status;
}

std::string AppendCall::on_gpu(const std::function<tessella_status(const tessella_append_args&, void*)>& fn) const {
  return tensors_.run_on_gpu(c_.guard, [&](GpuTwin& twin) {
    tessella_append_args args = args_;
    tessella_tensor twins[17];
    size_t count = 0;
    for (const tessella_tensor** arg :
         {&args.k_new, &args.v_new, &args.k, &args.v, &args.seqlens_kv, &args.seqlens_new, &args.cu_seqlens_new,
          &args.page_table, &args.cache_batch_idx, &args.leftpad_kv, &args.rotary_cos, &args.rotary_sin,
          &args.rotary_offsets, &args.q, &args.q_out, &args.k_scale, &args.v_scale}) {
      if (*arg == nullptr) continue;
      twins[count] = twin.twin(**arg, true);
      *arg = &twins[count++];
    }
    return fn(args, twin.stream());
  });
}

tessella_check_report AppendCall::check_on_gpu() const {
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  on_gpu([&](const tessella_append_args& args, void*) {
    const tessella_call call{sizeof call, TESSELLA_APPEND, &args, &options_};
    tessella_check(&call, 0, c_.seed, &report);
    return TESSELLA_INTERNAL;  // nothing comes back
  });
  return report;
}

std::string AppendCall::check() {
  if (!spoiled_.empty()) return spoiled_ + ", " + to_string(c_);
  std::vector<Tensors::Written> may;
  std::string wrong;
  const int64_t size = size_of(c_.dtype);
  const double unit = c_.dtype == TESSELLA_F64    ? 0x1p-52
                      : c_.dtype == TESSELLA_F32  ? 0x1p-23
                      : c_.dtype == TESSELLA_BF16 ? 0x1p-8
                                                  : 0x1p-11;
  const auto rows = [&](const char* name, const Tensors::Tensor* from, const Tensors::Tensor* into, bool is_cache,
                        bool is_rotated, int64_t heads, int64_t dim, const tessella_tensor* scale = nullptr) {
    if (from == nullptr) return;
    Tensors::Bytes written(into->memory.size(), false);
    const Tensors::Tensor* scales = nullptr;  // computed in memory of their own
    for (const auto& one : tensors_.all()) {
      if (c_.scale == "th" && scale != nullptr && one->tensor.data == scale->data) scales = one.get();
    }
    Tensors::Bytes written_scales(scales == nullptr ? 0 : scales->memory.size(), false);
    const auto at_of = [](const Tensors::Tensor* t) {  // bytes of the memory before the tensor
      return static_cast<std::byte*>(t->tensor.data) - t->memory.data();
    };
    for (int64_t b = 0; b < c_.batch; ++b) {
      const auto of = static_cast<size_t>(b);
      for (int64_t i = 0; i < new_[of]; ++i) {
        const int64_t row = seqlens_[of] - new_[of] + i, position = row - leftpad_[of] + offsets_[of];
        for (int64_t head = 0; head < heads; ++head) {
          const auto own = [&](const Tensors::Tensor* t) {
            return at_of(t) + (c_.packed ? byte_at(t->tensor, 0, cu_[of] + i, head) : byte_at(t->tensor, b, i, head));
          };
          int64_t offset = own(into);
          if (is_cache && c_.page_size > 0) {
            const int32_t page =
                pages_[of * static_cast<size_t>(pages_of_sequence_) + static_cast<size_t>(row / c_.page_size)];
            offset = at_of(into) + byte_at(into->tensor, page, row % c_.page_size, head);
          } else if (is_cache) {
            offset = at_of(into) + byte_at(into->tensor, slots_[of], row, head);
          }
          const std::byte* source = from->before.data() + own(from);
          const std::byte* result = into->memory.data() + offset;
          const bool is_stored = is_cache && is_quantized();
          std::fill_n(written.begin() + offset, is_stored ? bytes_of(cache_dtype(), dim) : dim * size, true);
          std::vector<double> exact, within;  // of a row that is quantised
          const int64_t turned = is_rotated ? c_.rotary_dim : 0, half = turned / 2;
          for (int64_t col = 0; col < dim && wrong.empty(); ++col) {
            const bool is_same =
                !is_stored && std::memcmp(source + col * size, result + col * size, static_cast<size_t>(size)) == 0;
            double expected = load(source + col * size, c_.dtype), tolerance = 0;
            if (col < turned) {
              const int64_t j = c_.interleaved ? col / 2 : col % half;
              const bool is_first = c_.interleaved ? col % 2 == 0 : col < half;
              const int64_t other = c_.interleaved ? col ^ 1 : is_first ? col + half : col - half;
              const auto angle = [&](const Tensors::Tensor* t) {
                return load(static_cast<const std::byte*>(t->tensor.data) +
                                (position * t->tensor.strides[0] + j) * size_of(t->tensor.dtype),
                            t->tensor.dtype);
              };
              const double beside = load(source + other * size, c_.dtype);
              tolerance = unit * (std::abs(expected) + std::abs(beside));
              expected = expected * angle(cos_) + (is_first ? -1 : 1) * beside * angle(sin_);
            }
            if (is_stored) {
              exact.push_back(expected);
              within.push_back(std::isfinite(expected) ? tolerance / (0x1p23 * unit) : 0);
              continue;
            }
            const double got = load(result + col * size, c_.dtype);
            const bool is_right = col < turned ? std::abs(got - expected) <= tolerance : is_same;
            if (is_right) continue;
            std::ostringstream line;
            line << name << " of sequence " << b << ", new row " << i << ", head " << head << ", column " << col
                 << ": got " << got << ", expected " << expected;
            wrong = line.str();
          }
          if (!is_stored) continue;
          float factor = 1;
          if (scale != nullptr) {
            const bool is_paged = c_.page_size > 0;
            const int64_t slot =
                is_paged
                    ? pages_[of * static_cast<size_t>(pages_of_sequence_) + static_cast<size_t>(row / c_.page_size)]
                    : slots_[of];
            const auto* given = static_cast<const float*>(scale->data) +
                                scale_at_of(*scale, slot, is_paged ? row % c_.page_size : row, head);
            std::memcpy(&factor, given, sizeof factor);
            const auto* bytes = reinterpret_cast<const std::byte*>(given);
            if (c_.scale == "ph") std::fill_n(written.begin() + (bytes - into->memory.data()), 4, true);
            if (scales != nullptr) std::fill_n(written_scales.begin() + (bytes - scales->memory.data()), 4, true);
          }
          if (!wrong.empty()) continue;
          wrong = wrong_in_quantized(cache_dtype(), result, factor, computes_scales(), exact, within);
          if (!wrong.empty()) {
            std::ostringstream line;
            line << name << " of sequence " << b << ", new row " << i << ", head " << head << wrong;
            wrong = line.str();
          }
        }
      }
    }
    may.push_back({into, std::move(written)});
    if (scales != nullptr) may.push_back({scales, std::move(written_scales)});
  };
  rows("k", k_new_, k_, true, true, c_.heads_kv, c_.head_dim_qk, args_.k_scale);
  rows("v", v_new_, v_, true, false, c_.heads_kv, c_.head_dim_v, args_.v_scale);
  rows("q_out", q_, q_out_, false, true, c_.heads_q, c_.head_dim_qk);
  if (wrong.empty()) wrong = tensors_.spoiled(may);
  if (!wrong.empty()) return wrong + ", " + to_string(c_);
  if (c_.in_place && c_.heads_q > 0) return "";
  tessella_append_options options = options_;
  options.kernel = nullptr;
  const tessella_call call{sizeof call, TESSELLA_APPEND, &args_, &options};
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  if (tessella_check(&call, 0, c_.seed, &report) != TESSELLA_OK) return tessella_last_error();
  return report.passed != 0 ? "" : "tessella_check did not pass, " + to_string(c_);
}

std::string AppendCall::check_bounds() const { return tensors_.spoiled(tensors_.all_elements()); }

std::vector<std::byte> AppendCall::results() const {
  std::vector<std::byte> bytes;
  for (const auto& tensor : tensors_.all()) {
    if (tensor->is_written) {
      bytes.insert(bytes.end(), tensor->memory.data(), tensor->memory.data() + tensor->memory.size());
    }
  }
  return bytes;
}

}  // namespace tessella::tests
