#include "emulator.hpp"

#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "phases.hpp"

// What kernels call `extern __shared__ char shared[]`, of all blocks of a cluster.
namespace tessella::device {
alignas(1024) extern char shared[];
alignas(1024) char shared[emulator::kMaxShared * emulator::kMaxCluster];
}  // namespace tessella::device

namespace tessella::emulator {
namespace {

using device::shared;
constexpr uint32_t kFirstAddress = 1024;
char g_async[sizeof shared];  // the same memory as the copy engine and the matrix unit see it

struct Group {
  std::vector<std::function<void()>> pieces;
  std::vector<uint32_t> chunks;  // that they read, by their offsets in `shared`
};
using Groups = std::deque<Group>;  // the last one is open

constexpr size_t kStackBytes = size_t{256} << 10;
constexpr unsigned kLanes = 32, kWarpgroup = 128;

struct Fiber {
  ucontext_t context;
  std::unique_ptr<std::byte[]> stack;
  Index thread_idx;
  unsigned block = 0;                                    // of the cluster
  std::function<bool()> ready;                           // empty: it may run
  Groups groups[3] = {Groups(1), Groups(1), Groups(1)};  // by Work
  std::vector<std::pair<size_t, size_t>> stores;         // not fenced: where in `shared`, bytes
  Phases known;                                          // by its own waits, and of those whose arrivals it has seen
  bool has_acquired = false;                             // in memory, with no fence_async_memory() since
  uint64_t cluster_phase = 0;                            // in which it arrived
  uint64_t votes = 1;                                    // of the block
  uint64_t path = 0;                                     // hash of the sites that as_warpgroup() named
  bool has_ended = false;
};

// Of a warp: what its lanes give each other, for this exchange and the one before.
struct Warp {
  Given given[2][kLanes];
  Phases known[2];
  unsigned num_given = 0;
  uint64_t exchanges = 0;
};

// Of a block, this one and the one before.
struct Vote {
  uint64_t turn[2] = {0, 0};
  bool any[2] = {false, false};
};

// known: by those who have arrived, and by those of the phases that have ended.
struct NamedBarrier {
  int arrived = 0;
  uint64_t phases = 0;
  Phases known[2];
};

struct Barrier {
  size_t idx = 0;
  uint32_t count = 0, pending = 0;
  int64_t bytes = 0;  // expected and not yet there
  uint32_t phases = 0;
  Phases known[2];
  uint32_t parity() const { return phases % 2; }
  void end_phase() {
    if (pending != 0 || bytes != 0) return;
    pending = count;
    known[0].of(idx) = ++phases;
    known[1] = known[0];
  }
};

// The blocks that run together.
class Cluster {
 public:
  Cluster(Index grid, Index first_block, unsigned size, unsigned threads, uint64_t seed,
          const std::function<void()>& body)
      : grid_(grid),
        first_block_(first_block),
        size_(size),
        threads_(threads),
        random_(seed),
        body_(body),
        fibers_(size_t{size} * threads),
        warps_per_block_((threads + kLanes - 1) / kLanes),
        warps_(size_t{size} * warps_per_block_),
        named_(size_t{size} * kNamedBarriers),
        votes_(size) {
    for (unsigned i = 0; i < fibers_.size(); ++i) {
      fibers_[i].thread_idx.x = i % threads;
      fibers_[i].block = i / threads;
    }
  }

  void run() {
    for (Fiber& fiber : fibers_) {
      fiber.stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      fiber.context.uc_link = &scheduler_;
      makecontext(&fiber.context, &Cluster::enter, 0);
    }
    size_t num_running = fibers_.size();
    while (num_running > 0) {
      if (!actions_.empty() && random_() % 8 == 0) act(actions_);
      Fiber* next = choose();
      if (next == nullptr) {
        if (actions_.empty() && late_.empty()) {
          throw Deadlock("block " + std::to_string(first_block_.x) + ": " + std::to_string(num_running) +
                         " threads wait for what never comes");
        }
        act(actions_.empty() ? late_ : actions_);
        continue;
      }
      running_ = next;
      swapcontext(&scheduler_, &next->context);
      if (error_) std::rethrow_exception(error_);
      if (next->has_ended) --num_running;
    }
    while (!actions_.empty()) act(actions_);
    while (!late_.empty()) act(late_);
    for (size_t i = 0; i < fibers_.size(); ++i) {
      const size_t thread = fibers_[i].thread_idx.x;
      if (fibers_[i].path != fibers_[i - thread % kWarpgroup].path) {
        throw std::logic_error("thread " + std::to_string(thread) + " goes another way than its warpgroup");
      }
    }
  }

