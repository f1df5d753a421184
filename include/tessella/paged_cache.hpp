// PagedCache: keys and values in pages, for one layer or all layers of a model, and who holds which page.
//
//   ts::PagedCache cache({.num_pages = 1024, .page_size = 16, .heads_kv = 8, .head_dim = 128, .num_layers = 2});
//   const std::vector<int64_t> ids = {cache.new_sequence()};
//   cache.reserve(ids, {1});  // the length with the new token; a step reserves once, for all layers
//   const ts::PageTable table = cache.page_table(ids);
//   const std::vector<int32_t> lengths = cache.seqlens(ids);
//   const auto seqlens = ts::view(lengths.data(), ts::i32, {1});
//   for (int layer = 0; layer < 2; ++layer) {
//     cache.append({.k_new = k, .v_new = v, .seqlens_kv = seqlens, .page_table = table.view()}, layer);
//     ts::forward({.q = q, .k = cache.k(layer), .v = cache.v(layer), .out = out, .seqlens_kv = seqlens,
//                  .page_table = table.view()}, {.mask = ts::Mask::causal()});
//   }
//
// A cache of f8e4m3fn, i8 or i4 quantises rows on their way in; attention takes k_scale(layer), v_scale(layer) and
// scale_block() beside k(layer) and v(layer).
//
// Failures throw tessella::Error. Threads may share a cache; the rows of a sequence are written by one at a time.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <tessella/append.hpp>
#include <tessella/copy_pages.hpp>
#include <tessella/pages.hpp>
#include <tessella/tensor.hpp>

namespace tessella {

// What of a quantised cache has a scale: every token and head, computed as rows come in; every head; or all.
enum class CacheScale { token, head, tensor };

struct PagedCacheSizes {
  int64_t num_pages = 0;
  int64_t page_size = 0;
  int64_t heads_kv = 0;
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;  // 0 = head_dim
  DType dtype = f32;
  int num_layers = 1;
  CacheScale scale = CacheScale::token;  // of f8e4m3fn, i8 and i4; those of heads and tensors are 1 until they are set
};

class PagedCache {
 public:
  // Memory of its own, on the CPU.
  explicit PagedCache(const PagedCacheSizes& sizes) : pages_(checked(sizes).num_pages, sizes.page_size) {
    for (int layer = 0; layer < sizes.num_layers; ++layer) {
      add(k_, sizes, sizes.dtype, sizes.head_dim);
      add(v_, sizes, sizes.dtype, sizes.head_dim_v == 0 ? sizes.head_dim : sizes.head_dim_v);
      if (!is_quantized(sizes.dtype)) continue;
      for (std::vector<TensorView>* scales : {&k_scale_, &v_scale_}) add_scale(*scales, sizes);
    }
    scale_block_ = is_quantized(sizes.dtype) && sizes.scale == CacheScale::token ? 1 : 0;
  }
  // Pools (num_pages, page_size, heads_kv, head_dim) of the caller's, one a layer, which outlive the cache. Either
  // order of token and head is a matter of strides (view_bhsd). Views of a GPU's memory say so.
  // k_scale, v_scale: of quantised ones and required there, one a layer: with scale_block 1 pools (num_pages,
  // page_size, heads_kv) of what is computed, with 0 scales that are given, as append takes them.
  PagedCache(std::vector<TensorView> k, std::vector<TensorView> v, std::vector<TensorView> k_scale = {},
             std::vector<TensorView> v_scale = {}, int64_t scale_block = 0)
      : pages_(size_of(k, v, 0), size_of(k, v, 1)),
        k_(std::move(k)),
        v_(std::move(v)),
        k_scale_(std::move(k_scale)),
        v_scale_(std::move(v_scale)),
        scale_block_(scale_block) {
    require_dtype("k[0].dtype", k_[0].dtype());
    for (size_t layer = 0; layer < k_.size(); ++layer) {
      require_like_k("k", layer, k_[layer], 4, k_[0].dtype());
      require_like_k("v", layer, v_[layer], 4, k_[0].dtype());
    }
    require_scales("k_scale", k_scale_);
    require_scales("v_scale", v_scale_);
    if (!is_on_gpu()) {  // the copies to come do not fail
      require_copies(named_pools());
      require_copies(named_scale_pools());
    }
  }

