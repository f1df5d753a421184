#include "cuda/compile/cubin_store.hpp"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <exception>
#include <thread>

#include "core/error.hpp"
#include "core/message.hpp"
#include "cuda/driver/driver.hpp"
#include "process/once.hpp"

namespace tessella::cuda {
namespace {

constexpr size_t kMostInMemory = 256;  // a process that compiles its users' sources for days stays small

}  // namespace

std::shared_ptr<const Cubin> CubinStore::get(const Program& program, const Target& target) {
  const Hash128 key = program_key(program, target);
  const std::string name = key.hex();
  std::promise<std::shared_ptr<const Cubin>> promise;
  Flight flight;
  bool is_mine = false;
  {
    const std::lock_guard lock(mutex_);
    const auto found = flights_.find(name);
    if (found != flights_.end()) {
      flight = found->second;
    } else {
      if (flights_.size() >= kMostInMemory && num_under_way_ == 0) flights_.clear();
      flights_.emplace(name, promise.get_future().share());
      ++num_under_way_;
      is_mine = true;
    }
  }
  if (!is_mine) return flight.get();

  std::shared_ptr<const Cubin> made;
  std::exception_ptr error;
  try {
    made = make(program, target, key);
    promise.set_value(made);
  } catch (...) {
    error = std::current_exception();
    promise.set_exception(error);
  }
  const std::lock_guard lock(mutex_);
  --num_under_way_;
  if (error == nullptr) return made;
  flights_.erase(name);  // the next call tries again: NVRTC may have been installed, a disk freed
  std::rethrow_exception(error);
}

std::shared_ptr<const Cubin> CubinStore::make(const Program& program, const Target& target, const Hash128& key) const {
  const auto start = std::chrono::steady_clock::now();
  const auto timed = [&](Cubin cubin) {
    cubin.milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    return std::make_shared<const Cubin>(std::move(cubin));
  };
  if (compiler_ == nullptr) {
    // A folder filled elsewhere by `tessella kernels build` serves machines without NVRTC.
    const int driver_major = driver_version() / 1000;
    const CompilerVersion newest{driver_major == 0 ? INT_MAX : driver_major, INT_MAX};
    if (std::optional<Cubin> cubin = disk_.read_any(key, newest)) return timed(std::move(*cubin));
    throw core::Error(core::ErrorCode::compile,
                      core::message(nvrtc_problem(), "; wanted for ", target.name(), ": ", program.expression));
  }
  if (std::optional<Cubin> cubin = disk_.read(key, compiler_->version())) return timed(std::move(*cubin));
  const DiskCache::Claim claim(disk_, key);
  if (std::optional<Cubin> cubin = disk_.read(key, compiler_->version())) return timed(std::move(*cubin));
  Cubin compiled = compiler_->compile(program, target);
  compiled.key = key;
  disk_.write(compiled);
  return timed(std::move(compiled));
}

void CubinStore::lock_for_fork() {
  for (mutex_.lock(); num_under_way_ > 0; mutex_.lock()) {
    mutex_.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

namespace {

// Registered when the library is loaded: under a lock that a fork waits for, older C libraries would wait for the fork.
std::atomic<CubinStore*> made{nullptr};
thread_local CubinStore* locked = nullptr;  // by the thread that forks
void unlock_after_fork() {
  if (locked != nullptr) locked->unlock_after_fork();
}
[[maybe_unused]] const int kForkWaits = pthread_atfork(
    [] {
      locked = made.load(std::memory_order_acquire);
      if (locked != nullptr) locked->lock_for_fork();
    },
    unlock_after_fork, unlock_after_fork);

}  // namespace

CubinStore& cubin_store() {
  return *process::once([] {
    auto* store = new CubinStore(process::CacheFolder::default_path(), nvrtc());
    made.store(store, std::memory_order_release);
    return store;
  });
}

}  // namespace tessella::cuda
