// PagedCache: a walk of decoding in which attention over the cache is attention over the rows kept beside it; what it
// reports as errors.
#include "tessella/paged_cache.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tessella/attention.hpp"

namespace ts = tessella;

namespace {

constexpr int64_t kNumPages = 16, kPageSize = 4, kHeadsQ = 4, kHeadsKv = 2, kDim = 16, kDimV = 8;
constexpr int kLayers = 2;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

ts::TensorView view(const std::vector<float>& data, int64_t heads, int64_t dim) {
  return ts::view(const_cast<float*>(data.data()), ts::f32, {1, std::ssize(data) / (heads * dim), heads, dim});
}

class Walk {
 public:
  explicit Walk(ts::PagedCache cache) : cache_(std::move(cache)) {}

  void run() {
    for (int step = 0; step < 150; ++step) {
      const int action = static_cast<int>(random_() % 8);
      if (action == 0 || rows_.empty()) {
        rows_[cache_.new_sequence()];
        continue;
      }
      const int64_t id = std::next(rows_.begin(), static_cast<int64_t>(random_() % rows_.size()))->first;
      if (action == 1) {
        rows_[cache_.fork(id)] = rows_.at(id);
      } else if (action == 2) {
        truncate(id, static_cast<int64_t>(random_() % static_cast<size_t>(cache_.seqlens({id})[0] + 1)));
      } else {
        ASSERT_NO_FATAL_FAILURE(append(id, static_cast<int64_t>(random_() % 6 + 1))) << "step " << step;
      }
    }
    EXPECT_GT(num_errors_, 0);
    EXPECT_GT(num_appends_, 50);
  }

 private:
  struct Rows {
    std::vector<float> k, v;
  };
  std::vector<float> random(int64_t size) {
    std::vector<float> numbers(static_cast<size_t>(size));
    for (float& number : numbers) number = std::normal_distribution<float>()(random_);
    return numbers;
  }

  void truncate(int64_t id, int64_t length) {
    cache_.truncate({id}, {length});
    for (Rows& rows : rows_.at(id)) {
      rows.k.resize(static_cast<size_t>(length * kHeadsKv * kDim));
      rows.v.resize(static_cast<size_t>(length * kHeadsKv * kDimV));
    }
  }

  void append(int64_t id, int64_t num_new) {
    const int32_t length = cache_.seqlens({id})[0];
    try {
      cache_.reserve({id}, {length + num_new});
    } catch (const ts::Error& error) {
      ASSERT_EQ(error.code(), ts::ErrorCode::out_of_memory) << error.what();
      ASSERT_EQ(cache_.seqlens({id})[0], length);
      while (!rows_.empty()) {
        cache_.release({rows_.begin()->first});
        rows_.erase(rows_.begin());
      }
      ASSERT_EQ(cache_.pages().num_free(), kNumPages);
      ++num_errors_;
      return;
    }
    ++num_appends_;
    const ts::PageTable table = cache_.page_table({id});
    const std::vector<int32_t> lengths = cache_.seqlens({id});
    const ts::TensorView seqlens = ts::view(lengths.data(), ts::i32, {1});
    for (int layer = 0; layer < kLayers; ++layer) {
      const auto k = random(num_new * kHeadsKv * kDim), v = random(num_new * kHeadsKv * kDimV);
      const auto q = random(num_new * kHeadsQ * kDim);
      cache_.append({.k_new = view(k, kHeadsKv, kDim),
                     .v_new = view(v, kHeadsKv, kDimV),
                     .seqlens_kv = seqlens,
                     .page_table = table.view()},
                    layer);
      Rows& rows = rows_.at(id)[static_cast<size_t>(layer)];
      rows.k.insert(rows.k.end(), k.begin(), k.end());
      rows.v.insert(rows.v.end(), v.begin(), v.end());
      std::vector<float> out(static_cast<size_t>(num_new * kHeadsQ * kDimV), kNan), expected = out;
      ts::ForwardArgs args{
          .q = view(q, kHeadsQ, kDim), .k = cache_.k(layer), .v = cache_.v(layer), .out = view(out, kHeadsQ, kDimV)};
      args.seqlens_kv = seqlens;
      args.page_table = table.view();
      ts::forward(args, {.mask = ts::Mask::causal()});
      args = {.q = args.q,
              .k = view(rows.k, kHeadsKv, kDim),
              .v = view(rows.v, kHeadsKv, kDimV),
              .out = view(expected, kHeadsQ, kDimV)};
      ts::forward(args, {.mask = ts::Mask::causal()});
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_FALSE(std::isnan(out[i]));
        ASSERT_NEAR(out[i], expected[i], 1e-5f) << "layer " << layer << " element " << i;
      }
    }
  }

