#include "cases/append_call.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <sstream>

#include "cases/cache_scales.hpp"
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

void store(std::byte* at, int32_t dtype, double value) {
  const auto put = [at](auto rounded) { std::memcpy(at, &rounded, sizeof rounded); };
  switch (dtype) {
    case TESSELLA_F64: return put(value);
    case TESSELLA_F32: return put(static_cast<float>(value));
    case TESSELLA_BF16: return put(portable::to_bfloat16(static_cast<float>(value)));
    default: return put(portable::to_float16(static_cast<float>(value)));
  }
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
    const char* scales[] = {"1", "h", "s", "th", "th", "ph"};
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
