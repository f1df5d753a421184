#include "commands/random_case.hpp"

#include <fmt/core.h>

#include <cstring>
#include <utility>
#include <vector>

#include "commands/attend_inputs.hpp"
#include "files/input_error.hpp"
#include "options/mask_string.hpp"
#include "options/number_string.hpp"

namespace tessella::cli {
namespace {

constexpr int64_t kPoolSize = 1 << 16;

// Normal numbers drawn once; every row begins at a random position of this pool, because drawing each number of a large
// input would take longer than attention over it.
std::vector<std::byte> normal_pool(tessella_dtype dtype, int64_t bytes, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<std::byte> pool(static_cast<size_t>(kPoolSize * bytes));
  for (int64_t i = 0; i < kPoolSize; ++i) store_element(pool.data(), dtype, i, normal(random));
  return pool;
}

}  // namespace

void fill_normal(Array& array, std::mt19937_64& random) {
  const int64_t bytes = array.element_bytes;
  const std::vector<std::byte> pool = normal_pool(array.tensor.dtype, bytes, random);
  const int64_t size = num_elements(array.tensor);
  auto* data = static_cast<std::byte*>(array.tensor.data);
  for (int64_t i = 0; i < size;) {
    const int64_t begin = static_cast<int64_t>(random() % kPoolSize);
    const int64_t count = std::min({int64_t{256}, kPoolSize - begin, size - i});
    std::memcpy(data + i * bytes, pool.data() + begin * bytes, static_cast<size_t>(count * bytes));
    i += count;
  }
}

double RandomCase::flops() const {
  const double pairs = static_cast<double>(seqlen_q) * static_cast<double>(seqlen_kv);
  return 4.0 * static_cast<double>(batch * heads_q * head_dim) * pairs * (mask == "causal" ? 0.5 : 1.0) *
         (is_backward ? 2.5 : 1.0);
}

void parse_heads(std::string_view what, const std::string& string, int64_t& heads_q, int64_t& heads_kv) {
  const std::vector<std::string> parts = split(string, '/');
  constexpr int64_t kMost = 1 << 20;
  if (parts.size() > 2) throw InputError(fmt::format("{} is '{}', expected such as 16 or 32/8", what, string));
  heads_q = parse_integer_between(what, parts.front(), 1, kMost);
  heads_kv = parse_integer_between(what, parts.back(), 1, kMost);
  if (heads_q % heads_kv != 0) {
    throw InputError(fmt::format("{} is '{}', expected query heads to be a multiple of KV heads", what, string));
  }
}

Call make_random_call(const RandomCase& random_case, const AttentionOptionValues& options, bool fill) {
  const RandomCase& c = random_case;
  Call call;
  std::mt19937_64 random(1);
  const int64_t q_shape[] = {c.batch, c.seqlen_q, c.heads_q, c.head_dim};
  const int64_t kv_shape[] = {c.batch, c.seqlen_kv, c.heads_kv, c.head_dim};
  const auto add = [&](Call::Member member, const char* name, std::span<const int64_t> shape, tessella_dtype dtype) {
    return call.set(member, allocate_array(name, dtype, shape));
  };
  Array inputs[] = {add(&tessella_forward_args::q, "q", q_shape, c.dtype),
                    add(&tessella_forward_args::k, "k", kv_shape, c.dtype),
                    add(&tessella_forward_args::v, "v", kv_shape, c.dtype)};
  if (fill) {
    for (Array& input : inputs) fill_normal(input, random);
  }
  options.apply(call);
  if (call.args.page_table != nullptr) {
    throw InputError("--page-table is for `tessella attend`: random keys and values are not paged");
  }
  apply_mask(c.mask, call);
  add(&tessella_forward_args::out, "out", q_shape, out_dtype_of(call, c.dtype));
  if (c.is_backward) {
    allocate_lse(call);
    const tessella_backward_args none = TESSELLA_BACKWARD_ARGS_INIT;
    call.backward = none;
    Array& d_out = call.set(&tessella_backward_args::d_out, allocate_array("d_out", c.dtype, q_shape));
    if (fill) fill_normal(d_out, random);
    call.set(&tessella_backward_args::dq, allocate_array("dq", c.dtype, q_shape));
    call.set(&tessella_backward_args::dk, allocate_array("dk", c.dtype, kv_shape));
    call.set(&tessella_backward_args::dv, allocate_array("dv", c.dtype, kv_shape));
  }
  place(options.placement(), call);
  if (c.is_backward && fill) {
    const char* kernel = std::exchange(call.options.kernel, nullptr);  // of backward
    check(tessella_forward(&call.args, &call.options, nullptr));
    call.options.kernel = kernel;
  }
  return call;
}

}  // namespace tessella::cli
