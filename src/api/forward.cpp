#include "api/forward.hpp"

#include <algorithm>
#include <string>

#include "api/host_copy.hpp"
#include "core/choose.hpp"
#include "core/error.hpp"
#include "core/message.hpp"
#include "core/validate.hpp"
#include "cuda/driver/memory.hpp"
#include "reference/kernels.hpp"

namespace tessella::api {

using core::AttentionArguments;
using core::AttentionShape;
using core::message;

AttentionArguments read(const tessella_forward_args* args, const tessella_attention_options& options,
                        const char* function, void* stream, Memory memory) {
  const AttentionArguments arguments = normalize(grown(args, function), options, function, memory);
  core::validate(arguments, function);
  if (checks_values(arguments.device, options.check_device_values))
    core::validate_tables(HostCopy(arguments, Copied::tables, stream).arguments(), function);
  return arguments;
}

AttentionShape bounds(const AttentionShape& shape, const tessella_attention_options& options) {
  AttentionShape bounds = shape;
  bounds.seqlen_q = std::max(shape.seqlen_q, options.max_seqlen_q);
  bounds.seqlen_kv = std::max(shape.seqlen_kv, options.max_seqlen_kv);
  bounds.total_q = std::max(shape.total_q, bounds.seqlen_q);
  bounds.total_kv = std::max(shape.total_kv, bounds.seqlen_kv);
  return bounds;
}

reference::CheckReport check(const AttentionArguments& arguments, int64_t num_rows, uint64_t seed) {
  core::AttentionShape on_cpu = static_cast<const core::AttentionShape&>(arguments);
  on_cpu.device = {};
  on_cpu.features = on_cpu.features.without(core::kMadeBefore);
  on_cpu.num_splits = 0;
  if (const std::string reason = core::ineligible(reference::oracle(arguments.operation), on_cpu); !reason.empty()) {
    core::unsupported(message("check: the reference ", reason));
  }
  const auto compare = [&](const AttentionArguments& a) {
    return a.operation == core::Operation::backward
               ? reference::check_backward(a, num_rows, seed)
               : reference::check_forward(a, num_rows, seed, arguments.device.type);
  };
  if (arguments.accumulate != 0) {
    core::invalid(message("check: accumulate is ", arguments.accumulate, ", expected 0: what was there is gone"));
  }
  if (arguments.device.type == core::DeviceType::cpu) return compare(arguments);
  cuda::synchronize(arguments.device);
  const HostCopy copy(arguments, Copied::all, nullptr);
  core::validate_tables(copy.arguments(), "check");
  return compare(copy.arguments());
}

}  // namespace tessella::api