  // Of a layer: what attention takes.
  const TensorView& k(int layer = 0) const { return k_[idx_of(layer)]; }
  const TensorView& v(int layer = 0) const { return v_[idx_of(layer)]; }
  // Of a layer that is quantised; absent where there are none.
  TensorView k_scale(int layer = 0) const { return k_scale_.empty() ? TensorView() : k_scale_[idx_of(layer)]; }
  TensorView v_scale(int layer = 0) const { return v_scale_.empty() ? TensorView() : v_scale_[idx_of(layer)]; }
  int64_t scale_block() const { return scale_block_; }
  int num_layers() const { return static_cast<int>(k_.size()); }
  // k and v of every layer: what copy_pages takes.
  std::vector<TensorView> pools() const {
    std::vector<TensorView> pools = k_;
    pools.insert(pools.end(), v_.begin(), v_.end());
    return pools;
  }
  // The scales that pages have of their own, of every layer, which are copied likewise.
  std::vector<TensorView> scale_pools() const {
    std::vector<TensorView> pools;
    for (auto& [name, pool] : named_scale_pools()) pools.push_back(pool);
    return pools;
  }
  Pages& pages() { return pages_; }
  const Pages& pages() const { return pages_; }

  int64_t new_sequence() { return pages_.new_sequence(); }
  int64_t fork(int64_t id) { return pages_.fork(id); }
  void release(const std::vector<int64_t>& ids) { pages_.release(ids); }
  void truncate(const std::vector<int64_t>& ids, const std::vector<int64_t>& lengths) { pages_.truncate(ids, lengths); }
  // Drops pages behind a window; see Pages::evict.
  void evict(const std::vector<int64_t>& ids, const std::vector<int64_t>& before, int64_t keep_first = 0) {
    pages_.evict(ids, before, keep_first);
  }
  // Gives the sequences these lengths, the tokens to be appended counted, and copies the pages that must be. For pools
  // on a GPU it is pages().reserve() and, where there are copies, copy_pages(pools(), pairs, {}, stream), and the same
  // of scale_pools() where there are any: pairs lie in the GPU's memory, and bringing them there is the caller's.
  void reserve(const std::vector<int64_t>& ids, const std::vector<int64_t>& lengths) {
    if (is_on_gpu()) {
      throw Error(ErrorCode::invalid_argument,
                  "PagedCache::reserve: the pools are on a GPU, expected pages().reserve() and copy_pages()");
    }
    // A page that is still to be copied may be released meanwhile; nobody gets it before the copy is made.
    const std::lock_guard lock(*reserving_);
    const std::vector<PageCopy> copies = pages_.reserve(ids, lengths);
    if (!copies.empty()) copy(copies);
  }

  std::vector<int32_t> seqlens(const std::vector<int64_t>& ids) const { return pages_.seqlens(ids); }
  PageTable page_table(const std::vector<int64_t>& ids, int64_t num_columns = 0) const {
    return pages_.page_table(ids, num_columns);
  }

  // New keys and values into a layer: args without k and v. Where k_new or v_new is absent, that one is left alone.
  void append(AppendArgs args, int layer = 0, AppendOptions options = {}, void* stream = nullptr) const {
    if (args.k_new.is_present()) args.k = k(layer), args.k_scale = k_scale(layer);
    if (args.v_new.is_present()) args.v = v(layer), args.v_scale = v_scale(layer);
    options.scale_block = scale_block_;
    tessella::append(args, options, stream);
  }

 private:
  bool is_on_gpu() const { return k_[0].c_tensor().device_type == TESSELLA_CUDA; }
  static bool is_quantized(DType dtype) { return dtype == f8e4m3fn || dtype == i8 || dtype == i4; }