  ts::PagedCache cache_;
  std::mt19937_64 random_{7};
  std::map<int64_t, std::array<Rows, kLayers>> rows_;
  int num_errors_ = 0, num_appends_ = 0;
};

TEST(PagedCache, WalkInMemoryOfItsOwn) {
  Walk(ts::PagedCache({.num_pages = kNumPages,
                       .page_size = kPageSize,
                       .heads_kv = kHeadsKv,
                       .head_dim = kDim,
                       .head_dim_v = kDimV,
                       .num_layers = kLayers}))
      .run();
}

// Pools of the caller's, full of NaN, in both orders of token and head.
TEST(PagedCache, WalksInMemoryOfTheCaller) {
  for (const bool heads_first : {false, true}) {
    std::vector<std::vector<float>> memory;
    std::vector<ts::TensorView> pools[2];
    for (int layer = 0; layer < kLayers; ++layer) {
      for (const int is_v : {0, 1}) {
        const int64_t dim = is_v != 0 ? kDimV : kDim;
        memory.emplace_back(static_cast<size_t>(kNumPages * kPageSize * kHeadsKv * dim), kNan);
        void* data = memory.back().data();
        pools[is_v].push_back(heads_first ? ts::view_bhsd(data, ts::f32, {kNumPages, kHeadsKv, kPageSize, dim})
                                          : ts::view(data, ts::f32, {kNumPages, kPageSize, kHeadsKv, dim}));
      }
    }
    SCOPED_TRACE(heads_first);
    Walk(ts::PagedCache(pools[0], pools[1])).run();
  }
}

// A model with a window generates, and evicts as it goes: the same bits as in a cache that keeps all, in fewer pages.
// The keys that are kept in front stay.
TEST(PagedCache, AWindowKeepsFewPages) {
  constexpr int64_t kWindow = 6, kSteps = 40;
  for (const int64_t keep_first : {0, 3}) {
    ts::PagedCache cache({.num_pages = 8, .page_size = kPageSize, .heads_kv = kHeadsKv, .head_dim = kDim});
    ts::PagedCache all({.num_pages = 16, .page_size = kPageSize, .heads_kv = kHeadsKv, .head_dim = kDim});
    const auto other = cache.new_sequence();  // has page 0, which holds NaN
    cache.reserve({other}, {1});
    for (const ts::TensorView& pool : cache.pools()) {
      std::fill_n(static_cast<float*>(pool.data()), kPageSize * kHeadsKv * kDim, kNan);
    }
    const ts::Mask mask = ts::Mask::window(kWindow, 0) & ts::Mask::keep_first(keep_first);
    std::mt19937 random(3);
    const int64_t id = cache.new_sequence(), kept = all.new_sequence();
    int64_t most = 0;
    for (int64_t length = 1; length <= kSteps; ++length) {
      std::vector<float> k(kHeadsKv * kDim), v(k.size()), q(kHeadsQ * kDim), out[2];
      for (std::vector<float>* of : {&k, &v, &q}) {
        for (float& number : *of) number = std::normal_distribution<float>()(random);
      }
      for (const bool evicts : {true, false}) {
        ts::PagedCache& of = evicts ? cache : all;
        const std::vector<int64_t> ids = {evicts ? id : kept};
        of.reserve(ids, {length});
        if (evicts) of.evict(ids, {length - 1 - kWindow}, keep_first);
        const ts::PageTable table = of.page_table(ids);
        const std::vector<int32_t> lengths = of.seqlens(ids);
        const auto seqlens = ts::view(lengths.data(), ts::i32, {1});
        of.append({.k_new = view(k, kHeadsKv, kDim),
                   .v_new = view(v, kHeadsKv, kDim),
                   .seqlens_kv = seqlens,
                   .page_table = table.view()});
        out[evicts ? 0 : 1].assign(q.size(), kNan);
        ts::forward({.q = view(q, kHeadsQ, kDim),
                     .k = of.k(),
                     .v = of.v(),
                     .out = view(out[evicts ? 0 : 1], kHeadsQ, kDim),
                     .seqlens_kv = seqlens,
                     .page_table = table.view()},
                    {.mask = mask});
      }
      ASSERT_EQ(std::memcmp(out[0].data(), out[1].data(), out[0].size() * sizeof(float)), 0) << "length " << length;
      most = std::max(most, 8 - cache.pages().num_free());
    }
    // One of the other sequence, and of seven keys at most three pages.
    EXPECT_EQ(most, keep_first > 0 ? 5 : 4);
    EXPECT_EQ(16 - all.pages().num_free(), 10);
  }
}

