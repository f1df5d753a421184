#include "cuda/kernels/append/recipe.hpp"

#include <algorithm>
#include <bit>

#include "core/message.hpp"
#include "cuda/kernels/append/config.hpp"
#include "operations/append/arguments.hpp"
#include "operations/append/new_rows.hpp"

namespace tessella::cuda {
namespace {

using core::AppendArguments;
using core::message;
using portable::AppendConfig;
using portable::AppendParams;

portable::AppendRows rows(const core::RowsShape& shape, const AppendArguments::Rows& t) {
  return {t.from.data,
          t.into.data,
          reinterpret_cast<float*>(t.scale.data),
          t.from.batch_stride,
          t.from.row_stride,
          t.from.head_stride,
          t.into.batch_stride,
          t.into.row_stride,
          t.into.head_stride,
          t.scale.batch_stride,
          t.scale.row_stride,
          t.scale.head_stride,
          static_cast<int32_t>(shape.heads),
          static_cast<int32_t>(shape.head_dim)};
}

// Threads of a row: a power of two, as many as the longest has pieces or the next more, at most those of a warp.
int32_t log2_lanes(const AppendConfig& c, const core::AppendShape& p) {
  const int64_t head_dim = std::max({p.k_new.head_dim, p.v_new.head_dim, p.q.head_dim});
  const int64_t pieces = (head_dim + portable::piece(c) - 1) / portable::piece(c);
  return std::countr_zero(static_cast<uint64_t>(std::min<int64_t>(std::bit_ceil(static_cast<uint64_t>(pieces)), 32)));
}

std::optional<Launch> append_launch(const AppendConfig& config, const AppendArguments& a, const Concurrency& at_once) {
  AppendParams params{};
  params.tables = core::new_row_tables(a);
  params.k = rows(a.k_new, a.k_rows);
  params.v = rows(a.v_new, a.v_rows);
  params.q = rows(a.q, a.q_rows);
  params.cos = a.cos.data;
  params.sin = a.sin.data;
  params.cos_stride = a.cos.row_stride;
  params.sin_stride = a.sin.row_stride;
  params.heads = params.k.heads + params.v.heads + params.q.heads;
  params.rows = a.tokens() * params.heads;
  params.rotary_dim = static_cast<int32_t>(a.rotary_dim);
  params.log2_lanes = log2_lanes(config, a);
  if (params.rows == 0) return std::nullopt;
  const int64_t rows_of_block = portable::kAppendThreads >> params.log2_lanes;
  const int64_t blocks = std::min(at_once.blocks, (params.rows + rows_of_block - 1) / rows_of_block);
  return Launch{{static_cast<unsigned>(blocks), 1, 1}, Parameters(params)};
}

}  // namespace

Recipe append_recipe(const core::Shape& shape, const DeviceInfo& device) {
  const AppendConfig config = append_config(core::append(shape));
  Recipe recipe;
  recipe.steps.push_back(
      {.program = append_program(config),
       .threads = portable::kAppendThreads,
       .blocks_per_sm = portable::kAppendBlocksPerSm,
       .is_dependent = device.arch >= 90,
       .launch = [config](const core::Shape&, const core::Arguments& call, const Concurrency& at_once,
                          const core::Workspace&) { return append_launch(config, core::append(call), at_once); }});
  recipe.description = message(config.vectors ? "16-byte" : "scalar", " loads");
  if (portable::is_quantized(config.cache)) {
    recipe.description += message(", scales of rows ", config.computes_scales ? "computed" : "given");
  }
  return recipe;
}

}  // namespace tessella::cuda