  [[noreturn]] static void refuse(const std::string& said, ErrorCode code = ErrorCode::invalid_argument) {
    throw Error(code, ("PagedCache: " + said).c_str());
  }
  [[noreturn]] static void refuse(const std::string& name, int64_t got, const std::string& expected) {
    refuse(name + " is " + std::to_string(got) + ", expected " + expected);
  }
  static void require_dtype(const char* name, DType dtype) {
    if (dtype == f64 || dtype == f32 || dtype == bf16 || dtype == f16 || is_quantized(dtype)) return;
    refuse(std::string(name) + " is " + name_of(dtype) + ", expected f64, f32, bf16, f16, f8e4m3fn, i8 or i4",
           ErrorCode::unsupported);
  }
  static const PagedCacheSizes& checked(const PagedCacheSizes& sizes) {
    const auto require = [](const char* name, int64_t size, int64_t least = 1) {
      if (size < least || size > INT32_MAX)
        refuse(name, size, std::to_string(least) + " to " + std::to_string(INT32_MAX));
    };
    require("num_pages", sizes.num_pages);
    require("page_size", sizes.page_size);
    require("heads_kv", sizes.heads_kv);
    require("head_dim", sizes.head_dim);
    require("head_dim_v", sizes.head_dim_v, 0);
    require("num_layers", sizes.num_layers);
    require_dtype("dtype", sizes.dtype);
    for (const auto& [name, size] : {std::pair{"head_dim", sizes.head_dim}, {"head_dim_v", sizes.head_dim_v}}) {
      if (sizes.dtype == i4 && size % 2 != 0) refuse(name, size, "an even number beside i4");
    }
    return sizes;
  }
  // Its pages, rows and heads are those of k[0].
  void require_like_k(const char* name, size_t layer, const TensorView& tensor, int ndim, DType dtype) const {
    const std::string at = name_at(name, layer);
    if (tensor.ndim() != ndim) refuse(at + ".ndim", tensor.ndim(), std::to_string(ndim));
    for (int axis = 0; axis < 3; ++axis) {
      const int64_t expected = k_[0].shape(axis);
      if (tensor.shape(axis) == expected) continue;
      refuse(at + ".shape[" + std::to_string(axis) + "]", tensor.shape(axis), std::to_string(expected) + " as k[0]");
    }
    require_same(at, tensor, dtype);
  }
  static void require_same(const std::string& at, const TensorView& tensor, DType dtype) {
    if (tensor.dtype() != dtype) {
      refuse(at + ".dtype is " + name_of(tensor.dtype()) + ", expected " + name_of(dtype));
    }
  }
  void require_scales(const char* name, const std::vector<TensorView>& scales) const {
    if (scale_block_ != 0 && scale_block_ != 1) refuse("scale_block", scale_block_, "0 or 1");
    const bool are_wanted = is_quantized(k_[0].dtype());
    if (!are_wanted && (scale_block_ != 0 || !scales.empty())) {
      refuse(std::string(name) + " or scale_block is given and k[0].dtype is " + name_of(k_[0].dtype()) +
             ", expected f8e4m3fn, i8 or i4");
    }
    if (are_wanted && scales.size() != k_.size()) {
      refuse(std::string(name) + ".size()", static_cast<int64_t>(scales.size()),
             std::to_string(k_.size()) + " as of k");
    }
    for (size_t layer = 0; layer < scales.size(); ++layer) {
      if (scale_block_ != 0) require_like_k(name, layer, scales[layer], 3, f32);
      require_same(name_at(name, layer), scales[layer], f32);
    }
  }
  using NamedPools = std::vector<std::pair<std::string, TensorView>>;
  static std::string name_at(const char* name, size_t layer) {
    return std::string(name) + "[" + std::to_string(layer) + "]";
  }
  NamedPools named_pools() const {
    NamedPools pools;
    for (size_t layer = 0; layer < k_.size(); ++layer) pools.emplace_back(name_at("k", layer), k_[layer]);
    for (size_t layer = 0; layer < v_.size(); ++layer) pools.emplace_back(name_at("v", layer), v_[layer]);
    return pools;
  }
  NamedPools named_scale_pools() const {
    NamedPools pools;
    for (const auto& [name, scales] : {std::pair{"k_scale", &k_scale_}, {"v_scale", &v_scale_}}) {
      for (size_t layer = 0; layer < scales->size(); ++layer) {
        tessella_tensor pool = (*scales)[layer].c_tensor();
        if (pool.ndim != 3 || pool.shape[0] != pages_.num_pages() || pool.shape[0] == 1 || pool.strides[0] == 0)
          continue;
        pool.ndim = 4;
        pool.shape[3] = pool.strides[3] = 1;
        pools.emplace_back(name_at(name, layer), TensorView(pool));
      }
    }
    return pools;
  }
  // Copies nothing; an error, which names arguments of copy_pages, is said in these names.
  static void require_copies(const NamedPools& named) {
    std::vector<TensorView> pools;
    for (const auto& [name, pool] : named) pools.push_back(pool);
    try {
      if (!pools.empty()) copy_pages(pools, view_of({}));
    } catch (const Error& error) {
      std::string said = error.what();
      said.erase(0, said.find(": ") + 2);
      for (size_t i = 0; i < named.size(); ++i) {
        const std::string name = name_at("pools", i);
        for (size_t at = said.find(name); at != std::string::npos; at = said.find(name)) {
          said.replace(at, name.size(), named[i].first);
        }
      }
      refuse(said, error.code());
    }
  }
  static TensorView view_of(const std::vector<PageCopy>& copies) {
    return tessella::view(copies.data(), i32, {static_cast<int64_t>(copies.size()), 2}, {}, {TESSELLA_CPU, 0});
  }
  void copy(const std::vector<PageCopy>& copies) const {
    const TensorView pairs = view_of(copies);
    copy_pages(pools(), pairs);
    if (const std::vector<TensorView> scales = scale_pools(); !scales.empty()) copy_pages(scales, pairs);
  }
  void add_scale(std::vector<TensorView>& scales, const PagedCacheSizes& sizes) {
    if (sizes.scale == CacheScale::token) {
      add(scales, sizes, f32, 1);
      tessella_tensor pool = scales.back().c_tensor();
      pool.ndim = 3;
      scales.back() = TensorView(pool);
      return;
    }
    const int64_t count = sizes.scale == CacheScale::head ? sizes.heads_kv : 1;
    memory_.emplace_back(new (std::nothrow) std::byte[static_cast<size_t>(count) * sizeof(float)]);
    if (memory_.back() == nullptr) {
      refuse("no memory for " + std::to_string(count) + " scales", ErrorCode::out_of_memory);
    }
    auto* ones = reinterpret_cast<float*>(memory_.back().get());
    for (int64_t i = 0; i < count; ++i) ones[i] = 1;
    scales.push_back(tessella::view(ones, f32, {count}));
  }
  void add(std::vector<TensorView>& pools, const PagedCacheSizes& sizes, DType dtype, int64_t head_dim) {
    const bool is_half = size_bits(dtype) == 4;  // two elements a byte
    int64_t bytes = is_half ? 1 : size_bits(dtype) / 8;
    const std::string shape = "(" + std::to_string(sizes.num_pages) + ", " + std::to_string(sizes.page_size) + ", " +
                              std::to_string(sizes.heads_kv) + ", " + std::to_string(head_dim) + ")";
    for (const int64_t length : {sizes.num_pages, sizes.page_size, sizes.heads_kv, is_half ? head_dim / 2 : head_dim}) {
      if (length > PTRDIFF_MAX / bytes) {
        refuse("a pool " + shape + " of " + name_of(dtype) +
                   " has more bytes than an array can have, expected at most " + std::to_string(PTRDIFF_MAX),
               ErrorCode::out_of_memory);
      }
      bytes *= length;
    }
    memory_.emplace_back(new (std::nothrow) std::byte[static_cast<size_t>(bytes)]);
    if (memory_.back() == nullptr) {
      refuse("no memory for a pool " + shape + " of " + name_of(dtype) + ", " + std::to_string(bytes) + " bytes",
             ErrorCode::out_of_memory);
    }
    pools.push_back(
        tessella::view(memory_.back().get(), dtype, {sizes.num_pages, sizes.page_size, sizes.heads_kv, head_dim}));
  }
  size_t idx_of(int layer) const {
    if (layer < 0 || layer >= num_layers()) {
      refuse("layer", layer, "0 to " + std::to_string(num_layers() - 1));
    }
    return static_cast<size_t>(layer);
  }
  static int64_t size_of(const std::vector<TensorView>& k, const std::vector<TensorView>& v, int axis) {
    if (k.empty()) refuse("k.size()", 0, "at least 1");
    if (k.size() != v.size()) refuse("v.size()", static_cast<int64_t>(v.size()), std::to_string(k.size()) + " as of k");
    if (k[0].ndim() != 4) refuse("k[0].ndim", k[0].ndim(), "4: (num_pages, page_size, heads_kv, head_dim)");
    return k[0].shape(axis);
  }

  Pages pages_;
  std::unique_ptr<std::mutex> reserving_ = std::make_unique<std::mutex>();
  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<TensorView> k_, v_, k_scale_, v_scale_;
  int64_t scale_block_ = 0;
};

}  // namespace tessella