// Each thread forks and appends to sequences of its own in pages of all, and finds its own rows.
TEST(PagedCache, ThreadsShareACache) {
  ts::PagedCache cache({.num_pages = 64, .page_size = 4, .heads_kv = 1, .head_dim = 1});
  const auto work = [&](float first) {
    const auto append = [&](int64_t id, std::vector<float> rows) {
      const int32_t length = cache.seqlens({id})[0] + static_cast<int32_t>(rows.size());
      cache.reserve({id}, {length});
      const ts::PageTable table = cache.page_table({id});
      cache.append({.k_new = view(rows, 1, 1),
                    .v_new = view(rows, 1, 1),
                    .seqlens_kv = ts::view(&length, ts::i32, {1}),
                    .page_table = table.view()});
    };
    const auto expect_rows = [&](int64_t id, const std::vector<float>& rows) {
      const ts::PageTable table = cache.page_table({id});
      for (size_t i = 0; i < rows.size(); ++i) {
        ASSERT_EQ(static_cast<const float*>(cache.k().data())[table.entries[i / 4] * 4 + static_cast<int>(i % 4)],
                  rows[i]);
      }
    };
    for (int round = 0; round < 2000 && !testing::Test::HasFailure(); ++round, first += 10) {
      const int64_t parent = cache.new_sequence();
      append(parent, {first, first + 1, first + 2, first + 3, first + 4});
      const int64_t child = cache.fork(parent);
      append(child, {first + 5});
      append(parent, {first + 6});
      expect_rows(child, {first, first + 1, first + 2, first + 3, first + 4, first + 5});
      expect_rows(parent, {first, first + 1, first + 2, first + 3, first + 4, first + 6});
      cache.release({parent, child});
    }
  };
  std::vector<std::thread> threads;
  for (const float first : {0.f, 100000.f, 200000.f, 300000.f}) threads.emplace_back(work, first);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(cache.pages().num_free(), 64);
}

