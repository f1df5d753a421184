#include "call.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "portable/band.hpp"
#include "portable/float16.hpp"

namespace tessella::tests {
namespace {

constexpr int kPoison = 0xFF;  // every dtype reads it as NaN

int32_t dtype_of(const std::string& name) {
  if (name == "f64") return TESSELLA_F64;
  if (name == "f32") return TESSELLA_F32;
  if (name == "bf16") return TESSELLA_BF16;
  if (name == "f16") return TESSELLA_F16;
  throw std::invalid_argument("no dtype of a case: " + name);
}

int64_t size_of(int32_t dtype) {
  switch (dtype) {
    case TESSELLA_F64:
    case TESSELLA_I64: return 8;
    case TESSELLA_F32:
    case TESSELLA_I32: return 4;
    case TESSELLA_BOOL: return 1;
    default: return 2;
  }
}

template <typename T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

void set(const tessella_tensor& tensor, int64_t element, double value) {
  std::byte* at = static_cast<std::byte*>(tensor.data) + element * size_of(tensor.dtype);
  switch (tensor.dtype) {
    case TESSELLA_F64: return put(at, value);
    case TESSELLA_F32: return put(at, static_cast<float>(value));
    case TESSELLA_BF16: return put(at, portable::to_bfloat16(static_cast<float>(value)));
    case TESSELLA_F16: return put(at, portable::to_float16(static_cast<float>(value)));
    case TESSELLA_BOOL: return put(at, static_cast<uint8_t>(value != 0));
    default: return put(at, static_cast<int32_t>(value));
  }
}

// Element (b, row, head, 0) of an attention tensor; packed ones have no batch axis.
int64_t element(const tessella_tensor& t, int64_t b, int64_t row, int64_t head) {
  return t.ndim == 4 ? b * t.strides[0] + row * t.strides[1] + head * t.strides[2]
                     : row * t.strides[0] + head * t.strides[1];
}

// Element of an lse tensor.
int64_t lse_element(const tessella_tensor& t, int64_t b, int64_t row, int64_t head) {
  return t.ndim == 3 ? b * t.strides[0] + head * t.strides[1] + row * t.strides[2]
                     : head * t.strides[0] + row * t.strides[1];
}

// Elements from the first to one past the last.
int64_t extent(const tessella_tensor& t) {
  int64_t last = 0;
  for (int axis = 0; axis < t.ndim; ++axis) {
    if (t.shape[axis] == 0) return 0;
    last += (t.shape[axis] - 1) * t.strides[axis];
  }
  return last + 1;
}

bool runs_on_gpu(const Case& c) {
  if (c.kernel.empty()) return c.device == "cuda";
  for (int32_t idx = 0; idx < tessella_kernel_count(); ++idx) {
    tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
    if (tessella_kernel_describe(idx, &info) == TESSELLA_OK && c.kernel == info.name) {
      return std::string_view(info.device) == "cuda";
    }
  }
  return false;
}

}  // namespace

Call::Call(const Case& c) : c_(c), is_on_gpu_(runs_on_gpu(c)) {
  Random random(c.seed);
  make_lengths(random);
  make_operands(random);
  make_masks(random);
  make_scores(random);
  make_options();
}

Placement Call::placement() const { return c_.guard ? Placement::guarded : Placement::aligned; }

int64_t Call::rows_q(int64_t b) const {
  return c_.packed_q ? lengths_.cu_q[static_cast<size_t>(b) + 1] - lengths_.cu_q[static_cast<size_t>(b)] : c_.seqlen_q;
}
int64_t Call::slots_kv(int64_t b) const {
  return c_.packed_kv ? lengths_.cu_kv[static_cast<size_t>(b) + 1] - lengths_.cu_kv[static_cast<size_t>(b)]
                      : c_.seqlen_kv;
}
int64_t Call::first_q(int64_t b) const { return c_.packed_q ? lengths_.cu_q[static_cast<size_t>(b)] : 0; }
int64_t Call::first_kv(int64_t b) const { return c_.packed_kv ? lengths_.cu_kv[static_cast<size_t>(b)] : 0; }
int64_t Call::key_begin(int64_t b) const { return c_.leftpad_kv ? lengths_.leftpad[static_cast<size_t>(b)] : 0; }
int64_t Call::key_end(int64_t b) const {
  return c_.seqlens_kv ? lengths_.used_kv[static_cast<size_t>(b)] : slots_kv(b);
}

bool Call::hidden_from_all(int64_t b, int64_t slot) const {
  if (slot < key_begin(b) || slot >= key_end(b)) return true;
  if (!c_.masked_nan || c_.prefix) return false;
  const int64_t queries = c_.seqlens_q ? lengths_.used_q[static_cast<size_t>(b)] : rows_q(b);
  const portable::Band band{.seqlen_q = queries,
                            .seqlen_kv = key_end(b) - key_begin(b),
                            .window_left = c_.window_left,
                            .window_right = c_.window_right,
                            .chunk = c_.chunk,
                            .keep_first = c_.keep_first,
                            .causal_top_left = c_.causal_top_left};
  for (int64_t i = 0; i < queries; ++i) {
    if (band.visible(i, slot - key_begin(b))) return false;
  }
  return true;
}

void Call::make_lengths(Random& random) {
  const auto batch = static_cast<size_t>(c_.batch);
  const auto cumulative = [&](std::vector<int32_t>& cu, int64_t longest) {
    cu.assign(batch + 1, 0);
    const int64_t full = c_.batch > 0 ? random.below(c_.batch) : 0;
    for (size_t b = 0; b < batch; ++b) {
      cu[b + 1] = cu[b] + static_cast<int32_t>(static_cast<int64_t>(b) == full ? longest : random.in(0, longest));
    }
    const int64_t rest = random.in(0, 2);  // rows of no sequence
    // No bound says "none" to a GPU: a score tensor without rows then fits a tensor without rows only.
    return cu.back() + (is_on_gpu_ && longest == 0 ? 0 : rest);
  };
  total_q_ = c_.packed_q ? cumulative(lengths_.cu_q, c_.seqlen_q) : c_.seqlen_q;
  total_kv_ = c_.packed_kv ? cumulative(lengths_.cu_kv, c_.seqlen_kv) : c_.seqlen_kv;
  for (int64_t b = 0; b < c_.batch; ++b) {
    lengths_.used_q.push_back(static_cast<int32_t>(random.in(0, rows_q(b))));
    lengths_.used_kv.push_back(static_cast<int32_t>(random.in(0, slots_kv(b))));
    const int64_t end = c_.seqlens_kv ? lengths_.used_kv.back() : slots_kv(b);
    lengths_.leftpad.push_back(static_cast<int32_t>(random.chance(0.1) ? end : random.in(0, end) / 2));
  }
  if (c_.packed_q) args_.cu_seqlens_q = table(lengths_.cu_q);
  if (c_.packed_kv) args_.cu_seqlens_kv = table(lengths_.cu_kv);
  if (c_.seqlens_q) args_.seqlens_q = table(lengths_.used_q);
  if (c_.seqlens_kv) args_.seqlens_kv = table(lengths_.used_kv);
  if (c_.leftpad_kv) args_.leftpad_kv = table(lengths_.leftpad);
}

const tessella_tensor* Call::own(const tessella_tensor& tensor) {
  return tensors_.emplace_back(std::make_unique<tessella_tensor>(tensor)).get();
}

const tessella_tensor* Call::table(std::vector<int32_t>& values) {
  return own(TESSELLA_TENSOR1(values.data(), TESSELLA_I32, static_cast<int64_t>(values.size())));
}

void Call::make_view(View& view, int32_t dtype, int64_t rows, int64_t heads, int64_t dim, bool packed) {
  int64_t head = dim;
  int64_t row = heads * dim;
  int64_t batch = rows * row;
  if (c_.layout == "bhsd") {
    row = dim;
    head = rows * dim;
    batch = heads * head;
  } else if (c_.layout == "sliced" || c_.layout == "qkv") {
    head = dim + 3;
    row = heads * head + 5;
    batch = rows * row + 7;
  } else if (c_.layout == "gaps") {
    head = dim + 16;
    row = heads * head + 16;
    batch = rows * row + 16;
  } else if (c_.layout == "huge") {
    row += int64_t{1} << 28;
    batch = rows * row;
  }
  tessella_tensor& t = view.tensor;
  t.dtype = dtype;
  if (packed) {
    t.ndim = 3;
    const int64_t shape[] = {rows, heads, dim}, strides[] = {row, head, 1};
    std::copy_n(shape, 3, t.shape);
    std::copy_n(strides, 3, t.strides);
  } else {
    t.ndim = 4;
    const int64_t shape[] = {c_.batch, rows, heads, dim}, strides[] = {batch, row, head, 1};
    std::copy_n(shape, 4, t.shape);
    std::copy_n(strides, 4, t.strides);
  }
  const bool huge = c_.layout == "huge";
  view.memory =
      Memory(static_cast<size_t>((c_.shift + extent(t)) * size_of(dtype)), huge ? Placement::reserved : placement());
  if (!huge) std::memset(view.memory.data(), kPoison, view.memory.size());
  t.data = view.memory.data() + c_.shift * size_of(dtype);
}

void Call::make_operands(Random& random) {
  const int32_t dtype = dtype_of(c_.dtype);
  const bool one_buffer =
      c_.layout == "qkv" && c_.packed_q == c_.packed_kv && total_q_ == total_kv_ && c_.head_dim_qk == c_.head_dim_v;
  if (one_buffer) {
    // (rows, heads_q + 2 heads_kv, head_dim): k and v are views of q's memory.
    make_view(q_, dtype, total_q_, c_.heads_q + 2 * c_.heads_kv, c_.head_dim_qk, c_.packed_q);
    k_.tensor = v_.tensor = q_.tensor;
    const int axis = q_.tensor.ndim - 2;
    const int64_t head_bytes = q_.tensor.strides[axis] * size_of(dtype);
    k_.tensor.data = static_cast<std::byte*>(q_.tensor.data) + c_.heads_q * head_bytes;
    v_.tensor.data = static_cast<std::byte*>(k_.tensor.data) + c_.heads_kv * head_bytes;
    q_.tensor.shape[axis] = c_.heads_q;
    k_.tensor.shape[axis] = v_.tensor.shape[axis] = c_.heads_kv;
  } else {
    make_view(q_, dtype, total_q_, c_.heads_q, c_.head_dim_qk, c_.packed_q);
    make_view(k_, dtype, total_kv_, c_.heads_kv, c_.head_dim_qk, c_.packed_kv);
    make_view(v_, dtype, total_kv_, c_.heads_kv, c_.head_dim_v, c_.packed_kv);
  }
  make_view(out_, c_.out_dtype.empty() ? dtype : dtype_of(c_.out_dtype), total_q_, c_.heads_q, c_.head_dim_v,
            c_.packed_q);
  const auto fill = [&](const tessella_tensor& t, int64_t b, int64_t row, int64_t heads, int64_t dim, double spread) {
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t c = 0; c < dim; ++c) set(t, element(t, b, row, head) + c, spread * random.normal());
    }
  };
  for (int64_t b = 0; b < c_.batch; ++b) {
    const int64_t queries = c_.seqlens_q ? lengths_.used_q[static_cast<size_t>(b)] : rows_q(b);
    for (int64_t i = 0; i < queries; ++i) fill(q_.tensor, b, first_q(b) + i, c_.heads_q, c_.head_dim_qk, c_.spread);
    for (int64_t slot = 0; slot < slots_kv(b); ++slot) {
      if (hidden_from_all(b, slot)) continue;
      fill(k_.tensor, b, first_kv(b) + slot, c_.heads_kv, c_.head_dim_qk, 1);
      fill(v_.tensor, b, first_kv(b) + slot, c_.heads_kv, c_.head_dim_v, 1);
    }
  }
  args_.q = &q_.tensor;
  args_.k = &k_.tensor;
  args_.v = &v_.tensor;
  args_.out = &out_.tensor;
  if (!c_.lse) return;

  tessella_tensor& lse = lse_.tensor;
  lse.dtype = c_.dtype == "f64" && c_.seed % 2 == 0 ? TESSELLA_F64 : TESSELLA_F32;
  const int64_t step = c_.layout == "sliced" ? 2 : 1;
  const int64_t head = total_q_ * step;
  if (c_.packed_q) {
    lse.ndim = 2;
    const int64_t shape[] = {c_.heads_q, total_q_}, strides[] = {head, step};
    std::copy_n(shape, 2, lse.shape);
    std::copy_n(strides, 2, lse.strides);
  } else {
    lse.ndim = 3;
    const int64_t shape[] = {c_.batch, c_.heads_q, total_q_}, strides[] = {c_.heads_q * head, head, step};
    std::copy_n(shape, 3, lse.shape);
    std::copy_n(strides, 3, lse.strides);
  }
  lse_.memory = Memory(static_cast<size_t>(extent(lse) * size_of(lse.dtype)), placement());
  std::memset(lse_.memory.data(), kPoison, lse_.memory.size());
  lse.data = lse_.memory.data();
  args_.lse = &lse;
}

