#include "emulator.hpp"

#include <ucontext.h>

#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

// What kernels call `extern __shared__ char shared[]`.
namespace tessella::device {
alignas(1024) extern char shared[];
alignas(1024) char shared[emulator::kMaxShared];
}  // namespace tessella::device

namespace tessella::emulator {
namespace {

using device::shared;
constexpr uint32_t kFirstAddress = 1024;
using Groups = std::deque<std::vector<std::function<void()>>>;  // the last one is open

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr unsigned kLanes = 32, kWarpgroup = 128;

struct Fiber {
  ucontext_t context;
  std::unique_ptr<std::byte[]> stack;
  Index thread_idx;
  std::function<bool()> ready;                           // empty: it may run
  Groups groups[3] = {Groups(1), Groups(1), Groups(1)};  // by Work
  uint64_t path = 0;                                     // hash of the places that as_warpgroup() named
  bool has_ended = false;
};

// Of a warp: what its lanes give each other, for this exchange and the one before.
struct Warp {
  Given given[2][kLanes];
  unsigned num_given = 0;
  uint64_t exchanges = 0;
};

struct NamedBarrier {
  int arrived = 0;
  uint64_t phases = 0;
};

struct Barrier {
  uint32_t count = 0, pending = 0;
  int64_t bytes = 0;  // expected and not yet there
  uint32_t parity = 0;
  void end_phase() {
    if (pending != 0 || bytes != 0) return;
    pending = count;
    parity ^= 1;
  }
};

class Block {
 public:
  Block(Index grid, Index idx, unsigned threads, uint64_t seed, const std::function<void()>& body)
      : grid_(grid), idx_(idx), random_(seed), body_(body), fibers_(threads), warps_((threads + kLanes - 1) / kLanes) {
    for (unsigned i = 0; i < threads; ++i) fibers_[i].thread_idx.x = i;
  }

  void run() {
    for (Fiber& fiber : fibers_) {
      fiber.stack = std::make_unique<std::byte[]>(kStackBytes);
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      fiber.context.uc_link = &scheduler_;
      makecontext(&fiber.context, &Block::enter, 0);
    }
    size_t num_running = fibers_.size();
    while (num_running > 0) {
      if (!actions_.empty() && random_() % 8 == 0) act();
      Fiber* next = choose();
      if (next == nullptr) {
        if (actions_.empty())
          throw Deadlock("block " + std::to_string(idx_.x) + ": " + std::to_string(num_running) +
                         " threads wait for what never comes");
        act();
        continue;
      }
      running_ = next;
      swapcontext(&scheduler_, &next->context);
      if (error_) std::rethrow_exception(error_);
      if (next->has_ended) --num_running;
    }
    while (!actions_.empty()) act();
    for (size_t i = 0; i < fibers_.size(); ++i) {
      if (fibers_[i].path != fibers_[i / kWarpgroup * kWarpgroup].path) {
        throw std::logic_error("thread " + std::to_string(i) + " goes another way than its warpgroup");
      }
    }
  }

  void wait_until(const std::function<bool()>& ready) {
    if (random_() % 4 != 0 && ready()) return;
    Fiber& self = *running_;
    self.ready = ready;
    swapcontext(&self.context, &scheduler_);
  }

  const Given* exchange(const Given& mine) {
    const unsigned thread = running_->thread_idx.x;
    Warp& warp = warps_[thread / kLanes];
    const uint64_t mine_is = warp.exchanges;
    warp.given[mine_is % 2][thread % kLanes] = mine;
    if (++warp.num_given == kLanes) {
      warp.num_given = 0;
      ++warp.exchanges;
    } else {
      wait_until([&warp, mine_is] { return warp.exchanges != mine_is; });
    }
    return warp.given[mine_is % 2];
  }

  void named_barrier(int barrier, int threads, bool waits) {
    NamedBarrier& of = named_.at(static_cast<size_t>(barrier));
    const uint64_t phase = of.phases;
    if (++of.arrived == threads) {
      of.arrived = 0;
      ++of.phases;
    }
    if (waits) wait_until([&of, phase] { return of.phases != phase; });
  }

  size_t num_threads() const { return fibers_.size(); }

  Index grid_, idx_;
  std::mt19937_64 random_;
  std::map<uint32_t, Barrier> barriers_;
  std::deque<std::function<void()>> actions_;
  Fiber* running_ = nullptr;

 private:
  static void enter();

