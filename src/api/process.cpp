#include "api/process.hpp"

#include <pthread.h>

#include <atomic>
#include <mutex>

#include "api/forward.hpp"
#include "core/thread_limit.hpp"

namespace tessella::api {
namespace {

std::atomic<bool> is_prepared{false};
std::mutex preparing;
[[maybe_unused]] const int kForkWaits =
    pthread_atfork([] { preparing.lock(); }, [] { preparing.unlock(); }, [] { preparing.unlock(); });

}  // namespace

void prepare_process() {
  if (is_prepared.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(preparing);
  if (is_prepared.load(std::memory_order_relaxed)) return;
  core::thread_limit();
  for (const core::KernelTable& table : kernel_tables()) {
    for (const core::Kernel& kernel : table) {
      if (kernel.device == core::DeviceType::cpu && kernel.unavailable != nullptr) kernel.unavailable({});
    }
  }
  is_prepared.store(true, std::memory_order_release);
}

}  // namespace tessella::api
