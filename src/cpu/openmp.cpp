#include "cpu/openmp.hpp"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <mutex>
#include <string>
#include <string_view>
#include <type_traits>

namespace tessella::cpu {
namespace {

// Libraries that the process has ever loaded: while it stands, so does the answer.
unsigned long long count_loads() {
  unsigned long long loads = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        *static_cast<unsigned long long*>(to) = info->dlpi_adds;
        return 1;
      },
      &loads);
  return loads;
}

// Wheels rename what they bring: libgomp-24e2ab19.so.1.0.0.
std::string find_runtime() {
  std::string path;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        const std::string_view loaded = info->dlpi_name;
        const std::string_view name = loaded.substr(loaded.rfind('/') + 1);
        for (const std::string_view runtime : {"libgomp", "libomp.", "libomp-", "libiomp5"}) {
          if (name.starts_with(runtime)) *static_cast<std::string*>(to) = loaded;
        }
        return 0;
      },
      &path);
  return path;
}

// All of them speak libgomp's language.
bool open(const std::string& path, OpenMp& to) {
  void* library = path.empty() ? nullptr : ::dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  const auto find = [&](auto*& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    return function != nullptr;
  };
  return find(to.parallel, "GOMP_parallel") && find(to.max_threads, "omp_get_max_threads") &&
         find(to.thread_num, "omp_get_thread_num") && find(to.in_parallel, "omp_in_parallel");
}

}  // namespace

const OpenMp* loaded_openmp() {
  static OpenMp runtime;
  static std::mutex mutex;
  static std::atomic<const OpenMp*> found{nullptr};
  static std::atomic<unsigned long long> seen{0};
  if (const OpenMp* known = found.load(std::memory_order_acquire)) return known;
  const unsigned long long loads = count_loads();
  if (seen.load(std::memory_order_relaxed) == loads) return nullptr;
  const std::lock_guard lock(mutex);
  if (found.load(std::memory_order_relaxed) == nullptr && open(find_runtime(), runtime)) {
    found.store(&runtime, std::memory_order_release);
  }
  seen.store(loads, std::memory_order_relaxed);
  return found.load(std::memory_order_relaxed);
}

}  // namespace tessella::cpu