// A fork's first write copies numbers and their scales, in every layer; attention reads what was appended.
TEST(PagedCache, QuantizedRowsHaveTheirScales) {
  constexpr int64_t kNew = 3;
  for (const ts::DType dtype : {ts::f8e4m3fn, ts::i8, ts::i4}) {
    const int64_t row_bytes = kDim * ts::size_bits(dtype) / 8;
    for (const ts::CacheScale scale : {ts::CacheScale::token, ts::CacheScale::head, ts::CacheScale::tensor}) {
      ts::PagedCache cache({.num_pages = 8,
                            .page_size = kPageSize,
                            .heads_kv = kHeadsKv,
                            .head_dim = kDim,
                            .dtype = dtype,
                            .num_layers = kLayers,
                            .scale = scale});
      const bool is_computed = scale == ts::CacheScale::token;
      std::mt19937 random(7);
      std::vector<float> k(kNew * kHeadsKv * kDim), v(k.size());
      for (float& number : k) number = std::normal_distribution<float>(0, 2)(random);
      for (float& number : v) number = std::normal_distribution<float>(0, 2)(random);
      const int64_t parent = cache.new_sequence();
      cache.reserve({parent}, {kNew});
      const ts::PageTable table = cache.page_table({parent});
      const std::vector<int32_t> lengths = cache.seqlens({parent});
      const auto seqlens = ts::view(lengths.data(), ts::i32, {1});
      for (int layer = 0; layer < kLayers; ++layer) {
        cache.append({.k_new = view(k, kHeadsKv, kDim),
                      .v_new = view(v, kHeadsKv, kDim),
                      .seqlens_kv = seqlens,
                      .page_table = table.view()},
                     layer);
      }
      const std::vector<float> q(kHeadsQ * kDim, 0.25F);
      std::vector<float> out(q.size()), expected(q.size());
      ts::forward({.q = view(q, kHeadsQ, kDim),
                   .k = cache.k(1),
                   .v = cache.v(1),
                   .out = view(out, kHeadsQ, kDim),
                   .k_scale = cache.k_scale(1),
                   .v_scale = cache.v_scale(1),
                   .seqlens_kv = seqlens,
                   .page_table = table.view()},
                  {.scale_block = cache.scale_block(), .kernel = "reference.attention"});
      ts::forward({.q = view(q, kHeadsQ, kDim),
                   .k = view(k, kHeadsKv, kDim),
                   .v = view(v, kHeadsKv, kDim),
                   .out = view(expected, kHeadsQ, kDim)});
      const float near = is_computed && dtype != ts::i4 ? 0.3F : 1.5F;  // scales of 1 leave whole numbers
      for (size_t i = 0; i < out.size(); ++i) ASSERT_NEAR(out[i], expected[i], near);

      const int64_t child = cache.fork(parent);
      cache.reserve({child}, {kNew + 1});
      const int32_t old_page = table.entries[0], new_page = cache.page_table({child}).entries[0];
      ASSERT_NE(old_page, new_page);
      for (int layer = 0; layer < kLayers; ++layer) {
        for (const ts::TensorView& pool : {cache.k(layer), cache.v(layer)}) {
          const auto page = [&](int32_t idx) {
            return static_cast<const char*>(pool.data()) + idx * kPageSize * kHeadsKv * row_bytes;
          };
          EXPECT_EQ(std::memcmp(page(old_page), page(new_page), kNew * kHeadsKv * static_cast<size_t>(row_bytes)), 0);
        }
        for (const ts::TensorView& scales : {cache.k_scale(layer), cache.v_scale(layer)}) {
          const auto* values = static_cast<const float*>(scales.data());
          for (int64_t i = 0; i < (is_computed ? kNew * kHeadsKv : 0); ++i) {
            EXPECT_EQ(values[new_page * kPageSize * kHeadsKv + i], values[old_page * kPageSize * kHeadsKv + i]);
            EXPECT_GT(values[old_page * kPageSize * kHeadsKv + i], 0);
          }
          EXPECT_TRUE(is_computed || values[0] == 1);
        }
      }
      EXPECT_EQ(cache.scale_block(), is_computed ? 1 : 0);
    }
  }
  const ts::PagedCache floats({.num_pages = 2, .page_size = 4, .heads_kv = 1, .head_dim = 4});
  EXPECT_FALSE(floats.k_scale().is_present());
}

template <typename Fn>
void expect_invalid(const Fn& fn, const std::string& sentence) {
  try {
    fn();
    ADD_FAILURE() << sentence;
  } catch (const ts::Error& error) {
    EXPECT_EQ(error.code(), ts::ErrorCode::invalid_argument);
    EXPECT_EQ(std::string(error.what()).substr(0, sentence.size()), sentence);
  }
}

