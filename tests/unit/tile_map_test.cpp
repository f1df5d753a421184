// Tile maps against element by element tests: a tile is hidden or full exactly where all of its elements are, and a key
// is seen exactly where a query sees it. What is taken as partial for no reason costs time and shows nowhere else.
#include "cpu/tile_map.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cases/arguments.hpp"
#include "cpu/cpu_features.hpp"
#include "cpu/vector/forward_vector.hpp"
#include "operations/attention/arguments.hpp"
#include "operations/attention/sequence.hpp"

namespace tessella::tests {
namespace {

using core::Feature;
using cpu::InstructionSet;
using cpu::MapTiling;
using cpu::TileClass;
using cpu::TileMap;

// Arguments with masks of random regions, and the memory of these.
struct Masked {
  core::AttentionArguments p;
  std::vector<std::vector<uint8_t>> masks;
  std::vector<int32_t> cu_q, cu_kv, ids_q, ids_kv, lengths_kv, leftpad;

  // The sequences of `packed` (packed_q, packed_kv) are of random lengths, most of them short.
  Masked(Random& random, const Sizes& sizes, core::Features packed = {}) : p(dense_arguments(sizes, core::DType::f32)) {
    if (packed.has(Feature::packed_q)) p.total_q = pack(random, p.seqlen_q, cu_q), p.cu_seqlens_q = {cu_q.data(), 0, 1};
    if (packed.has(Feature::packed_kv)) {
      p.total_kv = pack(random, p.seqlen_kv, cu_kv), p.cu_seqlens_kv = {cu_kv.data(), 0, 1};
    }
    p.features |= packed;
    if (random.chance(0.5)) {
      for (int64_t b = 0; b < p.batch; ++b) {
        const auto slots = static_cast<int32_t>(
            p.cu_seqlens_kv ? p.cu_seqlens_kv.at(0, b + 1) - p.cu_seqlens_kv.at(0, b) : p.seqlen_kv);
        leftpad.push_back(static_cast<int32_t>(random.in(0, slots / 2)));
        lengths_kv.push_back(static_cast<int32_t>(random.in(leftpad.back(), slots)));
      }
      p.seqlens_kv = {lengths_kv.data(), 1};
      p.leftpad_kv = {leftpad.data(), 1};
      p.features |= Feature::seqlens_kv | Feature::leftpad_kv;
    }
    if (random.chance(0.4)) p.window_right = random.in(0, 30), p.features |= Feature::window;
    if (random.chance(0.3)) p.window_left = random.in(0, 100), p.features |= Feature::window;
    if (random.chance(0.2)) p.chunk = random.in(1, 150), p.features |= Feature::chunk;
    if (random.chance(0.2)) p.keep_first = random.in(1, 90), p.features |= Feature::keep_first;
    p.features |= Feature::lse;
    const int64_t kind = random.in(0, 5);
    if (kind <= 2) p.dense_mask = mask(random, p.seqlen_q, p.seqlen_kv), p.features |= Feature::dense_mask;
    if (kind >= 2 && kind <= 4) {
      p.block_q = random.chance(0.3) ? 1 : random.in(1, 130);
      p.block_kv = random.chance(0.3) ? 1 : random.in(1, 130);
      p.block_map = mask(random, (p.seqlen_q + p.block_q - 1) / p.block_q, (p.seqlen_kv + p.block_kv - 1) / p.block_kv);
      p.features |= Feature::block_map;
    }
    if (kind >= 4) {
      const int64_t ids_of_q = p.cu_seqlens_q ? p.total_q : p.batch * p.seqlen_q;
      const int64_t ids_of_kv = p.cu_seqlens_kv ? p.total_kv : p.batch * p.seqlen_kv;
      for (auto [ids, count] : {std::pair{&ids_q, ids_of_q}, {&ids_kv, ids_of_kv}}) {
        for (int64_t i = 0; i < count; ++i) ids->push_back(static_cast<int32_t>(random.below(4)));
        if (random.chance(0.7)) std::sort(ids->begin(), ids->end());
      }
      p.document_q = {ids_q.data(), p.cu_seqlens_q ? 0 : p.seqlen_q, 1};
      p.document_kv = {ids_kv.data(), p.cu_seqlens_kv ? 0 : p.seqlen_kv, 1};
      p.features |= Feature::document;
    }
  }
  Masked(const Masked&) = delete;
  Masked& operator=(const Masked&) = delete;

 private:
  // Rows of the tensor: of sequences of at most `longest` rows, one of them so long, and some of no sequence.
  int64_t pack(Random& random, int64_t longest, std::vector<int32_t>& cu) const {
    const int64_t long_one = random.in(0, p.batch - 1);
    cu.push_back(0);
    for (int64_t b = 0; b < p.batch; ++b) {
      const int64_t most = random.chance(0.8) ? std::min<int64_t>(longest, 20) : longest;
      cu.push_back(cu.back() + static_cast<int32_t>(b == long_one ? longest : random.in(0, most)));
    }
    return cu.back() + random.in(0, 2);
  }

