#include "cases/merge_call.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>

#include "cases/gpu_twin.hpp"
#include "cases/tensor_places.hpp"
#include "portable/float16.hpp"

namespace tessella::tests {
namespace {

template <typename T>
void put(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof value);
}
void store(std::byte* at, int32_t dtype, double value) {
  switch (dtype) {
    case TESSELLA_F64: return put(at, value);
    case TESSELLA_F32: return put(at, static_cast<float>(value));
    case TESSELLA_BF16: return put(at, portable::to_bfloat16(static_cast<float>(value)));
    default: return put(at, portable::to_float16(static_cast<float>(value)));
  }
}

// Frees what tessella_plan_make made.
struct OwnedPlan {
  tessella_plan* plan = nullptr;
  ~OwnedPlan() { tessella_plan_free(plan); }
};

// One that fits the plan, full of NaN but for its state.
struct FilledWorkspace {
  std::vector<std::byte> scratch;
  tessella_workspace workspace{};
  explicit FilledWorkspace(const tessella_plan* plan) {
    size_t state = 0;
    size_t bytes = 0;
    tessella_plan_workspace(plan, &state, &bytes);
    scratch.assign(bytes + 64, std::byte{kPoison});
    const auto address = reinterpret_cast<uintptr_t>(scratch.data());
    workspace = {nullptr, 0, scratch.data() + ((address + 63) / 64 * 64 - address), bytes};
  }
};

}  // namespace

std::string to_string(const MergeCase& c) {
  std::ostringstream line;
  line << "kernel=" << c.kernel << " dtype=" << c.dtype << " out_dtype=" << c.out_dtype
       << " num_states=" << c.num_states << " batch=" << c.batch << " seqlen=" << c.seqlen << " heads=" << c.heads
       << " head_dim=" << c.head_dim << " layout=" << c.layout << " offset=" << c.offset << " repeats=" << c.repeats
       << " in_place=" << c.in_place << " lse=" << c.lse << " f64_lse=" << c.f64_lse << " empty=" << c.empty
       << " plan=" << c.plan << " guard=" << c.guard << " num_threads=" << c.num_threads << " seed=" << c.seed;
  return line.str();
}

MergeCase random_merge(const std::string& kernel, const std::string& dtypes, uint64_t seed) {
  Random random(seed);
  MergeCase c{.kernel = kernel, .seed = seed};
  const std::pair<const char*, int32_t> all[] = {
      {"f64", TESSELLA_F64}, {"f32", TESSELLA_F32}, {"bf16", TESSELLA_BF16}, {"f16", TESSELLA_F16}};
  std::vector<int32_t> known;
  for (const auto& [name, dtype] : all) {
    if ((" " + dtypes + " ").find(std::string(" ") + name + " ") != std::string::npos) known.push_back(dtype);
  }
  c.dtype = known[static_cast<size_t>(random.below(static_cast<int64_t>(known.size())))];
  c.out_dtype = random.chance(0.6) ? c.dtype : TESSELLA_F32;
  if (c.dtype == TESSELLA_F32 && random.chance(0.4)) c.out_dtype = random.chance(0.5) ? TESSELLA_BF16 : TESSELLA_F16;
  const int32_t states[] = {1, 2, 3, 4, 8, 31, 32, 33, 63, 64, 65, 70};
  c.num_states = random.chance(0.6) ? static_cast<int32_t>(random.in(1, 5)) : random.one_of(states);
  const std::string layouts[] = {"bshd", "bhsd", "sliced", "packed", "rows"};
  c.layout = random.one_of(layouts);
  const bool has_batch = c.layout != "packed" && c.layout != "rows";
  c.batch = has_batch ? random.in(random.chance(0.05) ? 0 : 1, 3) : 1;
  c.seqlen = random.in(random.chance(0.05) ? 0 : 1, 40);
  c.heads = c.layout == "rows" ? 1 : random.in(1, 5);
  const int64_t dims[] = {1, 3, 7, 8, 16, 31, 64, 72, 96, 128, 130, 192, 256, 512};
  c.head_dim = random.one_of(dims);
  c.offset = random.chance(0.5) ? static_cast<int32_t>(random.below(8)) : 0;
  c.repeats = random.chance(0.1);
  c.in_place = c.out_dtype == c.dtype && !c.repeats && random.chance(0.3);
  c.lse = random.chance(0.8);
  c.f64_lse = c.dtype == TESSELLA_F64 && random.chance(0.5);
  const double empties[] = {0, 0.2, 0.6, 1};
  c.empty = random.one_of(empties);
  c.plan = random.chance(0.3);
  c.guard = random.chance(0.3);
  c.num_threads = static_cast<int32_t>(random.below(4));
  return c;
}

