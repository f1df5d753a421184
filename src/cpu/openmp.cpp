#include "cpu/openmp.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <span>
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

// The path of the first loaded library whose file's name begins with one of these.
std::string find_library(std::span<const std::string_view> names) {
  struct Search {
    std::span<const std::string_view> names;
    std::string path;
  } search{names, ""};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* to) {
        auto& own = *static_cast<Search*>(to);
        const std::string_view loaded = info->dlpi_name;
        const std::string_view file = loaded.substr(loaded.rfind('/') + 1);
        if (std::ranges::none_of(own.names, [&](std::string_view name) { return file.starts_with(name); })) return 0;
        own.path = loaded;
        return 1;
      },
      &search);
  return search.path;
}

// All runtimes export libgomp's functions. For a library that links to a runtime, dlsym finds that runtime's.
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

constexpr std::string_view kTorch[] = {"libtorch_cpu."};
// Wheels rename what they bring: libgomp-24e2ab19.so.1.0.0.
constexpr std::string_view kRuntimes[] = {"libgomp", "libomp.", "libomp-", "libiomp5"};

}  // namespace

// A process may have several: scikit-learn brings one of its own beside torch's. Torch's is the one that spins between
// the operators of a model.
const OpenMp* loaded_openmp() {
  static OpenMp of_torch, of_any;
  static std::mutex mutex;
  static std::atomic<const OpenMp*> found{nullptr};
  static std::atomic<unsigned long long> seen{0};
  const OpenMp* known = found.load(std::memory_order_acquire);
  if (known == &of_torch) return known;
  const unsigned long long loads = count_loads();
  if (seen.load(std::memory_order_acquire) == loads) return known;
  const std::lock_guard lock(mutex);
  known = found.load(std::memory_order_relaxed);
  if (known != &of_torch && open(find_library(kTorch), of_torch)) known = &of_torch;
  if (known == nullptr && open(find_library(kRuntimes), of_any)) known = &of_any;
  found.store(known, std::memory_order_release);
  seen.store(loads, std::memory_order_release);
  return known;
}

}  // namespace tessella::cpu
