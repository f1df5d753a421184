#include "cases/call_tensors.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace tessella::tests {
namespace {

int64_t span_bytes(const tessella_tensor& t) { return bytes_of(t.dtype, extent(t)); }

}  // namespace

Tensors::Tensor& Tensors::add(int32_t dtype, const std::vector<int64_t>& shape, bool heads_first, int64_t gap,
                              int64_t before, bool guard, bool is_written) {
  Tensor& made = *all_.emplace_back(std::make_unique<Tensor>());
  made.is_written = is_written;
  tessella_tensor& t = made.tensor;
  t.dtype = dtype;
  t.ndim = static_cast<int32_t>(shape.size());
  std::vector<int> order(shape.size());  // of axes in memory, outermost first
  std::iota(order.begin(), order.end(), 0);
  if (heads_first && t.ndim >= 3) std::swap(order[shape.size() - 2], order[shape.size() - 3]);
  int64_t step = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    const int axis = order[i];
    t.shape[axis] = shape[static_cast<size_t>(axis)];
    t.strides[axis] = step;
    step = step * std::max<int64_t>(t.shape[axis], 1) + (i + 1 == shape.size() ? gap : 0);
  }
  const int64_t front = guard ? 0 : bytes_of(dtype, before), behind = guard ? 0 : 64;
  made.memory =
      Memory(static_cast<size_t>(front + span_bytes(t) + behind), guard ? Placement::guarded : Placement::aligned);
  if (made.memory.size() != 0) std::memset(made.memory.data(), kPoison, made.memory.size());
  t.data = made.memory.data() + front;
  return made;
}

Tensors::Tensor& Tensors::add_table(const std::vector<int32_t>& values, const std::vector<int64_t>& shape) {
  Tensor& made = add(TESSELLA_I32, shape, false, 0, 0, true, false);
  if (!values.empty()) std::memcpy(made.tensor.data, values.data(), values.size() * sizeof(int32_t));
  return made;
}

void Tensors::remember() {
  for (const auto& tensor : all_) {
    tensor->before.assign(tensor->memory.data(), tensor->memory.data() + tensor->memory.size());
  }
}

std::string Tensors::spoiled(const std::vector<Written>& written) const {
  for (const auto& tensor : all_) {
    const auto found =
        std::find_if(written.begin(), written.end(), [&](const Written& one) { return one.tensor == tensor.get(); });
    for (size_t byte = 0; byte < tensor->before.size(); ++byte) {
      if (found != written.end() && found->bytes[byte]) continue;
      if (tensor->memory.data()[byte] != tensor->before[byte]) {
        return "byte " + std::to_string(byte) + " of " + std::to_string(tensor->before.size()) +
               (tensor->is_written ? " of an output changed" : " of an input changed");
      }
    }
  }
  return "";
}

std::vector<Tensors::Written> Tensors::all_elements() const {
  std::vector<Written> written;
  for (const auto& tensor : all_) {
    if (!tensor->is_written) continue;
    Bytes bytes(tensor->memory.size(), false);
    const tessella_tensor& t = tensor->tensor;
    const int64_t first = static_cast<std::byte*>(t.data) - tensor->memory.data();
    const int64_t batch = t.ndim == 4 ? t.shape[0] : 1;
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t row = 0; row < t.shape[t.ndim - 3]; ++row) {
        for (int64_t head = 0; head < t.shape[t.ndim - 2]; ++head) {
          std::fill_n(bytes.begin() + first + byte_at(t, b, row, head), bytes_of(t.dtype, t.shape[t.ndim - 1]), true);
        }
      }
    }
    written.push_back({tensor.get(), std::move(bytes)});
  }
  return written;
}

std::string Tensors::run_on_gpu(bool exact, const std::function<tessella_status(GpuTwin&)>& run) const {
  std::vector<HostBlock> blocks;
  for (const auto& tensor : all_) {
    blocks.push_back({static_cast<std::byte*>(tensor->tensor.data), static_cast<size_t>(span_bytes(tensor->tensor)),
                      tensor->is_written});
  }
  GpuTwin twin(blocks, exact);
  return run(twin) == TESSELLA_OK ? twin.download() : "";
}

}  // namespace tessella::tests