template <typename Value>
const tessella_tensor* Call::score_tensor(int32_t dtype, const std::string& axes, int64_t queries, int64_t keys,
                                          Value value) {
  const int64_t full[] = {c_.batch, c_.heads_q, queries, keys};
  tessella_tensor t{};
  t.dtype = dtype;
  t.ndim = 4;
  for (int axis = 0; axis < 4; ++axis) t.shape[axis] = axes.find("bhqk"[axis]) == std::string::npos ? 1 : full[axis];
  for (int64_t axis = 3, stride = 1; axis >= 0; --axis) {
    t.strides[axis] = stride;
    stride *= t.shape[axis];
  }
  memories_.emplace_back(static_cast<size_t>(extent(t) * size_of(dtype)), placement());
  t.data = memories_.back().data();
  int64_t at = 0;
  for (int64_t b = 0; b < t.shape[0]; ++b) {
    for (int64_t h = 0; h < t.shape[1]; ++h) {
      for (int64_t i = 0; i < t.shape[2]; ++i) {
        for (int64_t j = 0; j < t.shape[3]; ++j) set(t, at++, value(b, i, j));
      }
    }
  }
  return own(t);
}

void Call::make_masks(Random& random) {
  if (!c_.dense.empty()) {
    args_.dense_mask = score_tensor(TESSELLA_BOOL, c_.dense, c_.seqlen_q, c_.seqlen_kv,
                                    [&](int64_t, int64_t i, int64_t) { return i % 11 == 5 ? 0 : random.chance(0.7); });
  }
  if (!c_.block_map.empty()) {
    const auto tiles = [](int64_t size, int64_t tile) { return (size + tile - 1) / tile; };
    args_.block_map =
        score_tensor(TESSELLA_BOOL, c_.block_map, tiles(c_.seqlen_q, c_.block_q), tiles(c_.seqlen_kv, c_.block_kv),
                     [&](int64_t, int64_t, int64_t) { return random.chance(0.6); });
  }
  if (c_.document) {
    const auto ids = [&](std::vector<int32_t>& values, bool packed, int64_t rows) {
      values.resize(static_cast<size_t>(packed ? rows : c_.batch * rows));
      for (int32_t& value : values) value = static_cast<int32_t>(random.below(3));
      if (c_.seed % 3 != 0) std::sort(values.begin(), values.end());
      return packed ? own(TESSELLA_TENSOR1(values.data(), TESSELLA_I32, rows))
                    : own(TESSELLA_TENSOR2(values.data(), TESSELLA_I32, c_.batch, rows));
    };
    args_.document_ids_q = ids(documents_q_, c_.packed_q, total_q_);
    args_.document_ids_kv = ids(documents_kv_, c_.packed_kv, total_kv_);
  }
  if (c_.prefix) {
    std::vector<int32_t>& lengths = tables_.emplace_back();
    for (int64_t b = 0; b < c_.batch; ++b) lengths.push_back(static_cast<int32_t>(random.in(0, slots_kv(b) + 2)));
    args_.prefix_lengths = table(lengths);
  }
}

