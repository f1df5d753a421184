#include "cuda/kernels/linear_sm80/config.hpp"

#include "core/element.hpp"
#include "cuda/compile/expression.hpp"

namespace tessella::cuda {
namespace {

using portable::LinearSm80Config;

// The fewest that hold all rows: a power of two, so that few kernels are compiled.
int32_t row_blocks(int64_t rows) {
  int32_t blocks = 1;
  while (blocks < portable::kMostRowBlocks && rows > 8 * blocks) blocks *= 2;
  return blocks;
}

int32_t w_blocks(const core::LinearShape& shape, const DeviceInfo& device, const LinearSm80Config& c) {
  // A block has both rows of w that make a column of out.
  if (shape.activation == core::Activation::swiglu) return 2;
  // Each block reads its rows of x from the L2 cache. From as many bytes on as it has of 16 rows of w, 32 rows of w are
  // better, if they leave every multiprocessor a block. With fewer, small blocks keep more loads under way until the
  // last of them end, which counts until there are several turns of blocks.
  const bool reads_much_x = c.row_blocks >= size_bytes(c.weight);
  const int64_t turns = reads_much_x ? 1 : 4;
  return shape.out_features / 32 >= turns * device.num_sms ? 2 : 1;
}

}  // namespace

LinearSm80Config linear_sm80_config(const core::LinearShape& shape, const DeviceInfo& device) {
  LinearSm80Config c{.element = core::element(shape.dtype()),
                     .weight = core::element(shape.w_shape.dtype),
                     .row_blocks = row_blocks(shape.rows)};
  const int64_t whole = 16 / size_bytes(c.weight);
  c.vectors = shape.x_shape.alignment >= 16 && shape.w_shape.alignment >= 16 && shape.in_features % whole == 0;
  c.w_blocks = w_blocks(shape, device, c);
  return c;
}

Program linear_sm80_program(const LinearSm80Config& config) {
  return {.header = "cuda/kernels/linear_sm80/linear_sm80.cuh", .expression = expression("linear_sm80", config)};
}

}  // namespace tessella::cuda
