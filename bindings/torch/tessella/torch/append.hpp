// append and copy_pages on at::Tensor: what is written into caches. Neither has a gradient.
//
//   tessella::torch::append(k_new, v_new, k_pages, v_pages, seqlens_kv, {}, {.page_table = pages});
#pragma once

#include <tessella/append.hpp>
#include <tessella/copy_pages.hpp>
#include <tessella/torch/tensor.hpp>
#include <vector>

namespace tessella::torch {

// Arrays of an append beside the rows, the caches and seqlens_kv, as AppendArgs names and shapes them; an undefined
// tensor is absent. q_out is made where q is given without it.
struct AppendTensors {
  // generated: tensors, from src/api/arguments.toml
  at::Tensor seqlens_new = {};
  at::Tensor cu_seqlens_new = {};
  at::Tensor page_table = {};
  at::Tensor cache_batch_idx = {};
  at::Tensor leftpad_kv = {};
  at::Tensor rotary_cos = {}, rotary_sin = {};
  at::Tensor rotary_offsets = {};
  at::Tensor q = {}, q_out = {};
  at::Tensor k_scale = {}, v_scale = {};
  // end of generated
  // What bytes of k and v of u8 are: i4 (two in each, the first in the low bits), i8 or f8e4m3fn.
  DType kv_dtype = DType::none;
};

// Writes new rows of keys and values into a cache, k_new and q rotated on their way.
//   k_new, v_new  (batch, new, heads_kv, head_dim), packed (total, heads_kv, head_dim), f64, f32, bf16 or f16; one of
//                 them may be undefined, and then its cache is
//   k, v          (slots, seqlen_kv, heads_kv, head_dim), or pools (num_pages, page_size, heads_kv, head_dim) beside
//                 tensors.page_table: the dtype of the new rows, or f8e4m3fn, i8 or i4, which are quantised
//   seqlens_kv    (batch) i32, the new rows included
//   returns       q_out, undefined without q
// Throws Error as tessella::append.
inline at::Tensor append(const at::Tensor& k_new, const at::Tensor& v_new, const at::Tensor& k, const at::Tensor& v,
                         const at::Tensor& seqlens_kv, const AppendOptions& options = {}, AppendTensors tensors = {}) {
  const auto view = [](const at::Tensor& tensor, const char* name) { return detail::view("append", tensor, name); };
  if (tensors.q.defined() && !tensors.q_out.defined()) tensors.q_out = at::empty_like(tensors.q);
  AppendArgs args{.k_new = view(k_new, "k_new"),
                  .v_new = view(v_new, "v_new"),
                  .k = detail::as_cache("append", view(k, "k"), "k", tensors.kv_dtype),
                  .v = detail::as_cache("append", view(v, "v"), "v", tensors.kv_dtype),
                  .seqlens_kv = detail::required("append", seqlens_kv, "seqlens_kv")};
  // generated: views, from src/api/arguments.toml
  args.seqlens_new = view(tensors.seqlens_new, "seqlens_new");
  args.cu_seqlens_new = view(tensors.cu_seqlens_new, "cu_seqlens_new");
  args.page_table = view(tensors.page_table, "page_table");
  args.cache_batch_idx = view(tensors.cache_batch_idx, "cache_batch_idx");
  args.leftpad_kv = view(tensors.leftpad_kv, "leftpad_kv");
  args.rotary_cos = view(tensors.rotary_cos, "rotary_cos");
  args.rotary_sin = view(tensors.rotary_sin, "rotary_sin");
  args.rotary_offsets = view(tensors.rotary_offsets, "rotary_offsets");
  args.q = view(tensors.q, "q");
  args.q_out = view(tensors.q_out, "q_out");
  args.k_scale = view(tensors.k_scale, "k_scale");
  args.v_scale = view(tensors.v_scale, "v_scale");
  // end of generated
  const at::Tensor& first = k_new.defined() ? k_new : v_new;
  if (!first.defined()) {
    detail::fail("append", ErrorCode::invalid_argument, "k_new and v_new are undefined, expected one of them or both");
  }
  detail::run_on(first, options, [&](const AppendOptions& own, void* stream) { tessella::append(args, own, stream); });
  detail::written(k);
  detail::written(v);
  detail::written(tensors.q_out);
  if (options.scale_block != 0) {
    detail::written(tensors.k_scale);
    detail::written(tensors.v_scale);
  }
  return tensors.q_out;
}

// Copies pages within pools.
//   pools  (num_pages, page_size, heads, head_dim), all of one dtype and as many pages
//   pairs  (n, 2) i32, source and target; a negative source is no copy
// Throws Error as tessella::copy_pages.
inline void copy_pages(const std::vector<at::Tensor>& pools, const at::Tensor& pairs,
                       const CopyPagesOptions& options = {}) {
  if (pools.empty()) {
    detail::fail("copy_pages", ErrorCode::invalid_argument, "pools is empty, expected one or more");
  }
  std::vector<TensorView> views;
  for (const at::Tensor& pool : pools) views.push_back(detail::required("copy_pages", pool, "pools"));
  const TensorView of_pairs = detail::required("copy_pages", pairs, "pairs");
  detail::run_on(pools[0], options, [&](const CopyPagesOptions& own, void* stream) {
    tessella::copy_pages(views, of_pairs, own, stream);
  });
  for (const at::Tensor& pool : pools) detail::written(pool);
}

}  // namespace tessella::torch
