// Compiles each program once: from the disk cache, else with NVRTC. Results also stay in memory, in case the folder
// cannot be written.
#pragma once

#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "cuda/compile/cubin.hpp"
#include "cuda/compile/disk_cache.hpp"
#include "cuda/compile/nvrtc.hpp"
#include "cuda/compile/program.hpp"

namespace tessella::cuda {

class CubinStore {
 public:
  // compiler may be null: then the store finds and does not compile. It outlives the store.
  CubinStore(std::string folder, const Nvrtc* compiler) : disk_(std::move(folder)), compiler_(compiler) {}

  const DiskCache& disk() const { return disk_; }

  // The program for this very target. Threads that ask for one that is being compiled wait for it. Error(compile) when
  // it does not compile, or is not there and there is no compiler.
  std::shared_ptr<const Cubin> get(const Program& program, const Target& target);

  // For fork(): no compilation may be under way while the process is copied. No thread would finish it in the child,
  // and NVRTC's own locks would stay locked there.
  void lock_for_fork();
  void unlock_after_fork() { mutex_.unlock(); }

 private:
  using Flight = std::shared_future<std::shared_ptr<const Cubin>>;

  std::shared_ptr<const Cubin> make(const Program& program, const Target& target, const Hash128& key) const;

  const DiskCache disk_;
  const Nvrtc* const compiler_;
  std::mutex mutex_;
  std::map<std::string, Flight> flights_;  // by key; under way or landed
  int num_under_way_ = 0;
};

// The process's own: the default folder, and nvrtc().
CubinStore& cubin_store();

}  // namespace tessella::cuda
