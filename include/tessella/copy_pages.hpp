// Copies of pages within pools: what a sequence that is forked needs before it writes.
//
//   ts::copy_pages({k_pages, v_pages}, pairs, {}, stream);
//
// Shapes, dtypes and meanings: tessella.h. Failures throw tessella::Error; nothing is touched then.
#pragma once

#include <cstdint>
#include <vector>

#include <tessella/arguments.hpp>
#include <tessella/error.hpp>

namespace tessella {

namespace detail {

// The C structs of one call; they point into pairs and the options.
struct CopyPagesCall {
  tessella_copy_pages_args args = TESSELLA_COPY_PAGES_ARGS_INIT;
  tessella_copy_pages_options options = TESSELLA_COPY_PAGES_OPTIONS_INIT;
  std::vector<tessella_tensor> pools;
  tessella_call tagged = {sizeof(tessella_call), TESSELLA_COPY_PAGES, &args, &options};  // for plans and questions

  CopyPagesCall(const std::vector<TensorView>& views, const TensorView& pairs, const CopyPagesOptions& o) {
    for (const TensorView& view : views) pools.push_back(view.c_tensor());
    args.pools = pools.data();
    args.num_pools = static_cast<int32_t>(pools.size());
    args.pairs = pointer(pairs);
    fill(options, o);
  }
  CopyPagesCall(const CopyPagesCall&) = delete;
  CopyPagesCall& operator=(const CopyPagesCall&) = delete;
};

}  // namespace detail

// pools: (num_pages, page_size, heads, head_dim). pairs: (n, 2) i32, source and target. CPU: returns when done. GPU:
// work is queued on the stream.
inline void copy_pages(const std::vector<TensorView>& pools, const TensorView& pairs,
                       const CopyPagesOptions& options = {}, void* stream = nullptr) {
  const detail::CopyPagesCall call(pools, pairs, options);
  detail::check(tessella_copy_pages(&call.args, &call.options, stream));
}

// Compares `num_rows` sampled rows of the targets in each pool with their sources, byte by byte.
inline tessella_check_report check_copy_pages(const std::vector<TensorView>& pools, const TensorView& pairs,
                                              int64_t num_rows, uint64_t seed = 0) {
  const detail::CopyPagesCall call(pools, pairs, {});
  tessella_check_report report = TESSELLA_CHECK_REPORT_INIT;
  detail::check(tessella_check(&call.tagged, num_rows, seed, &report));
  return report;
}

}  // namespace tessella
