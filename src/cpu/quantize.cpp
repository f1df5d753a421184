#include "cpu/quantize.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "core/element.hpp"
#include "cpu/parallel.hpp"
#include "cpu/rotate.hpp"
#include "operations/quantize/arguments.hpp"
#include "operations/quantize/quantize_rows.hpp"
#include "portable/hadamard.hpp"
#include "portable/quantize.hpp"

namespace tessella::cpu {
namespace {

using core::QuantizeArguments;
using core::QuantizeShape;
using portable::Element;
using portable::SequenceRow;

using core::kTransposedTile;

// Columns of a row of products that is summed in pairs.
int64_t paired_columns(const QuantizeShape& p) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(p.head_dim, 8))));
}

// Scratch of a thread, in floats and then bytes.
struct Scratch {
  float *cos, *sin, *row, *products, *chunk, *sum;
  uint8_t* tile;  // columns of a transposed tile, or the rows of one

  static int64_t floats(const QuantizeShape& p) { return p.rotary_dim + 3 * p.head_dim + paired_columns(p); }
  static int64_t bytes(const QuantizeShape& p) {
    const int64_t tile = p.is_transposed ? kTransposedTile * p.head_dim : 0;
    return (floats(p) * static_cast<int64_t>(sizeof(float)) + tile + 63) / 64 * 64;
  }
  Scratch(const QuantizeShape& p, void* scratch, int worker) {
    auto* base = reinterpret_cast<float*>(static_cast<std::byte*>(scratch) + worker * bytes(p));
    cos = base;
    sin = cos + p.rotary_dim / 2;
    row = cos + p.rotary_dim;
    chunk = row + p.head_dim;
    sum = chunk + p.head_dim;
    products = sum + p.head_dim;
    tile = reinterpret_cast<uint8_t*>(base + floats(p));
  }
};

// Neighbouring columns are added, then neighbouring sums, and so on: as lanes of a GPU do it.
float dot(const float* x, const float* y, int64_t count, float* products, int64_t paired) {
  for (int64_t c = 0; c < count; ++c) products[c] = x[c] * y[c];
  std::fill(products + count, products + paired, 0.0f);
  for (; paired > 1; paired /= 2) {
    for (int64_t i = 0; i < paired / 2; ++i) products[i] = products[2 * i] + products[2 * i + 1];
  }
  return products[0];
}

// The float that is larger in magnitude stays; a NaN is larger than infinity.
void raise(float* at, uint32_t most) {
  const std::atomic_ref<float> shared(*at);
  float before = shared.load(std::memory_order_relaxed);
  while (portable::magnitude(before) < most &&
         !shared.compare_exchange_weak(before, portable::bits_float(most), std::memory_order_relaxed)) {
  }
}

void store_row(const float* row, int64_t count, const float* scale, Element element, uint8_t* into) {
  const float divisor = scale == nullptr ? 1.0f : portable::divisor_of(*scale);
  if (element == Element::e4m3) {
    portable::quantize_row<Element::e4m3>(row, count, divisor, into);
  } else {
    portable::quantize_row<Element::e5m2>(row, count, divisor, into);
  }
}

// A call of quantize or dequantize, and its rows.
class RowsOfCall {
 protected:
  RowsOfCall(const QuantizeArguments& a, const core::Plan& plan, core::Workspace workspace)
      : a_(a), num_threads_(plan.num_threads), scratch_(workspace.scratch), tables_(core::sequence_tables(a)) {}

  SequenceRow row_at(int64_t tensor_batch, int64_t row) const {
    return portable::sequence_row(tables_, static_cast<int32_t>(tensor_batch), static_cast<int32_t>(row));
  }
  const float* mean(const SequenceRow& at, int64_t head) const {
    return reinterpret_cast<const float*>(a_.mean.row(at.batch_idx, 0, head));
  }

  const QuantizeArguments& a_;
  int num_threads_;
  void* scratch_;
  portable::SequenceTables tables_;
};

// T: of the elements of x.
template <typename T>
class Quantizer : RowsOfCall {
 public:
  Quantizer(const QuantizeArguments& a, const core::Plan& plan, core::Workspace workspace)
      : RowsOfCall(a, plan, workspace), element_(core::element(a.into.dtype)) {}

