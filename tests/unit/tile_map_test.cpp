// Tile maps against element by element tests: a tile is hidden or full exactly where all of its elements are, and a key
// is seen exactly where a query sees it. What is taken as partial for no reason costs time and shows nowhere else.
#include "cpu/tile_map.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cases/arguments.hpp"
#include "core/sequence.hpp"
#include "cpu/cpu_features.hpp"
#include "cpu/vector/forward_vector.hpp"

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
  std::vector<int32_t> ids_q, ids_kv, lengths_kv, leftpad;

  explicit Masked(Random& random)
      : p(dense_arguments({.batch = random.in(1, 2),
                           .heads_q = 6,
                           .heads_kv = random.one_of({int64_t{1}, int64_t{2}, int64_t{3}, int64_t{6}}),
                           .seqlen_q = random.in(1, 200),
                           .seqlen_kv = random.in(1, 400)},
                          core::DType::f32)) {
    if (random.chance(0.5)) {
      for (int64_t b = 0; b < p.batch; ++b) {
        leftpad.push_back(static_cast<int32_t>(random.in(0, p.seqlen_kv / 2)));
        lengths_kv.push_back(static_cast<int32_t>(random.in(leftpad.back(), p.seqlen_kv)));
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
      for (auto [ids, rows] : {std::pair{&ids_q, p.seqlen_q}, {&ids_kv, p.seqlen_kv}}) {
        for (int64_t i = 0; i < p.batch * rows; ++i) ids->push_back(static_cast<int32_t>(random.below(4)));
        if (random.chance(0.7)) std::sort(ids->begin(), ids->end());
      }
      p.document_q = {ids_q.data(), p.seqlen_q, 1};
      p.document_kv = {ids_kv.data(), p.seqlen_kv, 1};
      p.features |= Feature::document;
    }
  }
  Masked(const Masked&) = delete;
  Masked& operator=(const Masked&) = delete;

 private:
  core::ScoreOperand mask(Random& random, int64_t queries, int64_t keys) {
    int64_t shape[] = {p.batch, p.heads_q, queries, keys}, strides[4], size = 1;
    for (int axis = 3; axis >= 0; --axis) {
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
      const bool is_shown = core::element_visible(p, s, kv_head * p.group() + row % p.group(), row / p.group(), key);
      any = any || is_shown;
      all = all && is_shown;
    }
  }
  return !any ? TileClass::hidden : all ? TileClass::full : TileClass::partial;
}

// Tiles that the band of the query tile reaches, and keys that a query sees. Where no mask differs by query, a query
// tile has the classes of all heads, even if its last query has not.
void expect_exact(const core::AttentionArguments& p, const MapTiling& tiling, const TileMap& map) {
  const bool by_query = p.features.has(Feature::document) || p.dense_mask.q_stride != 0 || p.block_map.q_stride != 0;
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

class TileMaps : public testing::TestWithParam<InstructionSet> {};

TEST_P(TileMaps, AreExact) {
  if (!cpu::vector_unavailable(GetParam()).empty()) GTEST_SKIP() << cpu::vector_unavailable(GetParam());
  for (uint64_t seed = 0; seed < 200 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Masked masked(random);
    for (const MapTiling tiling : {MapTiling{48, 64}, MapTiling{32, 32}, MapTiling{64, 32}}) {
      std::vector<std::byte> memory(static_cast<size_t>(TileMap::bytes(masked.p, tiling)) + 64, std::byte{0xFF});
      auto* aligned = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
      const TileMap map(masked.p, tiling, aligned);
      map.classify(masked.p, 1, cpu::vector_kernel<float>(GetParam()).classify_tiles);
      expect_exact(masked.p, tiling, map);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sets, TileMaps,
                         testing::Values(InstructionSet::avx512, InstructionSet::avx2, InstructionSet::sse4,
                                         InstructionSet::baseline));

}  // namespace
}  // namespace tessella::tests