  core::ScoreOperand mask(Random& random, int64_t queries, int64_t keys) {
    int64_t shape[] = {p.batch, p.heads_q, queries, keys}, strides[4], size = 1;
    int axes[] = {3, 2, 1, 0};  // in memory, the fastest first
    if (random.chance(0.5)) std::shuffle(axes, axes + 4, std::mt19937_64(random.bits()));
    for (const int axis : axes) {
      if (random.chance(0.4)) shape[axis] = 1;
      strides[axis] = shape[axis] == 1 ? 0 : size;
      size *= shape[axis];
    }
    std::vector<uint8_t>& bytes = masks.emplace_back(static_cast<size_t>(size));
    const int64_t run = random.in(1, 300);
    for (size_t i = 0; i < bytes.size();) {
      const bool is_set = random.chance(0.4), is_mixed = random.chance(0.3);
      for (const size_t end = i + static_cast<size_t>(random.in(1, run)); i < std::min(end, bytes.size()); ++i) {
        bytes[i] = is_mixed ? random.chance(0.5) : is_set ? 0x80 : 0;
      }
    }
    return {reinterpret_cast<const std::byte*>(bytes.data()),
            core::DType::boolean,
            strides[0],
            strides[1],
            strides[2],
            strides[3]};
  }
};

// Of the rows of a query tile and keys [begin, end), by the element masks alone.
TileClass expected_class(const core::AttentionArguments& p, const core::Sequence& s, int64_t kv_head, int64_t row_begin,
                         int64_t row_end, int64_t begin, int64_t end) {
  bool any = false, all = true;
  for (int64_t row = row_begin; row < row_end; ++row) {
    for (int64_t key = begin; key < end; ++key) {
      const bool is_shown = core::element_visible(s, kv_head * p.group() + row % p.group(), row / p.group(), key);
      any = any || is_shown;
      all = all && is_shown;
    }
  }
  return !any ? TileClass::hidden : all ? TileClass::full : TileClass::partial;
}

// Tiles that the band of the query tile reaches, and keys that a query sees. Where no mask differs by query, a query
// tile has the classes of all heads, even if its last query has not.
void expect_exact(const core::AttentionArguments& p, const MapTiling& tiling, const TileMap& map) {
  const bool by_head = p.dense_mask.head_stride != 0 || p.block_map.head_stride != 0;
  const bool by_query = p.features.has(Feature::document) || p.dense_mask.q_stride != 0 || p.block_map.q_stride != 0 ||
                        (by_head && p.group() > tiling.rows);
  for (int64_t b = 0; b < p.batch; ++b) {
    const core::Sequence s = core::sequence(p, b);
    for (int64_t kv_head = 0; kv_head < p.heads_kv; ++kv_head) {
      for (int64_t row = 0; row < s.len_q * p.group(); row += tiling.rows) {
        const int64_t row_end = std::min<int64_t>(row + tiling.rows, s.len_q * p.group());
        const int64_t begin = s.band.begin(row / p.group()), end = s.band.end((row_end - 1) / p.group());
        for (int64_t key = 0; key < end; key += tiling.keys) {
          const int64_t key_end = std::min(key + tiling.keys, s.len_kv);
          if (key >= p.keep_first && key_end <= begin) continue;
          EXPECT_EQ(map.classes(s, kv_head, row / tiling.rows)[key / tiling.keys],
                    expected_class(p, s, kv_head, by_query ? row : 0, by_query ? row_end : p.group(), key, key_end))
              << "batch " << b << ", KV head " << kv_head << ", row " << row << ", key " << key;
        }
      }
      for (int64_t key = 0; key < s.len_kv; ++key) {
        EXPECT_EQ(map.is_seen(p, s, kv_head, key), core::seen_by_any_query(p, s, kv_head, key))
            << "batch " << b << ", KV head " << kv_head << ", key " << key;
      }
    }
  }
}

constexpr MapTiling kTilings[] = {{48, 64}, {32, 32}, {64, 32}};

void expect_exact_maps(const core::AttentionArguments& p, InstructionSet set, int num_threads) {
  constexpr size_t kGuard = 1024;
  for (const MapTiling tiling : kTilings) {
    const auto bytes = static_cast<size_t>(TileMap::bytes(p, tiling));
    std::vector<std::byte> memory(bytes + 64 + kGuard, std::byte{0xFF});
    auto* aligned = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
    const TileMap map(p, tiling, aligned);
    map.classify(p, num_threads, cpu::vector_kernel<float>(set).classify_tiles);
    expect_exact(p, tiling, map);
    EXPECT_TRUE(std::all_of(aligned + bytes, aligned + bytes + kGuard, [](std::byte b) {
      return b == std::byte{0xFF};
    })) << "wrote past its memory";
  }
}

class TileMaps : public testing::TestWithParam<InstructionSet> {
  void SetUp() override {
    if (!cpu::vector_unavailable(GetParam()).empty()) GTEST_SKIP() << cpu::vector_unavailable(GetParam());
  }
};

TEST_P(TileMaps, AreExact) {
  for (uint64_t seed = 0; seed < 200 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Sizes sizes{.batch = random.in(1, 2),
                      .heads_q = 6,
                      .heads_kv = random.one_of({int64_t{1}, int64_t{2}, int64_t{3}, int64_t{6}}),
                      .seqlen_q = random.in(1, 200),
                      .seqlen_kv = random.in(1, 400)};
    const Masked masked(random, sizes);
    expect_exact_maps(masked.p, GetParam(), 1);
  }
}

TEST_P(TileMaps, OfPackedSequencesAreExact) {
  for (uint64_t seed = 0; seed < 200 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Sizes sizes{.batch = random.in(1, 12),
                      .heads_q = 6,
                      .heads_kv = random.one_of({int64_t{1}, int64_t{2}, int64_t{3}, int64_t{6}}),
                      .seqlen_q = random.in(1, 150),
                      .seqlen_kv = random.in(1, 300)};
    const core::Features q = Feature::packed_q, kv = Feature::packed_kv;
    const Masked masked(random, sizes, random.one_of({q, kv, q | kv, q | kv}));
    expect_exact_maps(masked.p, GetParam(), 2);
  }
}

// A query tile may then hold some heads of one query only.
TEST_P(TileMaps, OfFiftyHeadsAreExact) {
  for (uint64_t seed = 0; seed < 60 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Sizes sizes{.batch = random.in(1, 3),
                      .heads_q = 50,
                      .heads_kv = random.one_of({int64_t{1}, int64_t{1}, int64_t{2}}),
                      .seqlen_q = random.in(1, 20),
                      .seqlen_kv = random.in(1, 200)};
    core::Features packed;
    if (random.chance(0.5)) packed = Feature::packed_q | Feature::packed_kv;
    const Masked masked(random, sizes, packed);
    expect_exact_maps(masked.p, GetParam(), 1);
  }
}

// The last head of a group that no query tile holds whole.
TEST_P(TileMaps, HaveWhatOneOfFiftyHeadsSees) {
  constexpr int64_t kHeads = 50, kKeys = 100;
  std::vector<uint8_t> bytes(kHeads * kKeys);
  std::fill_n(bytes.end() - kKeys, 70, uint8_t{1});
  core::AttentionArguments p =
      dense_arguments({.heads_q = kHeads, .heads_kv = 1, .seqlen_q = 10, .seqlen_kv = kKeys}, core::DType::f32);
  p.dense_mask = {reinterpret_cast<const std::byte*>(bytes.data()), core::DType::boolean, 0, kKeys, 0, 1};
  p.features |= Feature::dense_mask;
  expect_exact_maps(p, GetParam(), 1);
}

// Bytes of a map of a block map by head, 8 heads: of `count` sequences with `rows` rows in all, the longest of
// `longest`.
int64_t packed_bytes(int64_t count, int64_t rows, int64_t longest, const MapTiling& tiling) {
  core::AttentionArguments p = dense_arguments(
      {.batch = count, .heads_q = 8, .heads_kv = 8, .seqlen_q = longest, .seqlen_kv = longest}, core::DType::f32);
  p.total_q = p.total_kv = rows;
  p.features |= Feature::packed_q | Feature::packed_kv | Feature::block_map;
  return TileMap::bytes(p, tiling);
}

// Not as if all were long: the map is at most that of as many long sequences as fit in the rows.
TEST(TileMapBytes, OfOneLongSequenceAmongShortOnes) {
  for (const MapTiling tiling : kTilings) {
    const int64_t short_ones = packed_bytes(8191, 8 * 8191, 8, tiling);
    const int64_t long_ones = packed_bytes(3, 3 * 32768, 32768, tiling);
    EXPECT_LT(packed_bytes(8192, 8 * 8191 + 32768, 32768, tiling), short_ones + long_ones + long_ones / 64);
    EXPECT_LT(short_ones, 2 << 20);
    EXPECT_LT(long_ones, 8 * 3 * (32768 / tiling.rows + 1) * (32768 / tiling.keys + 1) * 33 / 32);
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, TileMaps,
                         testing::Values(InstructionSet::avx512, InstructionSet::avx2, InstructionSet::sse4,
                                         InstructionSet::baseline));

}  // namespace
}  // namespace tessella::tests