// Pages that have scales of their own, given with the memory: a page that is copied reads as before.
TEST(PagedCache, AForkKeepsTheScalesOfItsPages) {
  constexpr int64_t kPages = 4;
  std::vector<int8_t> k(kPages * kPageSize * kHeadsKv * kDim, 1), v(k.size(), 2);
  std::vector<float> k_scale(kPages * kHeadsKv), of_all = {3};
  for (size_t i = 0; i < k_scale.size(); ++i) k_scale[i] = static_cast<float>(i + 1);
  const auto pool = [&](std::vector<int8_t>& of) {
    return ts::view(of.data(), ts::i8, {kPages, kPageSize, kHeadsKv, kDim});
  };
  ts::PagedCache cache({pool(k)}, {pool(v)}, {ts::view(k_scale.data(), ts::f32, {kPages, 1, kHeadsKv})},
                       {ts::view(of_all.data(), ts::f32, {1})});
  EXPECT_EQ(cache.scale_pools().size(), 1U);
  const int64_t parent = cache.new_sequence();
  cache.reserve({parent}, {1});
  const int64_t child = cache.fork(parent);
  cache.reserve({child}, {2});
  const int32_t source = cache.page_table({parent}).entries[0], target = cache.page_table({child}).entries[0];
  ASSERT_NE(source, target);
  for (int64_t head = 0; head < kHeadsKv; ++head) {
    EXPECT_EQ(k_scale[static_cast<size_t>(target * kHeadsKv + head)],
              k_scale[static_cast<size_t>(source * kHeadsKv + head)]);
  }
}