  void run() const {
    if (a_.mean.data != nullptr) means();
    const bool are_small = core::has_small_entries(a_);
    if (a_.computes_scales && !are_small) scales();
    if (are_small) {
      blocks();
    } else if (a_.is_transposed) {
      tiles();
    } else {
      for_rows([&](const SequenceRow& at, const Scratch& t) {
        for (int64_t head = 0; head < a_.heads; ++head) store(at, head, t);
      });
    }
  }

 private:
  // A piece of work of some 64 KB, so that handing it out costs nothing beside it.
  int64_t rows_of_task() const {
    const int64_t row_bytes = a_.heads * a_.head_dim * static_cast<int64_t>(sizeof(T));
    return std::clamp<int64_t>((int64_t{64} << 10) / row_bytes, 1, 4096);
  }

  // Calls fn for every row of a sequence.
  template <typename Fn>
  void for_rows(Fn&& fn) const {
    const int64_t step = rows_of_task(), tasks = (a_.total + step - 1) / step;
    parallel_for(a_.tensor_batch() * tasks, num_threads_, a_.cancel, [&](int64_t task, int worker) {
      const int64_t begin = task % tasks * step;
      const Scratch t(a_, scratch_, worker);
      for (int64_t row = begin; row < std::min(begin + step, a_.total); ++row) {
        const SequenceRow at = row_at(task / tasks, row);
        if (!at.exists) continue;
        angles(at, t);
        fn(at, t);
      }
    });
  }

  void angles(const SequenceRow& at, const Scratch& t) const {
    if (a_.rotary_dim == 0) return;
    load_angles(a_.rotary, a_.cos.row(0, at.position, 0), a_.sin.row(0, at.position, 0), a_.rotary_dim / 2, t.cos,
                t.sin);
  }

  // A row of x in fp32, rotated.
  void rotated(const SequenceRow& at, int64_t head, const Scratch& t) const {
    const auto* from = reinterpret_cast<const T*>(a_.from.row(at.tensor_batch, at.row, head));
    rotate_row(from, t.row, a_.rotary_dim, a_.rotary_interleaved, t.cos, t.sin);
    std::transform(from + a_.rotary_dim, from + a_.head_dim, t.row + a_.rotary_dim, [](T x) { return load(x); });
  }

  // The same as it is divided by its scale.
  void prepared(const SequenceRow& at, int64_t head, const Scratch& t) const {
    rotated(at, head, t);
    if (a_.mean.data != nullptr) {
      const float* subtracted = mean(at, head);
      for (int64_t c = 0; c < a_.head_dim; ++c) t.row[c] -= subtracted[c];
    }
    if (a_.hadamard) {
      portable::sign_row(t.row, a_.head_dim, a_.hadamard_seed);
      portable::hadamard_row(t.row, a_.head_dim);
    }
  }

  void shift(const SequenceRow& at, int64_t head, const Scratch& t) const {
    rotated(at, head, t);
    const int64_t k_head = head / (a_.heads / a_.mean_heads);
    const auto* mean = reinterpret_cast<const float*>(a_.k_mean.row(at.batch_idx, 0, k_head));
    *reinterpret_cast<float*>(a_.lse_shift.row(at.tensor_batch, at.row, head)) =
        dot(t.row, mean, a_.head_dim, t.products, paired_columns(a_));
  }

  void store(const SequenceRow& at, int64_t head, const Scratch& t) const {
    auto* into = reinterpret_cast<uint8_t*>(a_.into.row(at.tensor_batch, at.row, head));
    store(at, head, t, into);
  }
  void store(const SequenceRow& at, int64_t head, const Scratch& t, uint8_t* into) const {
    if (a_.has_shift) shift(at, head, t);
    prepared(at, head, t);
    store_row(t.row, a_.head_dim, a_.scale_of(at.batch_idx, at.row, head), element_, into);
  }