  void later(std::function<void()> action) { (random_() % 4 == 0 ? late_ : actions_).push_back(std::move(action)); }

  void wait_until(const std::function<bool()>& ready) {
    if (random_() % 4 != 0 && ready()) return;
    Fiber& self = *running_;
    self.ready = ready;
    swapcontext(&self.context, &scheduler_);
  }

  // Where the asynchronous work of the running thread may not be done yet; its warp may come to be the late one.
  void wait_for_work() {
    if (random_() % 256 == 0) late_warp_ = warp_of(*running_);
    wait_until([] { return true; });
  }

  const Given* exchange(const Given& mine) {
    const unsigned thread = running_->thread_idx.x;
    Warp& warp = warps_[warp_of(*running_)];
    const uint64_t mine_is = warp.exchanges;
    warp.given[mine_is % 2][thread % kLanes] = mine;
    Phases& known = warp.known[mine_is % 2];
    known.learn(running_->known);
    if (++warp.num_given == kLanes) {
      warp.num_given = 0;
      ++warp.exchanges;
    } else {
      wait_until([&warp, mine_is] { return warp.exchanges != mine_is; });
    }
    running_->known.learn(known);
    return warp.given[mine_is % 2];
  }

  void named_barrier(int barrier, int threads, bool waits) {
    if (barrier < 0 || barrier >= kNamedBarriers) throw std::out_of_range("named barrier");
    meet(named_[running_->block * kNamedBarriers + static_cast<size_t>(barrier)], threads, waits);
  }
  void sync_cluster() { meet(of_all_, static_cast<int>(fibers_.size()), true); }
  void arrive_at_cluster() {
    running_->cluster_phase = of_all_.phases;
    meet(of_all_, static_cast<int>(fibers_.size()), false);
  }
  void wait_for_cluster() {
    wait_until([this, phase = running_->cluster_phase] { return of_all_.phases != phase; });
    running_->known.learn(of_all_.known[1]);
  }
  // A parity tells neighbouring phases apart, not a phase from the one after the next: who waits for a phase must know
  // that the one before it has ended, or the wait may return before its time.
  void wait(Barrier& barrier, uint32_t parity) {
    wait_until([&barrier, parity] { return barrier.parity() != parity; });
    const uint32_t known = running_->known.of(barrier.idx);
    if (barrier.phases > known + 1) {
      throw std::logic_error("thread " + std::to_string(running_->thread_idx.x) + " waits for phase " +
                             std::to_string(barrier.phases - 1) + " of barrier " + std::to_string(barrier.idx) +
                             " and knows of " + std::to_string(known) + " phases");
    }
    running_->known.learn(barrier.known[1]);
  }
  bool block_or(bool mine) {
    Vote& vote = votes_[running_->block];
    const uint64_t turn = running_->votes++;
    if (vote.turn[turn % 2] != turn) {
      vote.turn[turn % 2] = turn;
      vote.any[turn % 2] = false;
    }
    vote.any[turn % 2] = vote.any[turn % 2] || mine;
    named_barrier(0, static_cast<int>(threads_), true);
    return vote.any[turn % 2];
  }

  bool may_use(size_t block) const { return running_ == nullptr ? block < size_ : block == running_->block; }
  bool has_ended(uint32_t shared_address) const {
    const size_t block = shared_address / kBlockBytes;
    return std::all_of(fibers_.begin() + static_cast<ptrdiff_t>(block * threads_),
                       fibers_.begin() + static_cast<ptrdiff_t>((block + 1) * threads_),
                       [](const Fiber& fiber) { return fiber.has_ended; });
  }
  Index block_idx() const { return {first_block_.x + running_->block, first_block_.y, first_block_.z}; }