void Call::make_scores(Random& random) {
  if (!c_.bias.empty()) {
    // Where the tensor tells sequences apart, slots without a key hold NaN.
    const bool own_slots = c_.bias.find('b') != std::string::npos && c_.bias.find('k') != std::string::npos;
    args_.bias = score_tensor(c_.bias_f32 ? int32_t{TESSELLA_F32} : dtype_of(c_.dtype), c_.bias, c_.seqlen_q,
                              c_.seqlen_kv, [&](int64_t b, int64_t, int64_t j) {
                                if (own_slots && (j < key_begin(b) || j >= key_end(b))) return std::nan("");
                                if (random.chance(0.03)) return -std::numeric_limits<double>::infinity();
                                return random.normal();
                              });
  }
  const auto floats = [&](int64_t count, double spread) {
    memories_.emplace_back(static_cast<size_t>(count) * sizeof(float), placement());
    const tessella_tensor t = TESSELLA_TENSOR1(memories_.back().data(), TESSELLA_F32, count);
    for (int64_t at = 0; at < count; ++at) set(t, at, spread * random.normal());
    return t;
  };
  if (!c_.alibi.empty()) {
    tessella_tensor t = floats(c_.alibi == "bh" ? c_.batch * c_.heads_q : c_.heads_q, 0.2);
    if (c_.alibi == "bh") t = TESSELLA_TENSOR2(t.data, TESSELLA_F32, c_.batch, c_.heads_q);
    args_.alibi_slopes = own(t);
  }
  if (c_.sink) args_.sink = own(floats(c_.heads_q, 2));
  if (c_.memory_seed) {
    for (const auto& [argument, value] : {std::pair{&args_.seed, int64_t{-3}}, std::pair{&args_.offset, int64_t{5}}}) {
      memories_.emplace_back(sizeof(int64_t), placement());
      put(memories_.back().data(), value);
      *argument = own(TESSELLA_TENSOR1(memories_.back().data(), TESSELLA_I64, 1));
    }
  }
}