MergeCall::View MergeCall::make_view(int32_t dtype, bool is_lse, bool repeats) const {
  const int64_t dim = is_lse ? 1 : c_.head_dim;
  const bool heads_first = is_lse != (c_.layout == "bhsd");  // lse is (batch, heads, seqlen)
  const int64_t gap = c_.layout == "sliced" ? 5 : 0;
  int64_t inner = dim + gap;
  const int64_t head_stride = heads_first ? c_.seqlen * inner + gap : inner;
  const int64_t row_stride = heads_first ? inner : c_.heads * inner + gap;
  const int64_t batch_stride = repeats ? 0 : (heads_first ? c_.heads * head_stride : c_.seqlen * row_stride) + gap;
  View view;
  tessella_tensor& t = view.tensor;
  t.dtype = dtype;
  const auto axis = [&t](int64_t size, int64_t stride) {
    t.shape[t.ndim] = size;
    t.strides[t.ndim++] = stride;
  };
  const bool has_batch = c_.layout != "packed" && c_.layout != "rows";
  if (has_batch) axis(c_.batch, batch_stride);
  if (is_lse) {
    if (c_.layout != "rows") axis(c_.heads, head_stride);
    axis(c_.seqlen, row_stride);
  } else {
    axis(c_.seqlen, row_stride);
    if (c_.layout != "rows") axis(c_.heads, head_stride);
    axis(dim, 1);
  }
  const int64_t size = size_of(dtype);
  const int64_t before = c_.guard ? 0 : c_.offset * size;
  const int64_t after = c_.guard ? 0 : 64;
  const auto bytes = static_cast<size_t>(before + extent(t) * size + after);
  view.memory = Memory(bytes, c_.guard ? Placement::guarded : Placement::aligned);
  if (bytes != 0) std::memset(view.memory.data(), kPoison, bytes);
  t.data = view.memory.data() + before;
  return view;
}

std::byte* MergeCall::at(int32_t state, int64_t b, int64_t row, int64_t head, int64_t dim) {
  const auto idx = static_cast<size_t>(std::max(state, 0));
  const tessella_tensor& t = dim < 0 ? (state < 0 ? lse_ : lses_[idx]).tensor : (state < 0 ? out_ : outs_[idx]).tensor;
  int64_t element = std::max<int64_t>(dim, 0);
  int axis = 0;
  if (c_.layout != "packed" && c_.layout != "rows") element += b * t.strides[axis++];
  if (dim < 0) {
    if (c_.layout != "rows") element += head * t.strides[axis++];
    element += row * t.strides[axis];
  } else {
    element += row * t.strides[axis++];
    if (c_.layout != "rows") element += head * t.strides[axis];
  }
  return static_cast<std::byte*>(t.data) + element * size_of(t.dtype);
}

