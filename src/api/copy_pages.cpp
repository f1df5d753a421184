#include "api/copy_pages.hpp"

#include <string>

#include "api/backends.hpp"
#include "api/grow.hpp"
#include "api/host_copy.hpp"
#include "api/tensor_reader.hpp"
#include "core/error.hpp"
#include "core/message.hpp"
#include "core/validate.hpp"

namespace tessella::api {
namespace {

using core::CopyPagesArguments;
using core::DType;
using core::invalid;
using core::message;

CopyPagesArguments::Pool pool(TensorReader& reader, const char* function, const std::string& name,
                              const tessella_tensor& tensor, CopyPagesArguments& a) {
  if (tensor.ndim != 4) {
    invalid(
        message(function, ": ", name, " has ", tensor.ndim, " axes, expected (num_pages, page_size, heads, head_dim)"));
  }
  CopyPagesArguments::Pool pool;
  const TensorAxes axes = reader.attention(name.c_str(), &tensor, false, pool.pages);
  if (a.given.empty()) a.num_pages = axes.batch;
  if (axes.batch != a.num_pages) {
    reader.mismatch(name.c_str(), tensor, 4, 0, axes.batch, a.num_pages, "the pages of pools[0]");
  }
  const DType dtype = a.given.empty() ? pool.pages.dtype : a.given.front().pages.dtype;
  if (pool.pages.dtype != dtype) {
    invalid(message(function, ": ", name, ".dtype is ", core::name(pool.pages.dtype), ", expected ", core::name(dtype),
                    " = pools[0].dtype"));
  }
  if (dtype == DType::i4 && axes.head_dim % 2 != 0) {
    invalid(message(function, ": ", name, ".shape[3] is ", axes.head_dim,
                    ", expected an even one for i4, which has two elements a byte"));
  }
  pool.rows = axes.rows;
  pool.heads = axes.heads;
  pool.head_dim = axes.head_dim;
  return pool;
}

CopyPagesArguments normalize(const tessella_copy_pages_args& args, const tessella_copy_pages_options& options,
                             const char* function, Memory memory) {
  if (args.num_pools < 1) invalid(message(function, ": num_pools is ", args.num_pools, ", expected at least 1"));
  if (args.pools == nullptr) invalid(message(function, ": pools is NULL, expected num_pools tensors"));
  if (args.pairs == nullptr) invalid(message(function, ": pairs is NULL, expected a tensor"));
  TensorReader reader(function, has_operands(memory));
  CopyPagesArguments a;
  for (int32_t i = 0; i < args.num_pools; ++i) {
    const std::string name = message("pools[", i, "]");
    a.given.push_back(pool(reader, function, name, args.pools[i], a));
    if (memory == Memory::written && (args.pools[i].flags & TESSELLA_READ_ONLY) != 0) {
      invalid(message(function, ": ", name, " is read-only, expected memory that may be written"));
    }
  }
  a.pairs = reader.pairs("pairs", *args.pairs);
  a.num_pairs = args.pairs->shape[0];
  a.device = reader.device();
  a.num_threads = options.num_threads;
  a.num_sms = options.num_sms;
  a.cancel = options.cancel;
  if (a.num_sms != 0 && a.device.type == core::DeviceType::cpu) {
    core::unsupported(message(function, ": option num_sms is for GPUs, and pools are on the CPU"));
  }
  core::derive_shape(a);
  return a;
}

}  // namespace

tessella_copy_pages_options grown(const tessella_copy_pages_options* options, const char* function) {
  const tessella_copy_pages_options defaults = TESSELLA_COPY_PAGES_OPTIONS_INIT;
  return options == nullptr ? defaults : grow(options, defaults, function, "options");
}

CopyPagesArguments read(const tessella_copy_pages_args* args, const tessella_copy_pages_options& options,
                        const char* function, void*, Memory memory) {
  const tessella_copy_pages_args defaults = TESSELLA_COPY_PAGES_ARGS_INIT;
  const tessella_copy_pages_args given = grow(args, defaults, function, "args");
  CopyPagesArguments arguments = normalize(given, options, function, memory);
  core::validate(arguments, function);
  return arguments;
}

core::CopyPagesShape bounds(const core::CopyPagesShape& shape, const tessella_copy_pages_options&) { return shape; }

reference::CheckReport check(const CopyPagesArguments& arguments, int64_t num_rows, uint64_t seed) {
  if (arguments.device.type == core::DeviceType::cpu) return reference::check_copy_pages(arguments, num_rows, seed);
  backend_of(arguments.device).synchronize(arguments.device);
  return reference::check_copy_pages(HostCopy(arguments, Copied::all, nullptr).arguments(), num_rows, seed);
}

}  // namespace tessella::api