void Call::make_options() {
  options_.kernel = c_.kernel.empty() ? nullptr : c_.kernel.c_str();
  if (c_.scale != 0) options_.scale = static_cast<float>(c_.scale);
  options_.softcap = static_cast<float>(c_.softcap);
  options_.dropout = static_cast<float>(c_.dropout);
  options_.seed = c_.seed * 0x9E3779B97F4A7C15;
  options_.offset = c_.seed << 20;
  options_.causal_top_left = c_.causal_top_left ? 1 : 0;
  options_.window_left = c_.window_left;
  options_.window_right = c_.window_right;
  options_.chunk = c_.chunk;
  options_.keep_first = c_.keep_first;
  options_.block_map_q = c_.block_q;
  options_.block_map_kv = c_.block_kv;
  options_.num_threads = static_cast<int32_t>(c_.threads);
  // The door cannot read lengths on a GPU: without a bound, score tensors must reach as far as the packed rows.
  const bool has_score_tensors = !c_.bias.empty() || !c_.dense.empty() || !c_.block_map.empty();
  if (!is_on_gpu_ || (!has_score_tensors && c_.seed % 3 == 0)) return;
  if (c_.packed_q) options_.max_seqlen_q = c_.seqlen_q;
  if (c_.packed_kv) options_.max_seqlen_kv = c_.seqlen_kv;
}

