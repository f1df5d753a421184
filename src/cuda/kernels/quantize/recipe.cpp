#include "cuda/kernels/quantize/recipe.hpp"

#include <algorithm>

#include "core/message.hpp"
#include "cuda/kernels/quantize/config.hpp"
#include "operations/quantize/arguments.hpp"
#include "operations/quantize/quantize_rows.hpp"
#include "portable/hadamard.hpp"

namespace tessella::cuda {
namespace {

using core::message;
using core::QuantizeArguments;
using core::QuantizeShape;
using portable::kMeanRows;
using portable::kQuantizeThreads;
using portable::QuantizeConfig;
using portable::QuantizeParams;

portable::QuantizeStrides strides(const core::Operand& t) { return {t.batch_stride, t.row_stride, t.head_stride}; }

// Sums of kMeanRows rows that there are room for, of one head: of every sequence, packed of all.
int64_t chunks_of_sequence(const QuantizeShape& p) { return (p.seqlen + kMeanRows - 1) / kMeanRows; }
int64_t num_chunks(const QuantizeShape& p) {
  return p.is_packed ? p.total / kMeanRows + p.batch : p.batch * chunks_of_sequence(p);
}

int64_t num_tiles(const QuantizeArguments& a, const QuantizeConfig& c) {
  return a.batch * a.heads * (a.padded() / portable::tile_rows(c));
}

QuantizeParams parameters(const QuantizeArguments& a, const core::Workspace& workspace) {
  QuantizeParams params{};
  const auto narrow = [](int64_t value) { return static_cast<int32_t>(value); };
  const QuantizeArguments::Entries entries = a.entries();
  params.tables = core::sequence_tables(a);
  params.x = a.from.data;
  params.out = a.into.data;
  params.scale = reinterpret_cast<float*>(a.scale.data);
  params.mean = reinterpret_cast<float*>(a.mean.data);
  params.k_mean = reinterpret_cast<const float*>(a.k_mean.data);
  params.lse_shift = reinterpret_cast<float*>(a.lse_shift.data);
  params.sums = static_cast<float*>(workspace.scratch);
  params.cos = a.cos.data;
  params.sin = a.sin.data;
  params.x_strides = strides(a.from);
  params.out_strides = strides(a.into);
  params.scale_strides = strides(a.scale);
  params.mean_strides = strides(a.mean);
  params.k_mean_strides = strides(a.k_mean);
  params.shift_strides = strides(a.lse_shift);
  params.cos_stride = a.cos.row_stride;
  params.sin_stride = a.sin.row_stride;
  params.seed = a.hadamard_seed;
  params.rows = a.tokens() * a.heads;
  params.entries = entries.batch * entries.blocks * entries.heads;
  params.tensor_rows = portable::divisor(narrow(a.total));
  params.scale_block = portable::divisor(narrow(a.scale_block));
  params.entry_blocks = narrow(entries.blocks);
  params.entry_heads = narrow(entries.heads);
  params.chunks = narrow(chunks_of_sequence(a));
  params.heads = narrow(a.heads);
  params.head_dim = narrow(a.head_dim);
  params.heads_of_mean = narrow(a.mean_heads > 0 ? a.heads / a.mean_heads : 1);
  params.hadamard_block = narrow(portable::hadamard_block(a.head_dim));
  params.hadamard_factor = portable::hadamard_factor(params.hadamard_block);
  params.rotary_dim = narrow(a.rotary_dim);
  return params;
}

// What a step's blocks share among them.
enum class Work { rows, magnitudes, chunks, columns_of_means, entries, blocks_of_rows, tiles };

// Blocks of threads that a step has work for. Sets the counts of the parameters that are its own.
int64_t blocks_of(Work work, const QuantizeArguments& a, const QuantizeConfig& c, QuantizeParams& params) {
  const int64_t rows_at_once = kQuantizeThreads / portable::row_lanes(c);
  const auto blocks = [](int64_t count, int64_t at_once) { return (count + at_once - 1) / at_once; };
  switch (work) {
    case Work::rows:
    case Work::magnitudes: return blocks(params.rows, rows_at_once);
    case Work::chunks:
      params.rows = a.batch == 0 ? 0 : num_chunks(a) * a.heads;
      return blocks(params.rows, rows_at_once);
    case Work::columns_of_means:
      params.rows = a.batch * a.heads * a.head_dim;
      return blocks(params.rows, kQuantizeThreads);
    case Work::entries: return blocks(params.entries, kQuantizeThreads);
    case Work::blocks_of_rows: return params.entries;
    case Work::tiles: return params.entries = num_tiles(a, c);
  }
  return 0;
}

int shared_bytes(Work work, const QuantizeConfig& c) {
  if (work == Work::tiles) return portable::tile_bytes(c);
  return work == Work::blocks_of_rows ? kQuantizeThreads / 32 * static_cast<int>(sizeof(uint32_t)) : 0;
}

class Steps {
 public:
  Steps(const QuantizeShape& shape, const DeviceInfo& device)
      : config_(quantize_config(shape)), is_dependent_(device.arch >= 90) {}