  Fiber* choose() {
    const size_t first = random_() % fibers_.size();
    for (size_t i = 0; i < fibers_.size(); ++i) {
      Fiber& fiber = fibers_[(first + i) % fibers_.size()];
      if (fiber.has_ended || (fiber.ready && !fiber.ready())) continue;
      fiber.ready = nullptr;
      return &fiber;
    }
    return nullptr;
  }
  void act() {
    const size_t idx = random_() % actions_.size();
    const std::function<void()> action = std::move(actions_[idx]);
    actions_.erase(actions_.begin() + static_cast<ptrdiff_t>(idx));
    action();
  }

  const std::function<void()>& body_;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  std::vector<NamedBarrier> named_{16};
  ucontext_t scheduler_;
  std::exception_ptr error_;
};

void run_all(std::vector<std::function<void()>>& pieces) {
  for (const auto& piece : pieces) piece();
  pieces.clear();
}

Block* g_block = nullptr;

void Block::enter() {
  Block& block = *g_block;
  try {
    block.body_();
  } catch (...) {
    block.error_ = std::current_exception();
  }
  block.running_->has_ended = true;
}

}  // namespace

uint32_t shared_address(const void* pointer) {
  return kFirstAddress + static_cast<uint32_t>(static_cast<const char*>(pointer) - shared);
}
std::byte* at(uint32_t address, size_t bytes) {
  if (address < kFirstAddress || address - kFirstAddress + bytes > kMaxShared) {
    throw std::out_of_range("shared address " + std::to_string(address));
  }
  return reinterpret_cast<std::byte*>(shared + (address - kFirstAddress));
}

int num_threads() { return static_cast<int>(g_block->num_threads()); }
const Index& thread_idx() { return g_block->running_->thread_idx; }
const Index& block_idx() { return g_block->idx_; }
const Index& grid_dim() { return g_block->grid_; }

void launch(Index grid, unsigned threads, size_t shared_bytes, uint64_t seed, const std::function<void()>& body) {
  if (shared_bytes > kMaxShared) throw std::out_of_range("shared memory");
  const int poison = seed % 2 == 1 ? 0xFF : 0x3C;  // NaN or hundredths; as an index it leads nowhere
  for (unsigned y = 0; y < grid.y; ++y) {
    for (unsigned x = 0; x < grid.x; ++x) {
      std::memset(shared, poison, kMaxShared);
      Block block(grid, {x, y, 0}, threads, seed + x + uint64_t{y} * grid.x, body);
      g_block = &block;
      block.run();
    }
  }
}

void wait_until(const std::function<bool()>& ready) { g_block->wait_until(ready); }
void later(std::function<void()> action) { g_block->actions_.push_back(std::move(action)); }
void begin(Work kind, std::function<void()> piece) {
  Groups& groups = g_block->running_->groups[static_cast<size_t>(kind)];
  groups.back().push_back(std::move(piece));
  if (g_block->random_() % 8 != 0) return;
  for (auto& group : groups) run_all(group);  // each adds to what those before it gave
}
void commit(Work kind) { g_block->running_->groups[static_cast<size_t>(kind)].emplace_back(); }
void wait_groups(Work kind, size_t num_pending) {
  Groups& groups = g_block->running_->groups[static_cast<size_t>(kind)];
  for (; groups.size() > num_pending + 1; groups.pop_front()) run_all(groups.front());
}
void as_warpgroup(uint64_t place) {
  uint64_t& path = g_block->running_->path;
  path = (path + place) * 0x9E3779B97F4A7C15u;
}
const Given* exchange(const Given& mine) { return g_block->exchange(mine); }
void named_barrier(int barrier, int threads, bool waits) { g_block->named_barrier(barrier, threads, waits); }

void init_barrier(uint32_t address, uint32_t count) {
  g_block->barriers_[address] = {.count = count, .pending = count};
}
void arrive(uint32_t address, uint32_t expected_bytes) {
  Barrier& barrier = g_block->barriers_.at(address);
  if (barrier.pending == 0) throw std::logic_error("one arrival too many");
  barrier.bytes += expected_bytes;
  --barrier.pending;
  barrier.end_phase();
}
void complete_bytes(uint32_t address, uint32_t bytes) {
  Barrier& barrier = g_block->barriers_.at(address);
  barrier.bytes -= bytes;
  barrier.end_phase();
}
void wait(uint32_t address, uint32_t parity) {
  const Barrier& barrier = g_block->barriers_.at(address);
  wait_until([&barrier, parity] { return barrier.parity != parity; });
}

}  // namespace tessella::emulator
