// copy_pages: the user's structs -> arguments.

#include <string>

#include "core/error.hpp"
#include "core/message.hpp"
#include "operations/copy_pages/copy_pages.hpp"
#include "operations/resources.hpp"
#include "operations/tensor_reader.hpp"

namespace tessella::core {
namespace {

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

}  // namespace

CopyPagesArguments CopyPages::read(const Args& args, const Options& options, const Reading& reading) {
  const char* function = reading.function;
  if (args.num_pools < 1) invalid(message(function, ": num_pools is ", args.num_pools, ", expected at least 1"));
  if (args.pools == nullptr) invalid(message(function, ": pools is NULL, expected num_pools tensors"));
  if (args.pairs == nullptr) invalid(message(function, ": pairs is NULL, expected a tensor"));
  TensorReader reader(reading);
  CopyPagesArguments a;
  for (int32_t i = 0; i < args.num_pools; ++i) {
    const std::string name = message("pools[", i, "]");
    a.given.push_back(pool(reader, function, name, args.pools[i], a));
    reader.writable(name.c_str(), &args.pools[i]);
  }
  a.pairs = reader.pairs("pairs", *args.pairs);
  a.num_pairs = args.pairs->shape[0];
  read_resources<CopyPages>(a, options, reader);
  a.derive_shape();
  return a;
}

}  // namespace tessella::core