MergeCall::MergeCall(const MergeCase& c) : c_(c), is_on_gpu_(c.kernel.starts_with("cuda.")) {
  Random random(c.seed);
  const int32_t lse_dtype = c.f64_lse ? TESSELLA_F64 : TESSELLA_F32;
  for (int32_t i = 0; i < c.num_states; ++i) {
    outs_.push_back(make_view(c.dtype, false, c.repeats));
    lses_.push_back(make_view(lse_dtype, true, c.repeats));
  }
  out_ = make_view(c.out_dtype, false, false);
  lse_ = make_view(lse_dtype, true, false);
  const double far = random.chance(0.2) ? 60 : 3;
  for (int32_t i = 0; i < c.num_states; ++i) {
    for (int64_t b = 0; b < (c.repeats ? std::min<int64_t>(c.batch, 1) : c.batch); ++b) {
      for (int64_t row = 0; row < c.seqlen; ++row) {
        for (int64_t head = 0; head < c.heads; ++head) {
          const bool is_empty = random.chance(c.empty);
          store(at(i, b, row, head, -1), lse_dtype,
                is_empty ? -std::numeric_limits<double>::infinity() : far * random.normal());
          if (is_empty) continue;  // its out stays NaN
          for (int64_t dim = 0; dim < c.head_dim; ++dim) store(at(i, b, row, head, dim), c.dtype, random.normal());
        }
      }
    }
  }
  for (int32_t i = 0; i < c.num_states; ++i) {
    out_tensors_.push_back(outs_[static_cast<size_t>(i)].tensor);
    lse_tensors_.push_back(lses_[static_cast<size_t>(i)].tensor);
  }
  args_.outs = out_tensors_.data();
  args_.lses = lse_tensors_.data();
  args_.num_states = c.num_states;
  out_tensor_ = out_.tensor;
  lse_tensor_ = lse_.tensor;
  args_.out = &out_tensor_;
  args_.lse = c.lse ? &lse_tensor_ : nullptr;
  options_.num_threads = c.num_threads;
  options_.kernel = c_.kernel.empty() ? nullptr : c_.kernel.c_str();
}

void MergeCall::remember() {
  before_.clear();
  for (size_t i = 0; i < outs_.size(); ++i) {
    for (const View* view : {&outs_[i], &lses_[i]}) {
      before_.emplace_back(view->memory.data(), view->memory.data() + view->memory.size());
    }
  }
}

void MergeCall::bring_back() {
  if (!c_.in_place) return;
  const auto last = static_cast<size_t>(c_.num_states - 1);
  const auto copy = [](std::byte* to, const std::byte* from, size_t bytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
  };
  copy(out_.memory.data(), outs_[last].memory.data(), out_.memory.size());
  if (c_.lse) copy(lse_.memory.data(), lses_[last].memory.data(), lse_.memory.size());
  copy(outs_[last].memory.data(), before_[2 * last].data(), before_[2 * last].size());
  copy(lses_[last].memory.data(), before_[2 * last + 1].data(), before_[2 * last + 1].size());
}

tessella_status MergeCall::run() {
  remember();
  tessella_merge_args args = args_;
  const auto last = static_cast<size_t>(c_.num_states - 1);
  if (c_.in_place) {
    args.out = &out_tensors_[last];
    if (c_.lse) args.lse = &lse_tensors_[last];
  }
  tessella_status status = TESSELLA_OK;
  const tessella_call call{sizeof call, TESSELLA_MERGE, &args, &options_};
  OwnedPlan owned;
  if (is_on_gpu_) {
    std::vector<HostBlock> blocks;
    const auto add = [&](const tessella_tensor& t, bool is_output) {
      blocks.push_back({static_cast<std::byte*>(t.data), static_cast<size_t>(extent(t) * size_of(t.dtype)), is_output});
    };
    for (size_t i = 0; i <= last; ++i) {
      add(out_tensors_[i], c_.in_place && i == last);
      add(lse_tensors_[i], c_.in_place && i == last);
    }
    if (!c_.in_place) add(out_.tensor, true);
    if (!c_.in_place && c_.lse) add(lse_.tensor, true);
    GpuTwin twin(blocks, c_.guard);
    std::vector<tessella_tensor> outs, lses;
    for (size_t i = 0; i <= last; ++i) {
      outs.push_back(twin.twin(out_tensors_[i], true));
      lses.push_back(twin.twin(lse_tensors_[i], true));
    }
    const tessella_tensor out = twin.twin(*args.out, true);
    const tessella_tensor lse = c_.lse ? twin.twin(*args.lse, true) : tessella_tensor{};
    args.outs = outs.data();
    args.lses = lses.data();
    args.out = &out;
    args.lse = c_.lse ? &lse : nullptr;
    if (c_.plan) {
      status = tessella_plan_make(&call, &owned.plan);
      if (status == TESSELLA_OK) status = tessella_plan_run(owned.plan, &call, nullptr, twin.stream());
    } else {
      status = tessella_merge(&args, &options_, twin.stream());
    }
    if (status == TESSELLA_OK) spoiled_ = twin.download();
  } else if (c_.plan) {
    status = tessella_plan_make(&call, &owned.plan);
    if (status == TESSELLA_OK) {
      const FilledWorkspace filled(owned.plan);
      status = tessella_plan_run(owned.plan, &call, &filled.workspace, nullptr);
    }
  } else {
    status = tessella_merge(&args, &options_, nullptr);
  }
  if (status == TESSELLA_OK) bring_back();
  return status;
}

