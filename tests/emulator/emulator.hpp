// Runs device code on the CPU: every thread of a block is a fiber, and what only a GPU has (barriers, warp votes, the
// copy engine, matrix instructions) is done by the headers beside this one, which stand in for src/cuda/device/ptx.
//
// Fibers take turns in an order that a seed decides, in which one warp or another is far behind, copies land and matrix
// instructions read their operands as early or as late as the seed likes. A missing wait shows as a wrong result, a
// wait for something that never comes as a Deadlock, a register of an operand written before its product is there as a
// std::logic_error. So is a wait that skips a phase of its barrier, when that phase has ended; where it has not, such a
// wait returns at once, which looks like a second wait for the phase before, and wrong data shows it. What a thread
// knows of phases it has by its own waits, and from others at each barrier, vote and shuffle.
//
// Shared memory is there twice, for PTX's two proxies: as threads have it, and as the copy engine and the matrix unit
// see it. A thread's stores reach the other one when that thread calls fence_async(); where the two differ, a product
// or a bulk copy that begins there is a std::logic_error. So is a change to bytes that a product or a bulk copy under
// way may still read: until every warp has waited for its own of a warpgroup's products, as PTX does not say which rows
// of A a warp reads. Of a barrier between the fence and the other threads, and of a bulk copy's bytes before they are
// there, the order of the fibers decides. Stores through pointers, as those of a block's Item, are never fenced. Loads
// are done when their thread arrives at a barrier: a copy over what they read needs no fence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <vector>

namespace tessella::emulator {

struct Deadlock : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Index {
  unsigned x = 0, y = 0, z = 0;
};

// Of the fiber that runs.
int num_threads();  // of its block
unsigned cluster_size();
unsigned block_in_cluster();
const Index& thread_idx();
Index block_idx();
const Index& grid_dim();

// Runs body() as every thread of every block, the blocks of a cluster together, clusters one after the other in an
// order of the seed. grid.x: a multiple of `cluster`. shared_bytes: of a block's dynamic shared memory, poisoned
// before. Throws what a thread throws, and Deadlock.
void launch(Index grid, unsigned threads, size_t shared_bytes, uint64_t seed, const std::function<void()>& body,
            unsigned cluster = 1);

// Dynamic shared memory. As on a GPU its addresses begin behind 1024 bytes of the system's, and above the bits of a
// offset in a block they hold which block of its cluster it is.
inline constexpr size_t kMaxShared = 232448;
inline constexpr uint32_t kBlockBytes = 1 << 24;
inline constexpr unsigned kMaxCluster = 8;
char* dynamic_shared();
uint32_t shared_address(const void* pointer);
// The same offset in another block of the cluster.
uint32_t address_in(unsigned block, uint32_t address);
// Memory at a shared address, of the block that runs; where none does, as when a copy lands, of any. Throws
// std::out_of_range.
std::byte* at(uint32_t address, size_t bytes);
template <typename T>
T load(uint32_t address) {
  T value;
  std::memcpy(&value, at(address, sizeof value), sizeof value);
  return value;
}
void store_bytes(uint32_t address, const void* from, size_t bytes);
template <typename T>
void store(uint32_t address, const T& value) {
  store_bytes(address, &value, sizeof value);
}
void fence_async();
// Of all threads' stores there, and of global memory, which has two proxies too: behind note_acquire(), by which a
// thread has seen what another block wrote, check_async_memory() throws until then.
void fence_async_memory(uint32_t address, uint32_t bytes);
void note_acquire();
void check_async_memory();
// What another block of the cluster has sent lands, as a thread's store. Throws std::logic_error where that block has
// ended.
void receive(uint32_t address, const void* from, size_t bytes);
// What lies in the memory of any block of the cluster. Throws std::logic_error where that block has ended.
void load_in(uint32_t address, void* to, size_t bytes);

// What the copy engine writes: chunks of kChunk bytes, in any block of the cluster. Checked when the copy begins and
// when it lands.
inline constexpr uint32_t kChunk = 16;
void check_async_write(uint32_t chunk);
void write_async(uint32_t chunk, const std::byte* from);

// The fiber stops until ready() says true.
void wait_until(const std::function<bool()>& ready);

// Something that happens on its own, at some time, at the latest when no thread can go on without it.
void later(std::function<void()> action);

// What the kernel before, which the next launch overlaps, still has to do: it does it at some time behind the first
// thread that waits for its end. Without one a wait for it returns at once.
void set_kernel_before(std::function<void()> rest);
void wait_for_kernel_before();
// Throws std::logic_error where the kernel before has not ended: what comes next counts on its end.
void let_kernel_behind_start();

// Groups of a thread's asynchronous work, done in order: some time after it is begun, at the latest when its group is
// waited for. chunks: addresses of what it reads of shared memory as the copy engine and the matrix unit see it.
enum class Work { copies, products, boxes };
void begin(Work kind, std::function<void()> piece, std::vector<uint32_t> chunks = {});
void commit(Work kind);
void wait_groups(Work kind, size_t num_pending);

// What all threads of a warpgroup come to at the same sites in the same order, or the block ends with a
// std::logic_error.
void as_warpgroup(uint64_t site);

// What every lane of the calling warp gives, in all of them.
struct Given {
  uint32_t words[4];
};
const Given* exchange(const Given& mine);

// Counted barriers: named ones, and those in shared memory.
void named_barrier(int barrier, int threads, bool waits);
void sync_cluster();
void arrive_at_cluster();
void wait_for_cluster();
// Whether some thread of the block says so; all of them come here.
bool block_or(bool mine);
void init_barrier(uint32_t address, uint32_t count);
void arrive(uint32_t address, uint32_t expected_bytes);
void complete_bytes(uint32_t address, uint32_t bytes);
void wait(uint32_t address, uint32_t parity);

}  // namespace tessella::emulator
