// Results of different keys become one: the nodes of a binary tree over all splits, in the order of the keys.
#pragma once

#include <algorithm>

#include "cpu/vector/decode_softmax-inl.hpp"
#include "cpu/vector/decode_vector.hpp"
#include "cpu/vector/exp2-inl.hpp"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tessella::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// to = what both have seen. A row that has seen nothing changes no bit of the other.
template <typename Real>
void merge_sums(RowSums<Real> to, RowSums<Real> from, int64_t num_rows, int64_t o_stride, Real scale_log2) {
  const Tag<Real> d;
  for (int64_t row = 0; row < num_rows; ++row) {
    if (from.sum()[row] == 0) continue;
    Real* o = to.o() + row * o_stride;
    const Real* other = from.o() + row * o_stride;
    Real& origin = to.origin()[row];
    Real& offset = to.offset()[row];
    Real& sum = to.sum()[row];
    if (sum == 0) {
      origin = from.origin()[row];
      offset = from.offset()[row];
      sum = from.sum()[row];
      std::copy_n(other, o_stride, o);
      continue;
    }
    // NaN where a row of NaN has found no maximum.
    const Real exponent = (from.origin()[row] - origin) * scale_log2 + (from.offset()[row] - offset);
    const bool is_above = exponent > 0;
    const Real own = is_above ? power_of_two(-exponent) : 1;
    const Real others = is_above ? 1 : power_of_two(exponent);
    if (is_above) {
      origin = from.origin()[row];
      offset = from.offset()[row];
    }
    sum = sum * own + from.sum()[row] * others;
    const Vec<Real> by = hn::Set(d, own), by_others = hn::Set(d, others);
    for (int64_t i = 0; i < o_stride; i += kLanes<Real>) {
      const Vec<Real> added = hn::Mul(hn::Load(d, other + i), by_others);
      hn::Store(hn::MulAdd(hn::Load(d, o + i), by, added), d, o + i);
    }
  }
}

template <typename Real>
void clear_sums(RowSums<Real> sums, int64_t num_rows, int64_t o_stride) {
  std::fill_n(sums.origin(), num_rows, Real{0});
  std::fill_n(sums.offset(), num_rows, kMinusInfinity<Real>);
  std::fill_n(sums.sum(), num_rows, Real{0});
  std::fill_n(sums.o(), num_rows * o_stride, Real{0});
}

// The path through the tree over all splits to the next result: each entry is a subtree to its left, the deepest last.
// Missing subtrees do not change the result.
template <typename Real>
struct Stack {
  const DecodeScratch<Real>& scratch;
  Real scale_log2;
  int64_t num_rows;
  struct Node {
    int64_t idx;
    int level;
  } nodes[64] = {};
  int size = 0;

  void merge_top() {
    --size;
    merge_sums(scratch.sums(size - 1), scratch.sums(size), num_rows, scratch.layout.o_stride, scale_log2);
  }
  // Returns the memory for the result of subtree idx, after merging the earlier subtrees that are complete. All pushed
  // subtrees have the same level.
  RowSums<Real> push(int64_t idx, int level) {
    while (size > 0) {
      const Node& top = nodes[size - 1];
      if (top.idx / 2 == idx >> (top.level + 1 - level)) break;
      if (size > 1 && nodes[size - 2].level == top.level) merge_top();
      nodes[size - 1].idx /= 2;
      ++nodes[size - 1].level;
    }
    nodes[size] = {idx, level};
    return scratch.sums(size++);
  }
  // All of it in sums(0).
  void close() {
    if (size == 0) clear_sums(scratch.sums(0), num_rows, scratch.layout.o_stride);
    while (size > 1) merge_top();
    size = 0;
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace tessella::cpu
HWY_AFTER_NAMESPACE();
