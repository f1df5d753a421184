#include "cases/backward_call.hpp"

#include <cmath>
#include <cstring>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "cases/poisoned_workspace.hpp"
#include "cases/random.hpp"
#include "cases/tensor_elements.hpp"

namespace tessella::tests {
namespace {

Case forward_of(const Case& c) {
  Case forward = c;
  forward.plan = false;
  forward.lse = true;
  return forward;
}

// Memory of the same form, full of poison.
Memory like(const tessella_tensor& tensor, int32_t dtype, Placement placement, tessella_tensor& made) {
  made = tensor;
  made.dtype = dtype;
  Memory memory(static_cast<size_t>(extent(tensor) * size_of(dtype)), placement);
  std::memset(memory.data(), kPoison, memory.size());
  made.data = memory.data();
  return memory;
}

}  // namespace

BackwardCall::BackwardCall(const Case& c) : c_(c), forward_(forward_of(c)), options_(forward_.options()) {
  const tessella_forward_args& forward = forward_.args();
  tessella_attention_options reference = options_;
  reference.kernel = "reference.attention";
  if (tessella_forward(&forward, &reference, nullptr) != TESSELLA_OK) throw std::runtime_error(tessella_last_error());
  args_.forward = &forward;
  make_d_out();
  if (c_.d_lse) make_d_lse();
  const auto wants = [&](char of) { return c_.gradients.find(of) != std::string::npos; };
  if (wants('q')) add_output("dq", *forward.q, c_.gradients_f32, args_.dq);
  if (wants('k')) add_output("dk", *forward.k, c_.gradients_f32, args_.dk);
  if (wants('v')) add_output("dv", *forward.v, c_.gradients_f32, args_.dv);
  if (wants('b')) add_output("d_bias", *forward.bias, c_.gradients_f32, args_.d_bias);
  if (wants('s')) add_output("d_sink", *forward.sink, true, args_.d_sink);
  if (wants('a')) add_output("d_alibi_slopes", *forward.alibi_slopes, true, args_.d_alibi_slopes);
}

// NaN for queries that see no key, and for rows of none: with a sink only if q is NaN there too.
void BackwardCall::make_d_out() {
  const tessella_tensor& out = *forward_.args().out;
  const tessella_tensor& lse = *forward_.args().lse;
  // Of the two that d_out may have, matrix instructions multiply that of q.
  const bool is_of_q = c_.kernel == "cpu.backward_amx" || forward_.is_on_gpu();
  const int32_t dtype = is_of_q ? forward_.args().q->dtype : out.dtype;
  d_out_memory_ = like(out, dtype, c_.guard ? Placement::guarded : Placement::aligned, d_out_);
  args_.d_out = &d_out_;
  Random random(c_.seed + 17);
  const bool is_packed = out.ndim == 3;
  const int axis = is_packed ? 0 : 1;
  for (int64_t b = 0; b < (is_packed ? 1 : out.shape[0]); ++b) {
    for (int64_t row = 0; row < out.shape[axis]; ++row) {
      for (int64_t head = 0; head < out.shape[axis + 1]; ++head) {
        const tessella_tensor& q = *forward_.args().q;
        const bool is_spoiled = q.shape[axis + 2] > 0 && std::isnan(get(q, element(q, b, row, head)));
        if (is_spoiled || std::isinf(get(lse, lse_element(lse, b, row, head)))) continue;
        const int64_t at = element(out, b, row, head);
        for (int64_t c = 0; c < out.shape[axis + 2]; ++c) set(d_out_, at + c, random.normal());
      }
    }
  }
}

void BackwardCall::make_d_lse() {
  const tessella_tensor& lse = *forward_.args().lse;
  d_lse_memory_ = like(lse, lse.dtype, Placement::aligned, d_lse_);
  args_.d_lse = &d_lse_;
  Random random(c_.seed + 18);
  for_each_element(lse, [&](int64_t at) {
    if (!std::isinf(get(lse, at))) set(d_lse_, at, random.normal());
  });
}

void BackwardCall::add_output(const char* name, const tessella_tensor& tensor, bool is_f32,
                              const tessella_tensor*& to) {
  Output& output = outputs_[num_outputs_++];
  output.name = name;
  output.memory = like(tensor, is_f32 ? TESSELLA_F32 : tensor.dtype, c_.guard ? Placement::guarded : Placement::aligned,
                       output.tensor);
  to = &output.tensor;
}

void BackwardCall::poison_outputs() {
  for (size_t n = 0; n < num_outputs_; ++n) {
    std::memset(outputs_[n].memory.data(), kPoison, outputs_[n].memory.size());
  }
}

std::vector<HostBlock> BackwardCall::blocks() const {
  std::vector<HostBlock> blocks = forward_.blocks();
  for (HostBlock& block : blocks) block.is_output = false;
  for (const Memory* memory : {&d_out_memory_, &d_lse_memory_}) {
    if (memory->size() != 0) blocks.push_back({memory->data(), memory->size()});
  }
  for (size_t n = 0; n < num_outputs_; ++n) {
    blocks.push_back({outputs_[n].memory.data(), outputs_[n].memory.size(), true});
  }
  return blocks;
}

tessella_status BackwardCall::run() {
  if (!c_.plan) return run_plain();
  tessella_plan* plan = nullptr;
  if (const tessella_status status = make_plan(&plan); status != TESSELLA_OK) return status;
  const tessella_status status = run_plan(plan);
  tessella_plan_free(plan);
  return status;
}

tessella_status BackwardCall::run_plain() {
  if (!forward_.is_on_gpu()) return tessella_backward(&args_, &options_, nullptr);
  GpuTwin twin(blocks(), forward_.wants_exact_memory());
  const tessella_backward_args args = twin.args(args_, forward_.shows_device());
  const tessella_status status = tessella_backward(&args, &options_, twin.stream());
  spoiled_ = twin.download();
  return status;
}

tessella_status BackwardCall::make_plan(tessella_plan** plan) const {
  if (!forward_.is_on_gpu()) return tessella_plan_make(&tagged_, plan);
  GpuTwin twin(blocks(), forward_.wants_exact_memory());
  const tessella_backward_args args = twin.args(args_, forward_.shows_device());
  const tessella_call call{sizeof call, TESSELLA_BACKWARD, &args, &options_};
  return tessella_plan_make(&call, plan);
}

tessella_status BackwardCall::run_plan(const tessella_plan* plan) {
  const PoisonedWorkspace poisoned(plan);
  tessella_workspace workspace = poisoned.on_host();
  std::optional<GpuTwin> twin;
  tessella_backward_args args = args_;
  if (forward_.is_on_gpu()) {
    std::vector<HostBlock> all = blocks();
    for (const HostBlock& block : poisoned.blocks()) all.push_back(block);
    twin.emplace(all, forward_.wants_exact_memory());
    args = twin->args(args_, forward_.shows_device());
    workspace = poisoned.on(*twin);
  }
  void* stream = twin ? twin->stream() : nullptr;
  const tessella_call call{sizeof call, TESSELLA_BACKWARD, &args, &options_};
  if (const auto status = tessella_plan_initialize(plan, &workspace, stream); status != TESSELLA_OK) return status;
  const tessella_status status = tessella_plan_run(plan, &call, &workspace, stream);
  if (twin) spoiled_ = twin->download();
  if (const std::string spoiled = poisoned.spoiled(); !spoiled.empty()) spoiled_ = spoiled;
  return status;
}

std::string BackwardCall::spoiled() const {
  if (!spoiled_.empty()) return spoiled_;
  for (size_t n = 0; n < num_outputs_; ++n) {
    const Output& output = outputs_[n];
    std::vector<bool> ours(output.memory.size());
    const int64_t size = size_of(output.tensor.dtype);
    for_each_element(output.tensor, [&](int64_t at) {
      for (int64_t byte = 0; byte < size; ++byte) ours[static_cast<size_t>(at * size + byte)] = true;
    });
    for (size_t byte = 0; byte < ours.size(); ++byte) {
      if (!ours[byte] && output.memory.data()[byte] != std::byte{kPoison}) {
        return std::string("wrote outside of ") + output.name;
      }
    }
  }
  return "";
}

std::string BackwardCall::check(int64_t rows) const {
  if (std::string wrong = spoiled(); !wrong.empty()) return wrong;
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  if (tessella_check(&tagged_, rows, c_.seed, &report) != TESSELLA_OK) return tessella_last_error();
  if (report.passed != 0) return "";
  std::ostringstream line;
  line << report.worst_tensor << "[" << report.worst_index[0] << ", " << report.worst_index[1] << ", "
       << report.worst_index[2] << ", " << report.worst_index[3] << "] is " << report.worst_got << ", expected "
       << report.worst_expected << "; error " << report.max_error << ", tolerance " << report.tolerance
       << ", plain error " << report.plain_error;
  return line.str();
}

const BackwardCall::Output& BackwardCall::output(const std::string& name) const {
  for (size_t n = 0; n < num_outputs_; ++n) {
    if (name == outputs_[n].name) return outputs_[n];
  }
  throw std::invalid_argument("no gradient of the case: " + name);
}

std::vector<double> BackwardCall::values(const std::string& name) const {
  std::vector<double> values;
  const Output& of = output(name);
  for_each_element(of.tensor, [&](int64_t at) { values.push_back(get(of.tensor, at)); });
  return values;
}

void BackwardCall::set_values(const std::string& name, double value) {
  const Output& of = output(name);
  for_each_element(of.tensor, [&](int64_t at) { set(of.tensor, at, value); });
}

std::vector<std::byte> BackwardCall::results() const {
  std::vector<std::byte> bytes;
  for (size_t n = 0; n < num_outputs_; ++n) {
    const Memory& memory = outputs_[n].memory;
    bytes.insert(bytes.end(), memory.data(), memory.data() + memory.size());
  }
  return bytes;
}

Outcome run_backward_case(const Case& c) {
  BackwardCall call(c);
  const tessella_status status = call.run();
  if (status == TESSELLA_UNSUPPORTED) return {Verdict::unsupported, tessella_last_error()};
  if (status != TESSELLA_OK) return {Verdict::failed, tessella_last_error()};
  const std::string wrong = call.check();
  return {wrong.empty() ? Verdict::passed : Verdict::failed, wrong};
}

}  // namespace tessella::tests
