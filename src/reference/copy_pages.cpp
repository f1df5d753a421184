#include "reference/copy_pages.hpp"

#include <cstring>

#include "core/cancel.hpp"
#include "core/plan.hpp"
#include "operations/copy_pages/arguments.hpp"

namespace tessella::reference {

void copy_pages_run(const core::Arguments& arguments, const core::Plan&, core::Workspace, void*) {
  const core::CopyPagesArguments& a = core::copy_pages(arguments);
  for (const core::CopyPagesArguments::Pool& pool : a.given) {
    const auto bytes = static_cast<size_t>(core::bytes_of(a.dtype(), pool.head_dim));
    for (int64_t pair = 0; pair < a.num_pairs; ++pair) {
      core::end_if_cancelled(a.cancel);
      const int64_t from = a.pairs.at(pair, 0), into = a.pairs.at(pair, 1);
      if (from < 0 || from == into) continue;
      for (int64_t row = 0; row < pool.rows; ++row) {
        for (int64_t head = 0; head < pool.heads; ++head) {
          std::memcpy(pool.pages.row(into, row, head), pool.pages.row(from, row, head), bytes);
        }
      }
    }
  }
}

}  // namespace tessella::reference
