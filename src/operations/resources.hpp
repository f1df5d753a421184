// What every call says of its device.
#pragma once

#include "core/error.hpp"
#include "core/message.hpp"
#include "operations/tensor_reader.hpp"

namespace tessella::core {

template <typename Operation>
void read_resources(typename Operation::Arguments& a, const typename Operation::Options& options,
                    const TensorReader& reader) {
  a.device = reader.device();
  a.num_threads = options.num_threads;
  a.num_sms = options.num_sms;
  a.cancel = options.cancel;
  if (a.num_sms == 0 || a.device.type != DeviceType::cpu) return;
  unsupported(message(reader.function(), ": option num_sms is for GPUs, and ", Operation::kIsOn, "the CPU"));
}

}  // namespace tessella::core
