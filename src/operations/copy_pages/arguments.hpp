// The arguments of copy_pages.
#pragma once

#include <vector>

#include "core/access.hpp"
#include "core/arguments.hpp"
#include "core/operand.hpp"
#include "operations/copy_pages/shape.hpp"

namespace tessella::core {

struct CopyPagesArguments : CopyPagesShape {
  struct Pool {
    Operand pages;  // (num_pages, rows, heads, head_dim)
    int64_t rows = 0, heads = 0, head_dim = 0;
  };
  std::vector<Pool> given;
  Table<int32_t> pairs;  // (num_pairs, 2) source and target
  const int32_t* cancel = nullptr;

  // Fills the members of the call's shape that follow from its operands.
  void derive_shape();

  // All that the arguments point to (core/call_memory.hpp); what is absent may be left out.
  template <typename A, typename F>
  static void memory(A& a, F&& f) {
    for (size_t i = 0; i < a.given.size(); ++i) {
      auto& pool = a.given[i];
      f(FieldName{"pools", nullptr, static_cast<int>(i)}, pool.pages, Access::written, a.num_pages, pool.rows,
        pool.heads, pool.head_dim);
    }
    f(FieldName{"pairs"}, a.pairs, Access::table, a.num_pairs, int64_t{2});
    f(FieldName{"cancel"}, Bytes::of(a.cancel), Access::read);
  }
};

inline const CopyPagesArguments& copy_pages(const Arguments& arguments) { return arguments.as<CopyPagesArguments>(); }

}  // namespace tessella::core