std::vector<HostBlock> Call::blocks() const {
  std::vector<HostBlock> blocks;
  for (const View* view : {&q_, &k_, &v_, &out_, &lse_}) {
    if (view->memory.size() == 0) continue;
    HostBlock& block = blocks.emplace_back();
    block = {view->memory.data(), view->memory.size(), view == &out_ || view == &lse_};
    if (c_.layout != "huge" || view == &lse_) continue;
    const auto size = static_cast<size_t>(size_of(view->tensor.dtype));
    block.piece_bytes = static_cast<size_t>(view->tensor.shape[2] * view->tensor.shape[3]) * size;
    block.piece_stride = static_cast<size_t>(view->tensor.strides[1]) * size;
  }
  for (const Memory& memory : memories_) blocks.push_back({memory.data(), memory.size()});
  const auto add = [&](const std::vector<int32_t>& values) {
    auto* data = reinterpret_cast<std::byte*>(const_cast<int32_t*>(values.data()));
    if (!values.empty()) blocks.push_back({data, values.size() * sizeof(int32_t)});
  };
  for (const auto* values : {&lengths_.cu_q, &lengths_.cu_kv, &lengths_.used_q, &lengths_.used_kv, &lengths_.leftpad,
                             &documents_q_, &documents_kv_}) {
    add(*values);
  }
  for (const std::vector<int32_t>& values : tables_) add(values);
  return blocks;
}

