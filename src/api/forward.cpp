#include "api/forward.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "api/backends.hpp"
#include "api/host_copy.hpp"
#include "core/choose.hpp"
#include "core/error.hpp"
#include "core/message.hpp"
#include "core/validate.hpp"
#include "reference/kernels.hpp"

namespace tessella::api {

using core::AttentionArguments;
using core::AttentionShape;
using core::message;

namespace {

// k and v of 8 or 4 bits beside q of a float are a cache: that its scales are forgotten must not pass for scales of 1.
void require_scales_of_cache(const AttentionArguments& a, const char* function) {
  const bool is_cache = (core::dtype_bit(a.k().dtype) & core::kCacheDTypes) != 0 && a.k().dtype == a.v().dtype;
  if (!is_cache || !core::is_float(a.dtype())) return;
  for (const auto& [name, scale] : {std::pair{"k", core::Name::k_scale}, {"v", core::Name::v_scale}}) {
    if (a.tensors[scale].dtype != core::DType::none) continue;
    core::invalid(message(function, ": ", name, "_scale is NULL, expected the scales of ", name, ", whose dtype is ",
                          core::name(a.k().dtype), " (where it has none, one scale of 1)"));
  }
}

}  // namespace

AttentionArguments read(const tessella_forward_args* args, const tessella_attention_options& options,
                        const char* function, void* stream, Memory memory) {
  const AttentionArguments arguments = normalize(grown(args, function), options, function, memory);
  require_scales_of_cache(arguments, function);
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
  backend_of(arguments.device).synchronize(arguments.device);
  const HostCopy copy(arguments, Copied::all, nullptr);
  core::validate_tables(copy.arguments(), "check");
  return compare(copy.arguments());
}

}  // namespace tessella::api