  // A product or a bulk copy reads the chunk until end_read().
  void begin_read(size_t chunk) {
    check_fenced(chunk);
    ++num_readers_[chunk / kChunk];
  }
  void end_read(size_t chunk) { --num_readers_[chunk / kChunk]; }
  void check_unread(size_t offset, size_t bytes) const {
    for (size_t i = offset / kChunk; i <= (offset + bytes - 1) / kChunk; ++i) {
      if (num_readers_[i] == 0) continue;
      throw std::logic_error(at_offset(i * kChunk) + "is written while a product or a bulk copy may still read it");
    }
  }
  void check_fenced(size_t chunk) const {
    if (std::memcmp(shared + chunk, g_async + chunk, kChunk) == 0) return;
    throw std::logic_error(at_offset(chunk) + "was stored to without fence_async() before a product or a bulk copy");
  }

  Index grid_, first_block_;
  unsigned size_, threads_;
  std::mt19937_64 random_;
  std::map<uint32_t, Barrier> barriers_;
  Fiber* running_ = nullptr;

 private:
  static constexpr int kNamedBarriers = 16;
  static void enter();

  static std::string at_offset(size_t offset) {
    return "shared memory at byte " + std::to_string(offset % kMaxShared) + " of its block ";
  }

  void meet(NamedBarrier& of, int threads, bool waits) {
    const uint64_t phase = of.phases;
    of.known[0].learn(running_->known);
    if (++of.arrived == threads) {
      of.arrived = 0;
      ++of.phases;
      of.known[1] = of.known[0];
    }
    if (!waits) return;
    wait_until([&of, phase] { return of.phases != phase; });
    running_->known.learn(of.known[1]);
  }

  // Mostly one warp is far behind the others: it goes on only when they cannot.
  Fiber* choose() {
    if (random_() % 8192 == 0) late_warp_ = random_() % warps_.size();
    Fiber* next = choose_but(late_warp_);
    if (next != nullptr || late_warp_ == kNoWarp) return next;
    late_warp_ = kNoWarp;
    return choose_but(kNoWarp);
  }
  Fiber* choose_but(size_t late_warp) {
    const size_t first = random_() % fibers_.size();
    for (size_t i = 0; i < fibers_.size(); ++i) {
      Fiber& fiber = fibers_[(first + i) % fibers_.size()];
      if (warp_of(fiber) == late_warp || fiber.has_ended || (fiber.ready && !fiber.ready())) continue;
      fiber.ready = nullptr;
      return &fiber;
    }
    return nullptr;
  }
  size_t warp_of(const Fiber& fiber) const { return fiber.block * warps_per_block_ + fiber.thread_idx.x / kLanes; }
  using Actions = std::deque<std::function<void()>>;
  void act(Actions& actions) {
    const size_t idx = random_() % actions.size();
    const std::function<void()> action = std::move(actions[idx]);
    actions.erase(actions.begin() + static_cast<ptrdiff_t>(idx));
    running_ = nullptr;
    action();
  }

