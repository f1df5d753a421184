#include "toy/twice.hpp"

#include <algorithm>
#include <array>

#include "core/limits.hpp"
#include "core/operation_of.hpp"
#include "core/overlaps.hpp"
#include "core/plan.hpp"
#include "operations/resources.hpp"
#include "operations/tensor_reader.hpp"

namespace tessella::toy {

const core::OperationType& TwiceShape::type() {
  static constexpr core::OperationOf<Twice> kType;
  return kType;
}

std::string Twice::ineligible(const core::Kernel& kernel, const Shape& shape) {
  return core::ineligible_head_dim(kernel, "head_dim", shape.head_dim);
}

Twice::Arguments Twice::read(const Args& args, const Options& options, const core::Reading& reading) {
  core::TensorReader reader(reading);
  Arguments a;
  const core::TensorAxes x = reader.attention("x", args.x, false, a.from);
  const core::TensorAxes out = reader.attention("out", args.out, false, a.into);
  if (out.rows != x.rows) reader.mismatch("out", *args.out, 4, 1, out.rows, x.rows, "the rows of x");
  reader.writable("out", args.out);
  core::read_resources<Twice>(a, options, reader);
  a.x = {a.from.dtype, 1};
  a.batch = x.batch;
  a.rows = x.rows;
  a.heads = x.heads;
  a.head_dim = x.head_dim;
  return a;
}

void Twice::validate(const Arguments& a, const char* function) {
  core::validate_resources(a, function);
  validate_sizes(a, function);
  core::validate_outputs_not_folded(a, function);
  core::validate_outputs(a, function, [](const core::FieldName&, const core::FieldName&) { return false; });
}

void Twice::validate_sizes(const Shape& shape, const char* function) {
  core::at_most(function, "the rows of x", shape.rows, core::kMostRows);
}

Twice::Shape Twice::bounds(const Shape& shape, const Options& options) {
  Shape bounds = shape;
  bounds.rows = std::max(shape.rows, options.max_rows);
  return bounds;
}

namespace {

void run(const core::Arguments& arguments, const core::Plan&, core::Workspace, void*) {
  const auto& a = arguments.as<TwiceArguments>();
  for (int64_t b = 0; b < a.batch; ++b) {
    for (int64_t i = 0; i < a.rows; ++i) {
      for (int64_t h = 0; h < a.heads; ++h) {
        const auto* from = reinterpret_cast<const float*>(a.from.row(b, i, h));
        std::transform(from, from + a.head_dim, reinterpret_cast<float*>(a.into.row(b, i, h)),
                       [](float value) { return 2 * value; });
      }
    }
  }
}

core::Offer offer(const core::Shape& shape, int) {
  return {.workspace = {.scratch_bytes = 64 * shape.as<TwiceShape>().rows}};
}

}  // namespace

core::KernelTable twice_kernels() {
  static const std::array kKernels{core::Kernel{.name = "toy.twice",
                                                .operation = kTwice,
                                                .summary = "one loop",
                                                .dtypes = core::dtype_bit(core::DType::f32),
                                                .max_head_dim = 8,
                                                .offer = offer,
                                                .run = run}};
  return kKernels;
}

}  // namespace tessella::toy
