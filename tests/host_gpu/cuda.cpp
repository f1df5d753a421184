// A CUDA driver without a GPU, for tests of the API layer on machines that have none: its device memory is host memory
// that the host may not touch, streams run at once, and it loads and launches nothing. Built as libcuda.so.1 in a
// folder of its own, which LD_LIBRARY_PATH names.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

namespace {

constexpr int kInvalidValue = 1, kNotFound = 500, kNotSupported = 801;
using Address = unsigned long long;

// Device memory, mapped twice: at its address, where every access faults, and where the driver finds it.
struct Block {
  size_t bytes;
  std::byte* twin;
};

std::mutex g_mutex;
std::map<Address, Block>& blocks() {
  static auto& all = *new std::map<Address, Block>;
  return all;
}
thread_local void* t_context = nullptr;
int g_context;  // its address is the primary context

// Where the driver finds what is at the address; null: it is not ours.
void* pointer(Address address) {
  const std::lock_guard lock(g_mutex);
  const auto after = blocks().upper_bound(address);
  if (after == blocks().begin()) return nullptr;
  const auto& [begin, block] = *std::prev(after);
  return address < begin + block.bytes ? block.twin + (address - begin) : nullptr;
}
bool is_ours(Address address) { return pointer(address) != nullptr; }

int not_supported() { return kNotSupported; }

}  // namespace

#define FAKE extern "C" __attribute__((visibility("default"))) int

FAKE cuInit(unsigned) { return 0; }
FAKE cuDriverGetVersion(int* version) { return *version = 12080, 0; }
FAKE cuGetErrorName(int, const char** name) { return *name = "CUDA_ERROR_OF_THE_HOST_GPU", 0; }
FAKE cuGetErrorString(int, const char** string) { return *string = "this GPU is the host and does not do this", 0; }
FAKE cuDeviceGetCount(int* count) { return *count = 1, 0; }
FAKE cuDeviceGet(int* device, int ordinal) { return *device = ordinal, ordinal == 0 ? 0 : kInvalidValue; }
FAKE cuDeviceGetName(char* name, int length, int) { return std::strncpy(name, "host", static_cast<size_t>(length)), 0; }
FAKE cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = size_t{1} << 33, 0; }
FAKE cuDeviceGetAttribute(int* value, int attribute, int) {
  static const std::map<int, int> kValues = {{16, 132},    {38, 50 << 20}, {75, 9},    {76, 0},
                                             {81, 233472}, {97, 232448},   {82, 65536}};
  const auto found = kValues.find(attribute);
  return *value = found == kValues.end() ? 0 : found->second, 0;
}
FAKE cuDevicePrimaryCtxRetain(void** context, int) { return *context = &g_context, 0; }
FAKE cuDevicePrimaryCtxRelease_v2(int) { return 0; }
FAKE cuCtxGetCurrent(void** context) { return *context = t_context, 0; }
FAKE cuCtxGetDevice(int* device) { return *device = 0, 0; }
FAKE cuCtxSetCurrent(void* context) { return t_context = context, 0; }
FAKE cuCtxPushCurrent_v2(void* context) { return t_context = context, 0; }
FAKE cuCtxPopCurrent_v2(void** context) { return *context = t_context, t_context = nullptr, 0; }
FAKE cuCtxSynchronize() { return 0; }