tessella_status Call::run() {
  if (!c_.plan) return run_plain();
  tessella_plan* plan = nullptr;
  if (const tessella_status status = make_plan(&plan); status != TESSELLA_OK) return status;
  const tessella_status status = run_plan(plan, spoiled_);
  tessella_plan_free(plan);
  return status;
}

tessella_status Call::run_plain() {
  if (!is_on_gpu_) return tessella_forward(&args_, &options_, nullptr);
  GpuTwin twin(blocks(), wants_exact_memory());
  const tessella_forward_args args = twin.args(args_, shows_device());
  const tessella_status status = tessella_forward(&args, &options_, twin.stream());
  spoiled_ = twin.download();
  return status;
}

tessella_status Call::make_plan(tessella_plan** plan) const {
  if (!is_on_gpu_) return tessella_plan_forward(&args_, &options_, plan);
  GpuTwin twin(blocks(), wants_exact_memory());
  const tessella_forward_args args = twin.args(args_, shows_device());
  return tessella_plan_forward(&args, &options_, plan);
}

tessella_status Call::run_plan(const tessella_plan* plan, std::string& text) const {
  constexpr size_t kGuard = 256;
  tessella_workspace workspace{};
  tessella_plan_workspace(plan, &workspace.state_bytes, &workspace.scratch_bytes);
  const Memory state(workspace.state_bytes + kGuard, Placement::aligned);
  const Memory scratch(workspace.scratch_bytes + kGuard, Placement::aligned);
  std::memset(state.data(), kPoison, state.size());
  std::memset(scratch.data(), kPoison, scratch.size());
  workspace.state = state.data();
  workspace.scratch = scratch.data();
  std::optional<GpuTwin> twin;
  tessella_forward_args args = args_;
  if (is_on_gpu_) {
    std::vector<HostBlock> all = blocks();
    for (const Memory* memory : {&state, &scratch}) all.push_back({memory->data(), memory->size(), true});
    twin.emplace(all, wants_exact_memory());
    args = twin->args(args_, shows_device());
    workspace.state = twin->at(state.data());
    workspace.scratch = twin->at(scratch.data());
  }
  void* stream = twin ? twin->stream() : nullptr;
  if (const auto status = tessella_plan_initialize(plan, &workspace, stream); status != TESSELLA_OK) return status;
  const tessella_status status = tessella_plan_run(plan, &args, &options_, &workspace, stream);
  if (twin) text = twin->download();

  const auto all = [](const std::byte* begin, size_t count, int value) {
    return std::all_of(begin, begin + count, [&](std::byte byte) { return std::to_integer<int>(byte) == value; });
  };
  if (!all(state.data(), workspace.state_bytes, 0)) text = "the state was not left zero";
  if (!all(state.data() + workspace.state_bytes, kGuard, kPoison)) text = "wrote past the state";
  if (!all(scratch.data() + workspace.scratch_bytes, kGuard, kPoison)) text = "wrote past the scratch";
  return status;
}