std::vector<bool> MergeCall::elements(const View& view, bool is_lse) const {
  std::vector<bool> is_element(view.memory.size(), false);
  auto* self = const_cast<MergeCall*>(this);
  const int64_t dims = is_lse ? 1 : c_.head_dim;
  for (int64_t b = 0; b < c_.batch; ++b) {
    for (int64_t row = 0; row < c_.seqlen; ++row) {
      for (int64_t head = 0; head < c_.heads; ++head) {
        const std::byte* first = self->at(-1, b, row, head, is_lse ? -1 : 0);
        for (int64_t byte = 0; byte < dims * size_of(view.tensor.dtype); ++byte) {
          is_element[static_cast<size_t>(first + byte - view.memory.data())] = true;
        }
      }
    }
  }
  return is_element;
}

std::string MergeCall::spoiled() const {
  if (!spoiled_.empty()) return spoiled_;
  size_t input = 0;
  for (int32_t i = 0; i < c_.num_states && !before_.empty(); ++i) {  // empty: the test ran it
    for (const View* view : {&outs_[static_cast<size_t>(i)], &lses_[static_cast<size_t>(i)]}) {
      const std::vector<std::byte>& was = before_[input++];
      if (!std::equal(was.begin(), was.end(), view->memory.data())) return "wrote into an input";
    }
  }
  for (const bool is_lse : {false, true}) {
    const View& view = is_lse ? lse_ : out_;
    const std::vector<bool> is_element = elements(view, is_lse);
    for (size_t byte = 0; byte < is_element.size(); ++byte) {
      const bool may_be_written = is_element[byte] && (!is_lse || c_.lse);
      if (!may_be_written && view.memory.data()[byte] != std::byte{kPoison}) {
        return std::string(is_lse ? "lse" : "out") + ": wrote beside its elements";
      }
    }
  }
  return "";
}

std::string MergeCall::check() {
  if (std::string message = spoiled(); !message.empty()) return message + ", " + to_string(c_);
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  tessella_merge_options options = TESSELLA_MERGE_OPTIONS_INIT;
  const tessella_call call{sizeof call, TESSELLA_MERGE, &args_, &options};
  if (tessella_check(&call, 0, c_.seed, &report) != TESSELLA_OK) return tessella_last_error();
  if (report.passed != 0) return "";
  std::ostringstream line;
  line << "error " << report.max_error << ", tolerance " << report.tolerance << ", plain error " << report.plain_error
       << " at (" << report.worst_index[0] << ", " << report.worst_index[1] << ", " << report.worst_index[2] << ", "
       << report.worst_index[3] << "): got " << report.worst_got << ", expected " << report.worst_expected << ", "
       << to_string(c_);
  return line.str();
}

std::vector<std::byte> MergeCall::results() const {
  std::vector<std::byte> bytes;
  for (const bool is_lse : {false, true}) {
    const View& view = is_lse ? lse_ : out_;
    const std::vector<bool> is_element = elements(view, is_lse);
    for (size_t byte = 0; byte < is_element.size(); ++byte) {
      if (is_element[byte]) bytes.push_back(view.memory.data()[byte]);
    }
  }
  return bytes;
}

}  // namespace tessella::tests