FAKE cuPointerGetAttributes(unsigned count, int* attributes, void** values, Address address) {
  for (unsigned i = 0; i < count; ++i) {
    constexpr int kMemoryType = 2, kDevice = 2;
    *static_cast<int*>(values[i]) = attributes[i] == kMemoryType && is_ours(address) ? kDevice : 0;
  }
  return 0;
}
FAKE cuMemGetInfo_v2(size_t* free_bytes, size_t* total) { return *free_bytes = *total = size_t{1} << 33, 0; }
FAKE cuMemAlloc_v2(Address* address, size_t bytes) {
  constexpr int kOutOfMemory = 2;
  if (bytes == 0 || bytes > size_t{1} << 36) return kOutOfMemory;
  const int file = memfd_create("device memory", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return kOutOfMemory;
  void* device = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED, file, 0);
  void* twin = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (device == MAP_FAILED || twin == MAP_FAILED) return kOutOfMemory;
  const std::lock_guard lock(g_mutex);
  blocks()[*address = reinterpret_cast<Address>(device)] = {bytes, static_cast<std::byte*>(twin)};
  return 0;
}
FAKE cuMemFree_v2(Address address) {
  const std::lock_guard lock(g_mutex);
  const auto found = blocks().find(address);
  if (found == blocks().end()) return kInvalidValue;
  munmap(found->second.twin, found->second.bytes);
  munmap(reinterpret_cast<void*>(address), found->second.bytes);
  blocks().erase(found);
  return 0;
}
FAKE cuMemAllocAsync(Address* address, size_t bytes, void*) { return cuMemAlloc_v2(address, bytes); }
FAKE cuMemFreeAsync(Address address, void*) { return cuMemFree_v2(address); }
FAKE cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void*) {
  return is_ours(to) ? std::memcpy(pointer(to), from, bytes), 0 : kInvalidValue;
}
FAKE cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void*) {
  return is_ours(from) ? std::memcpy(to, pointer(from), bytes), 0 : kInvalidValue;
}
FAKE cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void*) {
  return is_ours(to) && is_ours(from) ? std::memcpy(pointer(to), pointer(from), bytes), 0 : kInvalidValue;
}
FAKE cuMemcpyHtoD_v2(Address to, const void* from, size_t bytes) {
  return cuMemcpyHtoDAsync_v2(to, from, bytes, nullptr);
}
FAKE cuMemcpyDtoH_v2(void* to, Address from, size_t bytes) { return cuMemcpyDtoHAsync_v2(to, from, bytes, nullptr); }
FAKE cuMemsetD8Async(Address to, unsigned char byte, size_t bytes, void*) {
  return is_ours(to) ? std::memset(pointer(to), byte, bytes), 0 : kInvalidValue;
}

FAKE cuStreamCreate(void** stream, unsigned) { return *stream = &g_context, 0; }
FAKE cuStreamDestroy_v2(void*) { return 0; }
FAKE cuStreamSynchronize(void*) { return 0; }
FAKE cuStreamIsCapturing(void*, int* status) { return *status = 0, 0; }
FAKE cuEventCreate(void** event, unsigned) { return *event = &g_context, 0; }
FAKE cuEventDestroy_v2(void*) { return 0; }
FAKE cuEventRecord(void*, void*) { return 0; }
FAKE cuEventSynchronize(void*) { return 0; }
FAKE cuEventElapsedTime(float* milliseconds, void*, void*) { return *milliseconds = 1, 0; }

// Of the command line's own kernels and graphs, which nothing here runs.
FAKE cuStreamBeginCapture_v2(void*, int) { return kNotSupported; }
FAKE cuStreamEndCapture(void*, void**) { return kNotSupported; }
FAKE cuGraphInstantiateWithFlags(void**, void*, unsigned long long) { return kNotSupported; }
FAKE cuGraphDestroy(void*) { return kNotSupported; }
FAKE cuGraphLaunch(void*, void*) { return kNotSupported; }
FAKE cuGraphExecDestroy(void*) { return kNotSupported; }
FAKE cuModuleLoadData(void**, const void*) { return kNotSupported; }
FAKE cuModuleGetFunction(void**, void*, const char*) { return kNotSupported; }
FAKE cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                    void**) {
  return kNotSupported;
}

FAKE cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, int*) {
  static void* const kSelf = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  *function = dlsym(kSelf, name);
  if (*function == nullptr) *function = dlsym(kSelf, (std::string(name) + "_v2").c_str());
  if (*function == nullptr) *function = reinterpret_cast<void*>(not_supported);
  return std::strncmp(name, "cu", 2) == 0 ? 0 : kNotFound;
}
