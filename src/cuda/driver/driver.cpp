#include "cuda/driver/driver.hpp"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <mutex>

#include "core/error.hpp"
#include "core/message.hpp"
#include "process/fork.hpp"
#include "process/once.hpp"

namespace tessella::cuda {
namespace {

using core::message;

constexpr const char* kLibrary = "libcuda.so.1";
constexpr int kOldest = 12000;  // cuLibraryLoadData and tensor maps appear

std::string version_string(int version) { return message("CUDA ", version / 1000, ".", version % 1000 / 10); }

// The library, not initialised: after cuInit no child that this process forks can use CUDA.
struct Library {
  void* handle = nullptr;
  int version = 0;
  std::string problem;
};

struct Opened {
  Driver functions{};
  std::string problem;
};

// Loads one function, with the signature of the given CUDA version. flags 1: null streams are the legacy stream.
struct Functions {
  using GetProcAddress = CUresult (*)(const char* name, void** function, int version, uint64_t flags, int* status);
  GetProcAddress get;

  template <typename Function>
  bool take(Function*& function, const char* name, int version = kOldest) const {
    void* address = nullptr;
    int status = 0;
    if (get(name, &address, version, 1, &status) != CUDA_SUCCESS) address = nullptr;
    function = reinterpret_cast<Function*>(address);
    return address != nullptr;
  }
};

// The first function that is missing, or nullptr.
const char* take_all(const Functions& from, Driver& to) {
#define TESSELLA_TAKE(name) \
  if (!from.take(to.name, #name)) return #name
  TESSELLA_TAKE(cuInit);
  TESSELLA_TAKE(cuDriverGetVersion);
  TESSELLA_TAKE(cuGetErrorName);
  TESSELLA_TAKE(cuGetErrorString);
  TESSELLA_TAKE(cuDeviceGet);
  TESSELLA_TAKE(cuDeviceGetCount);
  TESSELLA_TAKE(cuDeviceGetName);
  TESSELLA_TAKE(cuDeviceGetAttribute);
  TESSELLA_TAKE(cuDeviceTotalMem);
  TESSELLA_TAKE(cuDevicePrimaryCtxRetain);
  TESSELLA_TAKE(cuDevicePrimaryCtxRelease);
  TESSELLA_TAKE(cuCtxGetCurrent);
  TESSELLA_TAKE(cuCtxGetDevice);
  TESSELLA_TAKE(cuCtxPushCurrent);
  TESSELLA_TAKE(cuCtxPopCurrent);
  TESSELLA_TAKE(cuCtxSynchronize);
  TESSELLA_TAKE(cuPointerGetAttributes);
  TESSELLA_TAKE(cuMemGetInfo);
  TESSELLA_TAKE(cuMemAlloc);
  TESSELLA_TAKE(cuMemFree);
  TESSELLA_TAKE(cuMemAllocAsync);
  TESSELLA_TAKE(cuMemFreeAsync);
  TESSELLA_TAKE(cuMemcpyHtoD);
  TESSELLA_TAKE(cuMemcpyDtoH);
  TESSELLA_TAKE(cuMemcpyHtoDAsync);
  TESSELLA_TAKE(cuMemcpyDtoHAsync);
  TESSELLA_TAKE(cuMemsetD8Async);
  TESSELLA_TAKE(cuStreamCreate);
  TESSELLA_TAKE(cuStreamDestroy);
  TESSELLA_TAKE(cuStreamSynchronize);
  TESSELLA_TAKE(cuStreamIsCapturing);
  TESSELLA_TAKE(cuEventCreate);
  TESSELLA_TAKE(cuEventDestroy);
  TESSELLA_TAKE(cuEventRecord);
  TESSELLA_TAKE(cuEventSynchronize);
  TESSELLA_TAKE(cuEventElapsedTime);
  TESSELLA_TAKE(cuLibraryLoadData);
  TESSELLA_TAKE(cuLibraryUnload);
  TESSELLA_TAKE(cuLibraryGetKernel);
  TESSELLA_TAKE(cuKernelGetFunction);
  TESSELLA_TAKE(cuKernelGetAttribute);
  TESSELLA_TAKE(cuKernelSetAttribute);
  TESSELLA_TAKE(cuLaunchKernelEx);
  TESSELLA_TAKE(cuTensorMapEncodeTiled);
#undef TESSELLA_TAKE
  from.take(to.cuStreamGetId, "cuStreamGetId", 12000);
  from.take(to.cuCtxGetId, "cuCtxGetId", 12000);
  from.take(to.cuFuncLoad, "cuFuncLoad", 12040);
  from.take(to.cuKernelGetParamInfo, "cuKernelGetParamInfo", 12040);
  return nullptr;
}

// Before the functions are taken, an error is a number.
std::string init_problem(CUresult result) {
  switch (result) {
    case CUDA_ERROR_NO_DEVICE:
      return "the NVIDIA driver finds no GPU that this process may use (CUDA_VISIBLE_DEVICES?)";
    case CUDA_ERROR_STUB_LIBRARY:
      return message(kLibrary, " is the toolkit's stub, expected the NVIDIA driver's own library");
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return message("the NVIDIA kernel module and ", kLibrary, " are of different versions; a reboot may be due");
    default: return message("the NVIDIA driver does not start: cuInit returned error ", static_cast<int>(result));
  }
}

std::atomic<bool> is_loaded{false};

Library open_library() {
  Library library{.handle = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL)};
  is_loaded.store(library.handle != nullptr, std::memory_order_relaxed);
  if (library.handle == nullptr) {
    library.problem = message("no NVIDIA driver here: ", kLibrary, " was not found");
    return library;
  }
  const auto version = reinterpret_cast<CUresult (*)(int*)>(::dlsym(library.handle, "cuDriverGetVersion"));
  if (version == nullptr || version(&library.version) != CUDA_SUCCESS) {
    library.problem = message(kLibrary, " does not say its version, expected the NVIDIA driver");
  } else {
    library.problem = driver_version_problem(library.version);
  }
  return library;
}

// Never closed: other static destructors may still use it.
const Library& library() {
  return process::once([] { return open_library(); });
}

Opened open() {
  Opened opened{.problem = library().problem};
  if (!opened.problem.empty()) return opened;
  const Functions functions{
      reinterpret_cast<Functions::GetProcAddress>(::dlsym(library().handle, "cuGetProcAddress_v2"))};
  const char* missing = functions.get == nullptr ? "cuGetProcAddress_v2" : take_all(functions, opened.functions);
  if (missing != nullptr) {
    opened.problem = message("the NVIDIA driver supports ", version_string(library().version), " and lacks ", missing);
    return opened;
  }
  if (const CUresult result = opened.functions.cuInit(0); result != CUDA_SUCCESS) {
    opened.problem = init_problem(result);
    return opened;
  }
  int count = 0;
  if (opened.functions.cuDeviceGetCount(&count) != CUDA_SUCCESS || count == 0) {
    opened.problem = init_problem(CUDA_ERROR_NO_DEVICE);
  }
  return opened;
}

const Opened& opened() {
  return process::once([] { return open(); });
}

// Grows with every library the process loads. The loader's lock on its list is not reset in a forked child, which would
// wait for it for good.
unsigned long long num_loads() {
  const std::lock_guard lock(process::fork_mutex());
  unsigned long long loads = 0;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        *static_cast<unsigned long long*>(out) = info->dlpi_adds;
        return 1;
      },
      &loads);
  return loads;
}

std::string error_string(CUresult result) {
  const char* name = nullptr;
  const char* string = nullptr;
  if (const Driver* cu = driver(); cu != nullptr) {
    if (cu->cuGetErrorName(result, &name) != CUDA_SUCCESS) name = nullptr;
    if (cu->cuGetErrorString(result, &string) != CUDA_SUCCESS) string = nullptr;
  }
  if (name == nullptr) return message("CUDA error ", static_cast<int>(result));
  return string == nullptr ? std::string(name) : message(name, " (", string, ")");
}

}  // namespace