  void means() const {
    parallel_for(a_.batch * a_.heads, num_threads_, a_.cancel, [&](int64_t task, int worker) {
      const int64_t batch_idx = task / a_.heads, head = task % a_.heads;
      const Scratch t(a_, scratch_, worker);
      const portable::SequenceSpan span = portable::span_of(tables_, static_cast<int32_t>(batch_idx));
      std::fill(t.sum, t.sum + a_.head_dim, 0.0f);
      for (int64_t first = span.begin; first < span.end; first += portable::kMeanRows) {
        std::fill(t.chunk, t.chunk + a_.head_dim, 0.0f);
        for (int64_t row = first; row < std::min<int64_t>(first + portable::kMeanRows, span.end); ++row) {
          const SequenceRow at = row_at(span.tensor_batch, row);
          angles(at, t);
          rotated(at, head, t);
          for (int64_t c = 0; c < a_.head_dim; ++c) t.chunk[c] += t.row[c];
        }
        for (int64_t c = 0; c < a_.head_dim; ++c) t.sum[c] += t.chunk[c];
      }
      const auto rows = static_cast<float>(std::max(span.end - span.begin, 1));
      auto* mean = reinterpret_cast<float*>(a_.mean.row(batch_idx, 0, head));
      for (int64_t c = 0; c < a_.head_dim; ++c) mean[c] = t.sum[c] / rows;
    });
  }

  template <typename Fn>
  void for_entries(Fn&& fn) const {
    const QuantizeArguments::Entries entries = a_.entries();
    parallel_for(entries.batch * entries.blocks, num_threads_, a_.cancel, [&](int64_t task, int) {
      for (int64_t head = 0; head < entries.heads; ++head) {
        fn(*reinterpret_cast<float*>(a_.scale.row(task / entries.blocks, task % entries.blocks, head)));
      }
    });
  }

  // Entries of many rows gather the largest magnitude in place of a scale.
  void scales() const {
    for_entries([](float& scale) { scale = 0; });
    for_rows([&](const SequenceRow& at, const Scratch& t) {
      for (int64_t head = 0; head < a_.heads; ++head) {
        prepared(at, head, t);
        raise(a_.scale_of(at.batch_idx, at.row, head), portable::largest_magnitude(t.row, a_.head_dim));
      }
    });
    for_entries([&](float& scale) { scale = portable::scale_of(portable::magnitude(scale), element_); });
  }

  // Blocks of rows with scales of their own, of all heads.
  void blocks() const {
    const int64_t count = a_.scale_axes().blocks, heads = a_.entries().heads, heads_of_entry = a_.heads / heads;
    parallel_for(a_.tensor_batch() * count, num_threads_, a_.cancel, [&](int64_t task, int worker) {
      const int64_t tensor_batch = task / count, block = task % count, begin = block * a_.scale_block;
      const int64_t end = std::min(begin + a_.scale_block, a_.total);
      const Scratch t(a_, scratch_, worker);
      for (int64_t entry = 0; entry < heads; ++entry) {
        const auto each_row = [&](auto&& fn) {
          for (int64_t row = begin; row < end; ++row) {
            const SequenceRow at = row_at(tensor_batch, row);
            if (!at.exists) continue;
            angles(at, t);
            for (int64_t head = 0; head < heads_of_entry; ++head) fn(at, entry * heads_of_entry + head);
          }
        };
        uint32_t most = 0;
        each_row([&](const SequenceRow& at, int64_t head) {
          prepared(at, head, t);
          most = std::max(most, portable::largest_magnitude(t.row, a_.head_dim));
        });
        *reinterpret_cast<float*>(a_.scale.row(tensor_batch, block, entry)) = portable::scale_of(most, element_);
        each_row([&](const SequenceRow& at, int64_t head) { store(at, head, t); });
      }
    });
  }

  // Tiles of a transposed tensor.
  void tiles() const {
    const int64_t tiles = a_.padded() / kTransposedTile;
    parallel_for(a_.batch * a_.heads * tiles, num_threads_, a_.cancel, [&](int64_t task, int worker) {
      const int64_t head = task / tiles % a_.heads, batch_idx = task / tiles / a_.heads;
      const int64_t begin = task % tiles * kTransposedTile, rows = std::min(kTransposedTile, a_.total - begin);
      const Scratch t(a_, scratch_, worker);
      for (int64_t row = 0; row < rows; ++row) {
        const SequenceRow at = row_at(batch_idx, begin + row);
        angles(at, t);
        store(at, head, t, t.tile + row * a_.head_dim);
      }
      for (int64_t c = 0; c < a_.head_dim; ++c) {
        auto* column = reinterpret_cast<uint8_t*>(a_.into.row(batch_idx, c, head)) + begin;
        for (int64_t row = 0; row < kTransposedTile; ++row) {
          column[portable::key_place(row)] = row < rows ? t.tile[row * a_.head_dim + c] : 0;
        }
      }
    });
  }

