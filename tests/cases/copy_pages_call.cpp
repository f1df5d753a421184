#include "cases/copy_pages_call.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <sstream>

#include "cases/random.hpp"

namespace tessella::tests {

std::string to_string(const CopyPagesCase& c) {
  std::ostringstream line;
  line << "kernel=" << c.kernel << " dtype=" << c.dtype << " num_pools=" << c.num_pools << " num_pages=" << c.num_pages
       << " page_size=" << c.page_size << " heads=" << c.heads << " head_dim=" << c.head_dim
       << " heads_first=" << c.heads_first << " gap=" << c.gap << " offset=" << c.offset << " guard=" << c.guard
       << " num_pairs=" << c.num_pairs << " num_threads=" << c.num_threads << " seed=" << c.seed;
  return line.str();
}

CopyPagesCase random_copy_pages(const std::string& kernel, uint64_t seed) {
  Random random(seed);
  CopyPagesCase c{.kernel = kernel, .seed = seed};
  const int32_t dtypes[] = {TESSELLA_F64, TESSELLA_F32, TESSELLA_BF16, TESSELLA_F16, TESSELLA_U8, TESSELLA_F8E4M3FN};
  c.dtype = random.one_of(dtypes);
  c.num_pools = static_cast<int32_t>(random.chance(0.1) ? random.in(60, 170) : random.in(1, 5));
  c.num_pages = random.in(random.chance(0.05) ? 0 : 1, 20);
  const int64_t sizes[] = {1, 2, 3, 16};
  c.page_size = random.one_of(sizes);
  c.heads = random.in(1, 3);
  const int64_t dims[] = {1, 3, 8, 16, 48, 64, 100, 128};
  c.head_dim = random.one_of(dims);
  c.heads_first = random.chance(0.4);
  c.gap = random.chance(0.3) ? random.in(1, 16) : 0;
  c.offset = random.chance(0.3) ? static_cast<int32_t>(random.below(16)) : 0;
  c.guard = random.chance(0.3);
  c.num_pairs = random.in(0, c.num_pages / 2);
  c.num_threads = static_cast<int32_t>(random.below(4));
  return c;
}

CopyPagesCall::CopyPagesCall(const CopyPagesCase& c) : c_(c) {
  Random random(c.seed + 1000);
  for (int32_t i = 0; i < c.num_pools; ++i) {
    const int64_t head_dim = c.head_dim + (i % 2 == 0 ? 0 : 16);  // pools differ
    Tensors::Tensor& pool = tensors_.add(c.dtype, {c.num_pages, c.page_size, c.heads, head_dim}, c.heads_first, c.gap,
                                         c.offset, c.guard, true);
    for (size_t byte = 0; byte < pool.memory.size(); ++byte) {
      pool.memory.data()[byte] = static_cast<std::byte>(random.bits());
    }
    pools_.push_back(&pool);
    pool_tensors_.push_back(pool.tensor);
  }
  std::vector<int32_t> pages(static_cast<size_t>(c.num_pages));
  std::iota(pages.begin(), pages.end(), 0);
  for (size_t i = pages.size(); i > 1; --i) {
    std::swap(pages[i - 1], pages[static_cast<size_t>(random.below(static_cast<int64_t>(i)))]);
  }
  // Targets are the first pages of the shuffled list, sources the others.
  std::vector<int32_t> pairs;
  for (int64_t i = 0; i < c.num_pairs; ++i) {
    const auto target = static_cast<size_t>(i);
    const auto source = static_cast<size_t>(random.in(c.num_pairs, c.num_pages - 1));
    const bool is_skipped = random.chance(0.15), is_itself = random.chance(0.1);
    pairs.push_back(is_skipped  ? -1 - static_cast<int32_t>(random.below(5))
                    : is_itself ? pages[target]
                                : pages[source]);
    pairs.push_back(pages[target]);
  }
  pairs_ = &tensors_.add_table(pairs, {c.num_pairs, 2});
  args_.pools = pool_tensors_.data();
  args_.num_pools = c.num_pools;
  args_.pairs = &pairs_->tensor;
  options_.num_threads = c.num_threads;
  options_.kernel = c_.kernel.empty() ? nullptr : c_.kernel.c_str();
}

tessella_status CopyPagesCall::run() {
  remember();
  if (!c_.kernel.starts_with("cuda.")) return tessella_copy_pages(&args_, &options_, nullptr);
  tessella_status status = TESSELLA_OK;
  spoiled_ = tensors_.run_on_gpu(c_.guard, [&](GpuTwin& twin) {
    std::vector<tessella_tensor> pools;
    for (const tessella_tensor& pool : pool_tensors_) pools.push_back(twin.twin(pool, true));
    const tessella_tensor pairs = twin.twin(pairs_->tensor, true);
    tessella_copy_pages_args args = args_;
    args.pools = pools.data();
    args.pairs = &pairs;
    return status = tessella_copy_pages(&args, &options_, twin.stream());
  });
  return status;
}

std::string CopyPagesCall::check_bounds() const { return tensors_.spoiled(tensors_.all_elements()); }

std::string CopyPagesCall::check() {
  if (!spoiled_.empty()) return spoiled_ + ", " + to_string(c_);
  std::vector<Tensors::Written> may;
  for (const Tensors::Tensor* pool : pools_) {
    Tensors::Bytes written(pool->memory.size(), false);
    const int64_t first = static_cast<std::byte*>(pool->tensor.data) - pool->memory.data();
    for (int64_t pair = 0; pair < c_.num_pairs; ++pair) {
      const int32_t from = pairs()[2 * pair], into = pairs()[2 * pair + 1];
      if (from < 0 || from >= c_.num_pages || into < 0 || into >= c_.num_pages) continue;
      for (int64_t row = 0; row < c_.page_size; ++row) {
        for (int64_t head = 0; head < c_.heads; ++head) {
          const int64_t bytes = bytes_of(c_.dtype, pool->tensor.shape[3]);
          const int64_t offset = first + byte_at(pool->tensor, into, row, head);
          std::fill_n(written.begin() + offset, bytes, true);
          const std::byte* source = pool->before.data() + first + byte_at(pool->tensor, from, row, head);
          if (std::memcmp(pool->memory.data() + offset, source, static_cast<size_t>(bytes)) != 0) {
            return "page " + std::to_string(into) + " is not page " + std::to_string(from) + ", " + to_string(c_);
          }
        }
      }
    }
    may.push_back({pool, std::move(written)});
  }
  if (std::string message = tensors_.spoiled(may); !message.empty()) return message + ", " + to_string(c_);
  return "";
}

}  // namespace tessella::tests