TEST(PagedCache, ItsErrors) {
  std::vector<float> memory(1024);
  const auto pool = [&](int64_t num_pages, ts::Device device = {}) {
    return ts::view(memory.data(), ts::f32, {num_pages, 4, 2, 8}, {}, device);
  };
  const auto second = ts::view(memory.data() + 512, ts::f32, {4, 4, 2, 8});
  expect_invalid([&] { ts::PagedCache({.num_pages = 4, .page_size = 4, .heads_kv = 0, .head_dim = 8}); },
                 "PagedCache: heads_kv is 0, expected 1 to 2147483647");
  expect_invalid([&] { ts::PagedCache({.num_pages = -4, .page_size = 4, .heads_kv = 1, .head_dim = 8}); },
                 "PagedCache: num_pages is -4, expected 1 to 2147483647");
  expect_invalid(
      [&] { ts::PagedCache({.num_pages = 4, .page_size = 4, .heads_kv = 1, .head_dim = 8, .head_dim_v = -1}); },
      "PagedCache: head_dim_v is -1, expected 0 to 2147483647");
  expect_invalid(
      [&] {
        ts::PagedCache({pool(4), pool(4)}, {second});
      },
      "PagedCache: v.size() is 1, expected 2 as of k");
  expect_invalid([&] { ts::PagedCache({pool(4)}, {pool(8)}); }, "PagedCache: v[0].shape[0] is 8, expected 4 as k[0]");
  expect_invalid(
      [&] {
        ts::PagedCache({pool(4)}, {ts::view(memory.data() + 512, ts::f32, {4, 4, 1, 8})});
      },
      "PagedCache: v[0].shape[2] is 1, expected 2 as k[0]");
  expect_invalid(
      [&] {
        ts::PagedCache({pool(4)}, {ts::view(memory.data() + 512, ts::f16, {4, 4, 2, 8})});
      },
      "PagedCache: v[0].dtype is f16, expected f32");
  expect_invalid([&] { ts::PagedCache({pool(4)}, {pool(4)}); }, "PagedCache: v[0] overlaps k[0], expected memory");
  expect_invalid(
      [&] {
        ts::PagedCache({pool(4), second}, {second, pool(4)});
      },
      "PagedCache: v[1] overlaps k[0], expected memory");
  ts::PagedCache cache({pool(4)}, {second});
  expect_invalid([&] { cache.k(1); }, "PagedCache: layer is 1, expected 0 to 0");
  expect_invalid([&] { cache.v(-1); }, "PagedCache: layer is -1, expected 0 to 0");

  expect_invalid(
      [&] { ts::PagedCache({.num_pages = 4, .page_size = 4, .heads_kv = 1, .head_dim = 7, .dtype = ts::i4}); },
      "PagedCache: head_dim is 7, expected an even number beside i4");
  for (const ts::DType dtype : {ts::f8e5m2, ts::i32, ts::i64, ts::u8, ts::boolean, ts::DType::none}) {
    const std::string said = std::string(" is ") + ts::name_of(dtype) + ", expected f64, f32, bf16, f16, f8e4m3fn, i8";
    const auto expect_unsupported = [&](const char* name, auto&& make) {
      try {
        make();
        ADD_FAILURE() << said;
      } catch (const ts::Error& error) {
        EXPECT_EQ(error.code(), ts::ErrorCode::unsupported);
        EXPECT_NE(std::string(error.what()).find(std::string("PagedCache: ") + name + said), std::string::npos)
            << error.what();
      }
    };
    expect_unsupported("dtype", [&] {
      ts::PagedCache({.num_pages = 4, .page_size = 4, .heads_kv = 1, .head_dim = 8, .dtype = dtype});
    });
    if (dtype == ts::DType::none) continue;
    expect_unsupported("k[0].dtype", [&] {
      ts::PagedCache({ts::view(memory.data(), dtype, {1, 4, 2, 8})},
                     {ts::view(memory.data() + 512, dtype, {1, 4, 2, 8})});
    });
  }

  const auto scale = ts::view(memory.data() + 256, ts::f32, {4, 4, 2}),
             other = ts::view(memory.data() + 768, ts::f32, {4, 4, 2});
  expect_invalid([&] { ts::PagedCache({pool(4)}, {second}, {scale}, {other}, 1); },
                 "PagedCache: k_scale or scale_block is given and k[0].dtype is f32, expected f8e4m3fn, i8 or i4");
  const auto bytes = ts::view(memory.data(), ts::i8, {4, 4, 2, 8}),
             more = ts::view(memory.data() + 512, ts::i8, {4, 4, 2, 8});
  for (const int64_t block : {0, 1}) {
    expect_invalid([&] { ts::PagedCache({bytes}, {more}, {}, {}, block); },
                   "PagedCache: k_scale.size() is 0, expected 1 as");
  }
  expect_invalid([&] { ts::PagedCache({bytes}, {more}, {scale}); }, "PagedCache: v_scale.size() is 0, expected 1 as");
  expect_invalid([&] { ts::PagedCache({bytes}, {more}, {scale}, {other}, 2); },
                 "PagedCache: scale_block is 2, expected 0");
  expect_invalid([&] { ts::PagedCache({bytes}, {more}, {scale}, {scale}, 1); },
                 "PagedCache: v_scale[0] overlaps k_scale[0]");
  expect_invalid([&] { ts::PagedCache({bytes}, {more}, {scale}, {bytes}, 1); },
                 "PagedCache: v_scale[0].ndim is 4, expected 3");
  expect_invalid([&] { ts::PagedCache({bytes}, {more}, {ts::view(memory.data(), ts::f64, {2})}, {}); },
                 "PagedCache: k_scale[0].dtype is f64, expected f32");

  ts::PagedCache on_gpu({pool(4, {TESSELLA_CUDA, 0})}, {pool(4, {TESSELLA_CUDA, 0})});
  const int64_t id = on_gpu.new_sequence();
  expect_invalid([&] { on_gpu.reserve({id}, {1}); }, "PagedCache::reserve: the pools are on a GPU, expected pages()");
  EXPECT_EQ(on_gpu.seqlens({id})[0], 0);
}

TEST(PagedCache, TooLarge) {
  const int64_t large = 2147483647;
  try {
    ts::PagedCache({.num_pages = large, .page_size = large, .heads_kv = large, .head_dim = large});
    FAIL();
  } catch (const ts::Error& error) {
    EXPECT_EQ(error.code(), ts::ErrorCode::out_of_memory);
    EXPECT_STREQ(error.what(),
                 "PagedCache: a pool (2147483647, 2147483647, 2147483647, 2147483647) of f32 has more bytes than an "
                 "array can have, expected at most 9223372036854775807");
  }
}

}  // namespace