const Driver* driver() { return opened().problem.empty() ? &opened().functions : nullptr; }

const Driver& required_driver() {
  const Driver* cu = driver();
  if (cu == nullptr) throw core::Error(core::ErrorCode::device, driver_problem());
  return *cu;
}

std::string driver_problem() { return opened().problem; }
int driver_version() { return library().version; }

std::string driver_version_problem(int version) {
  if (version >= kOldest) return "";
  return message("the NVIDIA driver supports ", version_string(version), ", expected ", version_string(kOldest),
                 " or newer: a driver of branch 525 or later");
}

bool driver_is_loaded() {
  if (is_loaded.load(std::memory_order_relaxed)) return true;
  // dlopen searches the library path for a library that is not loaded. While no new library is loaded, its answer stays
  // true.
  static std::atomic<unsigned long long> loads_without{0};
  const unsigned long long loads = num_loads();
  if (loads_without.load(std::memory_order_relaxed) == loads) return false;
  // A child forked meanwhile would find the loader halfway through its search, and crash in its own.
  const std::lock_guard lock(process::fork_mutex());
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) {
    loads_without.store(loads, std::memory_order_relaxed);
    return false;
  }
  is_loaded.store(true, std::memory_order_relaxed);  // and the reference just taken keeps it so
  return true;
}

void fail(CUresult result, const char* what) {
  if (result == CUDA_ERROR_NOT_INITIALIZED) {
    throw core::Error(core::ErrorCode::device,
                      message(what,
                              ": CUDA is not initialised in this process; a process forked after its parent used CUDA "
                              "cannot use it, expected a spawned process"));
  }
  const auto code = result == CUDA_ERROR_OUT_OF_MEMORY ? core::ErrorCode::out_of_memory : core::ErrorCode::device;
  throw core::Error(code, message(what, ": ", error_string(result)));
}

void fail_allocation(CUresult result, const char* what, size_t bytes) {
  if (result != CUDA_ERROR_OUT_OF_MEMORY) fail(result, what);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  CUdevice device = 0;
  const Driver& cu = required_driver();
  if (cu.cuCtxGetDevice(&device) != CUDA_SUCCESS || cu.cuMemGetInfo(&free_bytes, &total_bytes) != CUDA_SUCCESS) {
    throw core::Error(core::ErrorCode::out_of_memory, message(what, ": the GPU has no ", bytes, " bytes left"));
  }
  throw core::Error(core::ErrorCode::out_of_memory,
                    message(what, ": needs ", bytes, " bytes on GPU ", device, ", which has ", free_bytes,
                            " bytes free of ", total_bytes));
}

}  // namespace tessella::cuda