  Element element_;
};

// T: of the elements of out.
template <typename T>
class Dequantizer : RowsOfCall {
 public:
  Dequantizer(const QuantizeArguments& a, const core::Plan& plan, core::Workspace workspace)
      : RowsOfCall(a, plan, workspace) {
    for (uint32_t bits = 0; bits < numbers_.size(); ++bits) {
      numbers_[bits] = portable::number_of(bits, core::element(a.from.dtype));
    }
  }

  void run() const {
    const int64_t tiles = a_.padded() / kTransposedTile;
    parallel_for(a_.tensor_batch() * tiles, num_threads_, a_.cancel, [&](int64_t task, int worker) {
      const int64_t begin = task % tiles * kTransposedTile, end = std::min(begin + kTransposedTile, a_.total);
      const Scratch t(a_, scratch_, worker);
      for (int64_t head = 0; head < a_.heads; ++head) {
        if (a_.is_transposed) load_tile(task / tiles, begin, head, t.tile);
        for (int64_t row = begin; row < end; ++row) {
          const SequenceRow at = row_at(task / tiles, row);
          if (!at.exists) continue;
          const auto* from = a_.is_transposed
                                 ? t.tile + (row - begin) * a_.head_dim
                                 : reinterpret_cast<const uint8_t*>(a_.from.row(at.tensor_batch, row, head));
          write(at, head, from, t.row);
        }
      }
    });
  }

 private:
  // The rows of a tile of a transposed tensor.
  void load_tile(int64_t batch_idx, int64_t begin, int64_t head, uint8_t* tile) const {
    for (int64_t c = 0; c < a_.head_dim; ++c) {
      const auto* column = reinterpret_cast<const uint8_t*>(a_.from.row(batch_idx, c, head)) + begin;
      for (int64_t row = 0; row < kTransposedTile; ++row)
        tile[row * a_.head_dim + c] = column[portable::key_place(row)];
    }
  }

  void write(const SequenceRow& at, int64_t head, const uint8_t* from, float* row) const {
    const float* given = a_.scale_of(at.batch_idx, at.row, head);
    const float scale = given == nullptr ? 1.0f : *given;
    for (int64_t c = 0; c < a_.head_dim; ++c) row[c] = numbers_[from[c]] * scale;
    if (a_.hadamard) {
      portable::hadamard_row(row, a_.head_dim);
      portable::sign_row(row, a_.head_dim, a_.hadamard_seed);
    }
    if (a_.mean.data != nullptr) {
      const float* added = mean(at, head);
      for (int64_t c = 0; c < a_.head_dim; ++c) row[c] += added[c];
    }
    auto* into = reinterpret_cast<T*>(a_.into.row(at.tensor_batch, at.row, head));
    std::transform(row, row + a_.head_dim, into, [](float x) { return rounded<T>(x); });
  }

  std::array<float, 256> numbers_;
};

// Calls fn with a null pointer to the type of the elements of numbers.
template <typename Fn>
void with_float(core::DType dtype, Fn&& fn) {
  with_element(dtype, [&]<typename T>(const T* type) {
    if constexpr (!std::is_same_v<T, double>) fn(type);
  });
}

}  // namespace

core::WorkspaceSize quantize_workspace(const core::Shape& shape, int num_threads) {
  return {.state_bytes = 0, .scratch_bytes = num_threads * Scratch::bytes(core::quantize(shape))};
}

std::string describe_quantize(const core::Plan& plan) {
  const QuantizeShape& p = core::quantize(plan.shape);
  const char* scales = !p.computes_scales           ? ""
                       : core::has_small_entries(p) ? "scales of blocks computed on the way, "
                                                    : "scales computed before, ";
  return std::string("a row at a time, ") + scales + threads_string(plan.num_threads);
}

void run_quantize(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void*) {
  const QuantizeArguments& a = core::quantize(arguments);
  with_float(a.from.dtype, [&]<typename T>(const T*) { Quantizer<T>(a, plan, workspace).run(); });
}

void run_dequantize(const core::Arguments& arguments, const core::Plan& plan, core::Workspace workspace, void*) {
  const QuantizeArguments& a = core::quantize(arguments);
  with_float(a.into.dtype, [&]<typename T>(const T*) { Dequantizer<T>(a, plan, workspace).run(); });
}

}  // namespace tessella::cpu