  const std::function<void()>& body_;
  Actions actions_, late_;  // late: when no thread can go on without them
  std::vector<Fiber> fibers_;
  size_t warps_per_block_;
  std::vector<Warp> warps_;
  static constexpr size_t kNoWarp = SIZE_MAX;
  size_t late_warp_ = kNoWarp;
  std::vector<NamedBarrier> named_;
  NamedBarrier of_all_;
  std::vector<Vote> votes_;
  std::vector<uint16_t> num_readers_ = std::vector<uint16_t>(sizeof shared / kChunk);
  ucontext_t scheduler_;
  std::exception_ptr error_;
};

void run_all(Group& group) {
  for (const auto& piece : group.pieces) piece();
  group.pieces.clear();
}

Cluster* g_cluster = nullptr;
std::function<void()> g_rest_before;  // of the kernel before

void Cluster::enter() {
  Cluster& cluster = *g_cluster;
  try {
    cluster.body_();
  } catch (...) {
    cluster.error_ = std::current_exception();
  }
  cluster.running_->has_ended = true;
}

}  // namespace

char* dynamic_shared() { return shared + block_in_cluster() * kMaxShared; }
uint32_t address_in(unsigned block, uint32_t address) { return block * kBlockBytes + address % kBlockBytes; }
uint32_t shared_address(const void* pointer) {
  const auto offset = static_cast<size_t>(static_cast<const char*>(pointer) - shared);
  return static_cast<uint32_t>(offset / kMaxShared * kBlockBytes + kFirstAddress + offset % kMaxShared);
}
namespace {
// In `shared`, of any block.
size_t offset_of(uint32_t address) {
  return address / kBlockBytes * kMaxShared + (address % kBlockBytes - kFirstAddress);
}
}  // namespace
std::byte* at(uint32_t address, size_t bytes) {
  const size_t block = address / kBlockBytes, offset = address % kBlockBytes;
  const bool is_there = offset >= kFirstAddress && offset + bytes <= kFirstAddress + kMaxShared;
  if (!is_there || !g_cluster->may_use(block)) {
    throw std::out_of_range("shared address " + std::to_string(address));
  }
  return reinterpret_cast<std::byte*>(shared + offset_of(address));
}
void store_bytes(uint32_t address, const void* from, size_t bytes) {
  std::byte* to = at(address, bytes);
  const size_t offset = offset_of(address);
  const bool changes = std::memcmp(to, from, bytes) != 0;
  if (changes) g_cluster->check_unread(offset, bytes);
  // Several warpgroups may store the same: what one of them has fenced the others need not.
  if (!changes && std::memcmp(g_async + offset, from, bytes) == 0) return;
  std::memcpy(to, from, bytes);
  g_cluster->running_->stores.emplace_back(offset, bytes);
}
void fence_async() {
  auto& stores = g_cluster->running_->stores;
  for (const auto& [offset, bytes] : stores) std::memcpy(g_async + offset, shared + offset, bytes);
  stores.clear();
}
void fence_async_memory(uint32_t address, uint32_t bytes) {
  const size_t offset = offset_of(address);
  std::memcpy(g_async + offset, shared + offset, bytes);
  g_cluster->running_->has_acquired = false;
}
void note_acquire() { g_cluster->running_->has_acquired = true; }
void check_async_memory() {
  if (!g_cluster->running_->has_acquired) return;
  throw std::logic_error("the copy engine writes memory behind an acquire without fence_async_memory()");
}
void receive(uint32_t address, const void* from, size_t bytes) {
  if (g_cluster->has_ended(address)) throw std::logic_error("bytes for a block that has ended");
  std::memcpy(at(address, bytes), from, bytes);
}
void load_in(uint32_t address, void* to, size_t bytes) {
  if (address / kBlockBytes >= cluster_size() || g_cluster->has_ended(address)) {
    throw std::logic_error("memory of a block that has ended");
  }
  std::memcpy(to, shared + offset_of(address), bytes);
}
void check_async_write(uint32_t chunk) {
  g_cluster->check_fenced(offset_of(chunk));
  g_cluster->check_unread(offset_of(chunk), kChunk);
}
void write_async(uint32_t chunk, const std::byte* from) {
  std::byte* to = at(chunk, kChunk);
  check_async_write(chunk);
  std::memcpy(to, from, kChunk);
  std::memcpy(g_async + offset_of(chunk), from, kChunk);
}

int num_threads() { return static_cast<int>(g_cluster->threads_); }
unsigned cluster_size() { return g_cluster->size_; }
unsigned block_in_cluster() { return g_cluster->running_->block; }
const Index& thread_idx() { return g_cluster->running_->thread_idx; }
Index block_idx() { return g_cluster->block_idx(); }
const Index& grid_dim() { return g_cluster->grid_; }

void launch(Index grid, unsigned threads, size_t shared_bytes, uint64_t seed, const std::function<void()>& body,
            unsigned cluster) {
  if (shared_bytes > kMaxShared) throw std::out_of_range("shared memory");
  if (cluster > kMaxCluster || grid.x % cluster != 0) throw std::invalid_argument("cluster");
  const int poison = seed % 2 == 1 ? 0xFF : 0x3C;  // NaN or hundredths; as an index it leads nowhere
  const unsigned of_row = grid.x / cluster;
  std::vector<unsigned> clusters(size_t{of_row} * grid.y * grid.z);
  std::iota(clusters.begin(), clusters.end(), 0u);
  std::mt19937_64 random(seed);
  for (size_t last = clusters.size(); last > 1; --last) std::swap(clusters[last - 1], clusters[random() % last]);
  for (const unsigned idx : clusters) {
    const unsigned x = idx % of_row * cluster, row = idx / of_row;
    std::memset(shared, poison, kMaxShared * cluster);
    std::memset(g_async, poison, kMaxShared * cluster);
    const Index first_block = {x, row % grid.y, row / grid.y};
    Cluster blocks(grid, first_block, cluster, threads, seed + x + uint64_t{row} * grid.x, body);
    g_cluster = &blocks;
    blocks.run();
  }
}

void wait_until(const std::function<bool()>& ready) { g_cluster->wait_until(ready); }
void later(std::function<void()> action) { g_cluster->later(std::move(action)); }
void set_kernel_before(std::function<void()> rest) { g_rest_before = std::move(rest); }
void wait_for_kernel_before() {
  if (g_rest_before == nullptr) return;
  later([] {
    if (const auto rest = std::exchange(g_rest_before, nullptr)) rest();
  });
  wait_until([] { return g_rest_before == nullptr; });
}
void let_kernel_behind_start() {
  if (g_rest_before != nullptr) throw std::logic_error("lets the next kernel start before the one before has ended");
}
void begin(Work kind, std::function<void()> piece, std::vector<uint32_t> chunks) {
  Groups& groups = g_cluster->running_->groups[static_cast<size_t>(kind)];
  for (const uint32_t chunk : chunks) {
    at(chunk, kChunk);
    g_cluster->begin_read(offset_of(chunk));
    groups.back().chunks.push_back(static_cast<uint32_t>(offset_of(chunk)));
  }
  groups.back().pieces.push_back(std::move(piece));
  if (g_cluster->random_() % 8 != 0) return;
  for (auto& group : groups) run_all(group);  // each adds to what those before it gave
}
void commit(Work kind) { g_cluster->running_->groups[static_cast<size_t>(kind)].emplace_back(); }
void wait_groups(Work kind, size_t num_pending) {
  g_cluster->wait_for_work();
  Groups& groups = g_cluster->running_->groups[static_cast<size_t>(kind)];
  for (; groups.size() > num_pending + 1; groups.pop_front()) {
    run_all(groups.front());
    for (const uint32_t chunk : groups.front().chunks) g_cluster->end_read(chunk);
  }
}
void as_warpgroup(uint64_t site) {
  uint64_t& path = g_cluster->running_->path;
  path = (path + site) * 0x9E3779B97F4A7C15u;
}
const Given* exchange(const Given& mine) { return g_cluster->exchange(mine); }
void named_barrier(int barrier, int threads, bool waits) { g_cluster->named_barrier(barrier, threads, waits); }
void sync_cluster() { g_cluster->sync_cluster(); }
void arrive_at_cluster() { g_cluster->arrive_at_cluster(); }
void wait_for_cluster() { g_cluster->wait_for_cluster(); }
bool block_or(bool mine) { return g_cluster->block_or(mine); }

void init_barrier(uint32_t address, uint32_t count) {
  const auto [at, is_new] = g_cluster->barriers_.try_emplace(address);
  if (!is_new) throw std::logic_error("a barrier is initialised again");
  at->second.idx = g_cluster->barriers_.size() - 1;
  at->second.count = at->second.pending = count;
}
void arrive(uint32_t address, uint32_t expected_bytes) {
  if (g_cluster->has_ended(address)) throw std::logic_error("arrival at a block that has ended");
  Barrier& barrier = g_cluster->barriers_.at(address);
  if (barrier.pending == 0) throw std::logic_error("one arrival too many");
  barrier.known[0].learn(g_cluster->running_->known);
  barrier.bytes += expected_bytes;
  --barrier.pending;
  barrier.end_phase();
}
void complete_bytes(uint32_t address, uint32_t bytes) {
  if (g_cluster->has_ended(address)) throw std::logic_error("bytes for a block that has ended");
  Barrier& barrier = g_cluster->barriers_.at(address);
  barrier.bytes -= bytes;
  barrier.end_phase();
}
void wait(uint32_t address, uint32_t parity) {
  at(address, 8);  // its own block's
  g_cluster->wait(g_cluster->barriers_.at(address), parity);
}

}  // namespace tessella::emulator
