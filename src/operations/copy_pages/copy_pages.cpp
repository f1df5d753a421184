#include "operations/copy_pages/copy_pages.hpp"

#include <algorithm>
#include <string>

#include "core/operation_of.hpp"

namespace tessella::core {

const OperationType& CopyPagesShape::type() {
  static constexpr OperationOf<CopyPages> kType;
  return kType;
}

std::string CopyPages::ineligible(const Kernel&, const CopyPagesShape&) { return ""; }

void CopyPagesArguments::derive_shape() {
  const bool is_cpu = device.type == DeviceType::cpu;
  num_pools = static_cast<int64_t>(given.size());
  pools = {given.front().pages.dtype, is_cpu ? 1 : 16};
  if (is_cpu) return;
  for (const CopyPagesArguments::Pool& pool : given) {
    const auto row_bytes = static_cast<uint64_t>(16 | bytes_of(pools.dtype, pool.head_dim));
    const auto of_rows = static_cast<int32_t>(row_bytes & (~row_bytes + 1));
    pools.alignment = std::min({pools.alignment, alignment(pool.pages), of_rows});
  }
}

}  // namespace tessella::core
