// Reading, running and checking a call, written once over the traits struct of its operation. Beside what
// core/operation_of.hpp asks for it has
//   Args, Options, kArgs, kOptions         the user's structs and their defaults; Options has kernel and allocator
//   kOperation
//   read(args, options, Reading)           Arguments, with shapes, dtypes, strides and devices checked
//   validate(arguments, function)          checks values; tables on a GPU are not read
//   validate_sizes(shape, function)        also of a plan's bounds, whose arithmetic must not overflow
//   bounds(shape, options)                 the shape of a call with the bounds of the options where larger
// and, where there is something to say:
//   validate_tables(arguments, function)   checks the values of tables that are on the host; Options then has
//                                          check_device_values
//   validate_checkable(arguments)          whether the call wrote over what a check would read
//   Arguments::read_seeds()                takes up seeds whose memory was copied to the host
// They throw Error(invalid_argument or unsupported) naming the function, the argument, what it is and what was
// expected.
#pragma once

#include "api/backends.hpp"
#include "api/host_copy.hpp"
#include "api/plan_cache.hpp"
#include "api/run.hpp"
#include "operations/grow.hpp"
#include "operations/reading.hpp"
#include "reference/check.hpp"
#include "tessella/tessella.h"

namespace tessella::api {

// NULL: the defaults.
template <typename Operation>
typename Operation::Options options_of(const typename Operation::Options* given, const char* function) {
  return given == nullptr ? Operation::kOptions : core::grow(given, Operation::kOptions, function, "options");
}

// Device tables are read, after what is queued on the stream, only where the options or the environment ask for it.
template <typename Operation>
typename Operation::Arguments read(const typename Operation::Args* args, const typename Operation::Options& options,
                                   const char* function, void* stream, core::Memory memory = core::Memory::written) {
  const typename Operation::Args given = core::grow(args, Operation::kArgs, function, "args");
  const typename Operation::Arguments arguments = Operation::read(given, options, {function, memory, devices()});
  Operation::validate(arguments, function);
  if constexpr (requires { Operation::validate_tables(arguments, function); }) {
    if (checks_values(arguments.device, options.check_device_values)) {
      Operation::validate_tables(HostCopy(arguments, Copied::tables, stream).arguments(), function);
    }
  }
  return arguments;
}

// A plain call: its plan from the cache, its workspace from the allocator.
template <typename Operation>
void run_call(const typename Operation::Args* args, const typename Operation::Options* given, void* stream) {
  const char* function = name(Operation::kOperation);
  const auto options = options_of<Operation>(given, function);
  const auto arguments = read<Operation>(args, options, function, stream);
  const auto plan = cached_plan(arguments, forced_kernel(options.kernel, arguments.operation), function);
  run(*plan, &arguments, nullptr, options.allocator, stream, function);
}

// Checks results, also on a GPU, after all its streams are done.
template <typename Operation>
reference::CheckReport check(const typename Operation::Arguments& arguments, int64_t num_rows, uint64_t seed) {
  reference::require_oracle(&arguments);
  if constexpr (requires { Operation::validate_checkable(arguments); }) Operation::validate_checkable(arguments);
  const core::Device device = arguments.device;
  if (device.type == core::DeviceType::cpu) return reference::check(&arguments, num_rows, seed, device.type);
  backend_of(device).synchronize(device);
  const HostCopy copy(arguments, Copied::all, nullptr);
  if constexpr (requires { Operation::validate_tables(arguments, "check"); }) {
    Operation::validate_tables(copy.arguments(), "check");
  }
  return reference::check(&copy.arguments(), num_rows, seed, device.type);
}

}  // namespace tessella::api
