// Running a case, on the CPU or over its twins on a GPU, and the verdict.
#include <algorithm>
#include <cstring>
#include <optional>
#include <sstream>

#include "cases/backward_call.hpp"
#include "cases/call.hpp"
#include "cases/poisoned_workspace.hpp"
#include "cases/tagged.hpp"
#include "cases/tensor_places.hpp"

namespace tessella::tests {

std::vector<HostBlock> Call::blocks() const {
  std::vector<HostBlock> blocks;
  for (const View* view : {&q_, &k_, &v_, &out_, &lse_, &q_scale_, &k_scale_, &v_scale_, &out_scale_, &amax_}) {
    if (view->memory.size() == 0) continue;
    HostBlock& block = blocks.emplace_back();
    block = {view->memory.data(), view->memory.size(), view == &out_ || view == &lse_ || view == &amax_};
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
                             &lengths_.pages, &lengths_.slots, &documents_q_, &documents_kv_}) {
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
  if (!is_on_gpu_) return tessella_plan_make(Tagged(args_, options_), plan);
  GpuTwin twin(blocks(), wants_exact_memory());
  const tessella_forward_args args = twin.args(args_, shows_device());
  return tessella_plan_make(Tagged(args, options_), plan);
}

tessella_status Call::run_plan(const tessella_plan* plan, std::string& message) const {
  const PoisonedWorkspace poisoned(plan);
  tessella_workspace workspace = poisoned.on_host();
  std::optional<GpuTwin> twin;
  tessella_forward_args args = args_;
  if (is_on_gpu_) {
    std::vector<HostBlock> all = blocks();
    for (const HostBlock& block : poisoned.blocks()) all.push_back(block);
    twin.emplace(all, wants_exact_memory());
    args = twin->args(args_, shows_device());
    workspace = poisoned.on(*twin);
  }
  void* stream = twin ? twin->stream() : nullptr;
  if (const auto status = tessella_plan_initialize(plan, &workspace, stream); status != TESSELLA_OK) return status;
  const tessella_status status = tessella_plan_run(plan, Tagged(args, options_), &workspace, stream);
  if (twin) message = twin->download();
  if (const std::string spoiled = poisoned.spoiled(); !spoiled.empty()) message = spoiled;
  return status;
}

void Call::poison_outputs() {
  std::memset(out_.memory.data(), kPoison, out_.memory.size());
  if (c_.lse) std::memset(lse_.memory.data(), kPoison, lse_.memory.size());
  if (!c_.amax.empty()) std::memset(amax_.memory.data(), kPoison, amax_.memory.size());
}

std::vector<std::byte> Call::results() const {
  std::vector<std::byte> bytes(out_.memory.data(), out_.memory.data() + out_.memory.size());
  if (c_.lse) bytes.insert(bytes.end(), lse_.memory.data(), lse_.memory.data() + lse_.memory.size());
  if (!c_.amax.empty()) bytes.insert(bytes.end(), amax_.memory.data(), amax_.memory.data() + amax_.memory.size());
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
  if (tessella_check(Tagged(args_, options_), rows, c_.seed, &report) != TESSELLA_OK) return tessella_last_error();
  if (report.passed == 0) {
    std::ostringstream line;
    line << (report.worst_index[3] == -2 ? "amax"
             : report.worst_index[3] < 0 ? "lse"
                                         : "out")
         << "[" << report.worst_index[0] << ", row " << report.worst_index[1] << ", head " << report.worst_index[2]
         << ", " << report.worst_index[3] << "] is " << report.worst_got << ", expected " << report.worst_expected
         << "; error " << report.max_error << ", tolerance " << report.tolerance << ", plain error "
         << report.plain_error;
    return line.str();
  }
  return spoiled();
}

Outcome run_case(const Case& c) {
  if (!c.gradients.empty()) return run_backward_case(c);
  Call call(c);
  const tessella_status status = call.run();
  if (status == TESSELLA_UNSUPPORTED) return {Verdict::unsupported, tessella_last_error()};
  if (status != TESSELLA_OK) return {Verdict::failed, tessella_last_error()};
  const std::string wrong = call.check();
  return {wrong.empty() ? Verdict::passed : Verdict::failed, wrong};
}

}  // namespace tessella::tests