void Call::poison_outputs() {
  std::memset(out_.memory.data(), kPoison, out_.memory.size());
  if (c_.lse) std::memset(lse_.memory.data(), kPoison, lse_.memory.size());
}

std::vector<std::byte> Call::results() const {
  std::vector<std::byte> bytes(out_.memory.data(), out_.memory.data() + out_.memory.size());
  if (c_.lse) bytes.insert(bytes.end(), lse_.memory.data(), lse_.memory.data() + lse_.memory.size());
  return bytes;
}

std::string Call::spoiled_outside(const View& view, bool is_lse) const {
  std::vector<bool> ours(view.memory.size());
  const int64_t size = size_of(view.tensor.dtype);
  const auto* first = static_cast<const std::byte*>(view.tensor.data);
  const tessella_tensor& t = view.tensor;
  const bool packed = t.ndim == (is_lse ? 2 : 3);
  for (int64_t b = 0; b < (packed ? 1 : c_.batch); ++b) {
    for (int64_t row = 0; row < total_q_; ++row) {
      for (int64_t head = 0; head < c_.heads_q; ++head) {
        const int64_t at = is_lse ? lse_element(t, b, row, head) : element(t, b, row, head);
        const int64_t begin = first - view.memory.data() + at * size;
        std::fill_n(ours.begin() + begin, (is_lse ? 1 : c_.head_dim_v) * size, true);
      }
    }
  }
  for (size_t byte = 0; byte < ours.size(); ++byte) {
    if (!ours[byte] && std::to_integer<int>(view.memory.data()[byte]) != kPoison) {
      return std::string("wrote outside of ") + (is_lse ? "lse" : "out") + ", at byte " + std::to_string(byte);
    }
  }
  return "";
}

std::string Call::spoiled() const {
  if (!spoiled_.empty() || c_.layout == "huge") return spoiled_;
  const std::string outside = spoiled_outside(out_, false);
  return outside.empty() && c_.lse ? spoiled_outside(lse_, true) : outside;
}

std::string Call::check(int64_t rows) const {
  if (!spoiled_.empty()) return spoiled_;
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  if (tessella_check_forward(&args_, &options_, rows, c_.seed, &report) != TESSELLA_OK) return tessella_last_error();
  if (report.passed == 0) {
    std::ostringstream text;
    text << (report.worst_index[3] < 0 ? "lse" : "out") << "[" << report.worst_index[0] << ", row "
         << report.worst_index[1] << ", head " << report.worst_index[2] << ", " << report.worst_index[3] << "] is "
         << report.worst_got << ", expected " << report.worst_expected << "; error " << report.max_error
         << ", tolerance " << report.tolerance << ", plain error " << report.plain_error;
    return text.str();
  }
  return spoiled();
}

Outcome run_case(const Case& c) {
  Call call(c);
  const tessella_status status = call.run();
  if (status == TESSELLA_UNSUPPORTED) return {Verdict::refused, tessella_last_error()};
  if (status != TESSELLA_OK) return {Verdict::failed, tessella_last_error()};
  const std::string wrong = call.check();
  return {wrong.empty() ? Verdict::passed : Verdict::failed, wrong};
}

}  // namespace tessella::tests
