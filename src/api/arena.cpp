#include "api/arena.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "api/backends.hpp"
#include "core/error.hpp"
#include "core/message.hpp"

namespace tessella::api {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kMaxRetained = size_t{256} << 20;  // a thread holds on to at most this much between calls

size_t rounded_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// One block per thread. A nested call (from inside a task that runs on this thread) finds it taken and gets its own;
// so does a call that outlives the block, from a static destructor or an exit handler.
struct ThreadBlock {
  void* data = nullptr;
  size_t bytes = 0;
  bool is_taken = false;
  ~ThreadBlock() {
    std::free(data);
    data = nullptr;
    bytes = 0;
    is_taken = true;
  }
};
thread_local ThreadBlock t_block;

void* allocate(size_t bytes, const char* function) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : kAlignment;
  void* data = std::aligned_alloc(alignment, rounded_up(bytes, alignment));
  if (data == nullptr) {
    throw core::Error(core::ErrorCode::out_of_memory,
                      core::message(function, ": no memory for a workspace of ", bytes, " bytes"));
  }
#ifdef MADV_HUGEPAGE
  // 4 KB pages cost a third of the bandwidth of large scratch; a failure costs nothing else.
  if (alignment == kHugePage) madvise(data, rounded_up(bytes, alignment), MADV_HUGEPAGE);
#endif
  return data;
}

}  // namespace

RunMemory::RunMemory(const core::WorkspaceSize& size, core::Device device, const tessella_allocator* allocator,
                     void* stream, const char* function)
    : device_(device),
      gpu_(device.type == core::DeviceType::cpu ? nullptr : &backend_of(device)),
      allocator_(allocator),
      stream_(stream),
      function_(function) {
  const size_t state = rounded_up(static_cast<size_t>(size.state_bytes), kAlignment);
  bytes_ = state + static_cast<size_t>(size.scratch_bytes);
  if (bytes_ == 0) return;
  if (gpu_ != nullptr && state > 0 && state <= gpu_->stream_state_bytes) {
    workspace_.state = gpu_->stream_state(device, stream);
    if (workspace_.state != nullptr) bytes_ -= state;
    if (bytes_ == 0) return;
  }
  block_ = allocator != nullptr ? take_from_caller()
           : gpu_ == nullptr    ? take_from_thread()
                                : gpu_->allocate(device, bytes_, stream);
  if (state == 0 || workspace_.state != nullptr) {
    workspace_.scratch = block_;
    return;
  }
  workspace_ = {block_, static_cast<std::byte*>(block_) + state};
  if (gpu_ == nullptr) {
    std::memset(block_, 0, state);
  } else {
    gpu_->zero(device, block_, state, stream);
  }
}

void* RunMemory::take_from_caller() const {
  if (allocator_->alloc == nullptr || allocator_->free == nullptr) {
    core::invalid(core::message(function_, ": allocator has no alloc or no free, expected both"));
  }
  void* block = allocator_->alloc(bytes_, kAlignment, stream_, allocator_->user);
  if (block == nullptr) {
    throw core::Error(core::ErrorCode::out_of_memory,
                      core::message(function_, ": the caller's allocator returned NULL for ", bytes_, " bytes"));
  }
  if (reinterpret_cast<uintptr_t>(block) % kAlignment != 0) {
    allocator_->free(block, bytes_, stream_, allocator_->user);
    core::invalid(core::message(function_, ": the caller's allocator returned memory that is not aligned to ",
                                kAlignment, " bytes"));
  }
  return block;
}

void* RunMemory::take_from_thread() const {
  if (t_block.is_taken) return allocate(bytes_, function_);
  if (t_block.bytes < bytes_) {
    std::free(t_block.data);
    t_block = {};
    t_block.data = allocate(bytes_, function_);
    t_block.bytes = bytes_;
  }
  t_block.is_taken = true;
  return t_block.data;
}

RunMemory::~RunMemory() {
  if (block_ == nullptr) return;
  if (allocator_ != nullptr) {
    allocator_->free(block_, bytes_, stream_, allocator_->user);
  } else if (gpu_ != nullptr) {
    gpu_->free(device_, block_, stream_);
  } else if (block_ == t_block.data) {
    t_block.is_taken = false;
    if (t_block.bytes > kMaxRetained) {
      std::free(t_block.data);
      t_block.data = nullptr;
      t_block.bytes = 0;
    }
  } else {
    std::free(block_);
  }
}

}  // namespace tessella::api