  const QuantizeConfig& config() const { return config_; }
  const std::vector<Step>& steps() const { return steps_; }

  // The kernel has of the configuration what its work needs, so that few are compiled.
  void add(const char* kernel, Work work) {
    QuantizeConfig config = config_;
    if (work == Work::entries || work == Work::columns_of_means) config = {.quantized = config_.quantized};
    if (work == Work::chunks) config.has_mean = config.hadamard = false;
    if (work == Work::chunks || work == Work::magnitudes) config.shifts = config.own_scales = false;
    steps_.push_back(
        {.program = quantize_program(kernel, config),
         .threads = kQuantizeThreads,
         .shared_bytes = shared_bytes(work, config),
         .blocks_per_sm = portable::blocks_per_sm(config),
         .is_dependent = is_dependent_,
         .launch = [work, config](const core::Shape&, const core::Arguments& call, const Concurrency& at_once,
                                  const core::Workspace& workspace) -> std::optional<Launch> {
           const QuantizeArguments& a = core::quantize(call);
           QuantizeParams params = parameters(a, workspace);
           const int64_t blocks = std::min(at_once.blocks, blocks_of(work, a, config, params));
           if (blocks == 0) return std::nullopt;
           return Launch{{static_cast<unsigned>(blocks), 1, 1}, Parameters(params)};
         }});
  }

 private:
  QuantizeConfig config_;
  bool is_dependent_;
  std::vector<Step> steps_;
};

std::string description(const QuantizeShape& shape, const QuantizeConfig& c, size_t steps) {
  std::string words = message(portable::row_lanes(c), " threads a row, ", c.vectors ? "16-byte" : "scalar", " loads, ",
                              steps, steps == 1 ? " step" : " steps");
  if (shape.computes_scales)
    words += c.own_scales ? ", scales of blocks computed on the way" : ", scales computed before";
  return words;
}

}  // namespace

Recipe quantize_recipe(const core::Shape& shape, const DeviceInfo& device) {
  const QuantizeShape& p = core::quantize(shape);
  Steps steps(p, device);
  Recipe recipe;
  if (steps.config().has_mean) {
    steps.add("quantize_sums", Work::chunks);
    steps.add("quantize_means", Work::columns_of_means);
    recipe.workspace.scratch_bytes = num_chunks(p) * p.heads * p.head_dim * static_cast<int64_t>(sizeof(float));
  }
  if (p.computes_scales && !steps.config().own_scales) {
    steps.add("clear_scales", Work::entries);
    steps.add("largest_values", Work::magnitudes);
    steps.add("finish_scales", Work::entries);
  }
  if (p.is_transposed) {
    steps.add("quantize_tiles", Work::tiles);
  } else if (steps.config().own_scales && (p.scale_block > 1 || p.heads_share)) {
    steps.add("quantize_blocks", Work::blocks_of_rows);
  } else {
    steps.add("quantize_rows", Work::rows);
  }
  recipe.steps = steps.steps();
  recipe.description = description(p, steps.config(), recipe.steps.size());
  return recipe;
}

Recipe dequantize_recipe(const core::Shape& shape, const DeviceInfo& device) {
  const QuantizeShape& p = core::quantize(shape);
  Steps steps(p, device);
  if (p.is_transposed) {
    steps.add("dequantize_tiles", Work::tiles);
  } else {
    steps.add("dequantize_rows", Work::rows);
  }
  Recipe recipe;
  recipe.steps = steps.steps();
  recipe.description = description(p, steps.config(), recipe.steps.size());
  return recipe;
}

}  // namespace tessella::cuda
