#include "cuda/info.hpp"

#include <set>

#include "core/message.hpp"
#include "cuda/compile/cubin_store.hpp"
#include "cuda/compile/embedded_cubins.hpp"
#include "cuda/compile/nvrtc.hpp"
#include "cuda/driver/driver.hpp"
#include "cuda/driver/gpus.hpp"

namespace tessella::cuda {
namespace {

using core::message;

std::string version_string(int version) { return message(version / 1000, ".", version % 1000 / 10); }

std::string device_line(const DeviceInfo& device) {
  const std::string problem = device_problem(device);
  return message("gpu ", device.id, ": ", device.name, ", sm_", device.arch, ", ", device.num_sms, " multiprocessors, ",
                 device.memory_bytes >> 20, " MiB", problem.empty() ? "" : "; ", problem, "\n");
}

std::string embedded_line() {
  const size_t count = embedded_cubins().size();
  if (count == 0) return "embedded kernels: none, each is compiled at its first use\n";
  std::set<std::string> targets;
  CompilerVersion compiler;
  for (const auto& [key, cubin] : embedded_cubins()) {
    targets.insert(cubin.target);
    compiler = cubin.compiler;
  }
  std::string string = message("embedded kernels: ", count, " for");
  for (const std::string& target : targets) string += " " + target;
  return string + message(", by NVRTC ", compiler.string(), "\n");
}

}  // namespace

std::string info_lines() {
  std::string string = "CUDA driver: ";
  string += driver() != nullptr ? message("CUDA ", version_string(driver_version())) : driver_problem();
  string += "\n";
  for (int id = 0; id < device_count(); ++id) string += device_line(device_info(id));
  const Nvrtc* compiler = nvrtc();
  string += "NVRTC: ";
  string += compiler != nullptr ? message(compiler->version().string(), ", ", compiler->path()) : nvrtc_problem();
  const process::CacheFolder& folder = cubin_store().disk().folder();
  const std::string problem = folder.problem();
  string += "\nkernel cache: ";
  string += problem.empty() ? folder.path() : message("in memory only: ", problem);
  string += "\n";
  return string + embedded_line();
}

}  // namespace tessella::cuda
