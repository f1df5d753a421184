#include "cases/gpu_twin.hpp"

#include <algorithm>
#include <cstring>

#include "device/extent.hpp"
#include "tessella/arguments.hpp"

namespace tessella::tests {
namespace {

constexpr uint8_t kPoison = 0xFF;  // every dtype reads it as NaN
constexpr size_t kAround = 256;    // bytes of poison on either side, and the alignment of blocks

size_t rounded_up(size_t bytes) { return (bytes + kAround - 1) / kAround * kAround; }

// What a thread keeps between its calls.
struct OfThread {
  cli::GpuStream stream{cli::Gpu::open(0)};
  cli::GpuMemory arena;
};
OfThread& of_thread() {
  thread_local OfThread t_own;
  return t_own;
}

}  // namespace

std::vector<HostBlock> blocks_of(const tessella_forward_args& args) {
  std::vector<HostBlock> blocks;
  const auto add = [&](const tessella_tensor& t, bool is_output) {
    blocks.push_back({static_cast<std::byte*>(t.data), cli::extent_bytes(t), is_output});
  };
  for (const detail::TensorField& field : detail::kTensorFields) {
    const auto member = field.member;
    if (args.*member == nullptr) continue;
    add(*(args.*member), member == &tessella_forward_args::out || member == &tessella_forward_args::lse ||
                             member == &tessella_forward_args::amax);
  }
  for (int32_t i = 0; i < args.num_mod_args; ++i) add(args.mod_args[i], false);
  return blocks;
}

tessella_forward_args said_to_be_on_gpu(const tessella_forward_args& args, std::deque<tessella_tensor>& tensors) {
  tessella_forward_args changed = args;
  for (const detail::TensorField& field : detail::kTensorFields) {
    const auto member = field.member;
    if (args.*member == nullptr) continue;
    tensors.push_back(*(args.*member));
    tensors.back().device_type = TESSELLA_CUDA;
    changed.*member = &tensors.back();
  }
  return changed;
}

GpuTwin::GpuTwin(std::span<const HostBlock> blocks, bool exact) : gpu_(cli::Gpu::open(0)) {
  if (exact) {
    for (const HostBlock& block : blocks) {
      memories_.emplace_back(gpu_, block.bytes);
      locations_.push_back({block, memories_.back().data()});
    }
    for (const Location& location : locations_) upload(location);
    return;
  }
  size_t bytes = kAround;
  for (const HostBlock& block : blocks) bytes += rounded_up(block.bytes) + kAround;
  cli::GpuMemory& arena = of_thread().arena;
  if (arena.size() < bytes) {
    arena = {};
    arena = cli::GpuMemory(gpu_, 2 * bytes);
  }
  image_.assign(bytes, std::byte{kPoison});
  size_t at = kAround;
  for (const HostBlock& block : blocks) {
    locations_.push_back({block, arena.data() + at});
    if (block.bytes != 0) std::memcpy(image_.data() + at, block.data, block.bytes);
    at += rounded_up(block.bytes) + kAround;
  }
  gpu_.copy_to_gpu(arena.data(), image_.data(), bytes, stream());
}

void* GpuTwin::stream() const { return of_thread().stream.handle(); }

void GpuTwin::upload(const Location& location) const {
  const HostBlock& host = location.host;
  if (host.piece_bytes == 0) return gpu_.copy_to_gpu(location.device, host.data, host.bytes, stream());
  for (size_t at = 0; at + host.piece_bytes <= host.bytes; at += host.piece_stride) {
    gpu_.copy_to_gpu(location.device + at, host.data + at, host.piece_bytes, stream());
  }
}

tessella_tensor GpuTwin::twin(const tessella_tensor& host, bool shows_device) const {
  tessella_tensor tensor = host;
  tensor.device_type = shows_device ? TESSELLA_CUDA : TESSELLA_DEVICE_DEFAULT;
  tensor.data = at(host.data);  // NULL where the tensor is empty
  return tensor;
}

void* GpuTwin::at(const void* host) const {
  const auto* data = static_cast<const std::byte*>(host);
  for (const Location& location : locations_) {
    const bool holds = data >= location.host.data && data < location.host.data + location.host.bytes;
    if (holds) return location.device + (data - location.host.data);
  }
  return nullptr;
}

tessella_forward_args GpuTwin::args(const tessella_forward_args& host, bool shows_device) {
  tessella_forward_args args = host;
  for (const detail::TensorField& field : detail::kTensorFields) {
    const auto member = field.member;
    if (host.*member != nullptr) args.*member = &tensors_.emplace_back(twin(*(host.*member), shows_device));
  }
  for (int32_t i = 0; i < host.num_mod_args; ++i) mod_args_.push_back(twin(host.mod_args[i], shows_device));
  args.mod_args = mod_args_.data();
  return args;
}

tessella_backward_args GpuTwin::args(const tessella_backward_args& host, bool shows_device) {
  tessella_backward_args args = host;
  forward_ = this->args(*host.forward, shows_device);
  args.forward = &forward_;
  for (const auto member : detail::kGradientFields) {
    if (host.*member != nullptr) args.*member = &tensors_.emplace_back(twin(*(host.*member), shows_device));
  }
  return args;
}

void GpuTwin::poison_outputs() const {
  for (const auto& [host, device] : locations_) {
    if (host.is_output && host.bytes != 0) gpu_.fill(device, kPoison, host.bytes, stream());
  }
}

std::vector<std::byte> GpuTwin::outputs() const {
  std::vector<std::byte> all;
  for (const auto& [host, device] : locations_) {
    if (!host.is_output || host.bytes == 0) continue;
    const size_t at = all.size();
    all.resize(at + host.bytes);
    gpu_.copy_to_host(all.data() + at, device, host.bytes, stream());
  }
  return all;
}

std::string GpuTwin::download() {
  if (!image_.empty()) return spoiled_arena();
  std::string spoiled;
  for (const auto& [host, device] : locations_) {
    const size_t piece = host.piece_bytes == 0 ? host.bytes : host.piece_bytes;
    const size_t stride = host.piece_bytes == 0 ? host.bytes : host.piece_stride;
    std::vector<std::byte> got(piece);
    for (size_t at = 0; piece != 0 && at + piece <= host.bytes; at += stride) {
      gpu_.copy_to_host(got.data(), device + at, piece, stream());
      if (host.is_output) {
        std::memcpy(host.data + at, got.data(), piece);
      } else if (std::memcmp(host.data + at, got.data(), piece) != 0) {
        spoiled = "wrote into an input";
      }
    }
  }
  return spoiled;
}

std::string GpuTwin::spoiled_arena() {
  const std::byte* arena = of_thread().arena.data();
  std::vector<std::byte> got(image_.size());
  gpu_.copy_to_host(got.data(), arena, got.size(), stream());
  for (const auto& [host, device] : locations_) {
    if (!host.is_output || host.bytes == 0) continue;
    const auto at = static_cast<size_t>(device - arena);
    std::memcpy(host.data, got.data() + at, host.bytes);
    std::memcpy(image_.data() + at, got.data() + at, host.bytes);
  }
  const auto [mine, theirs] = std::mismatch(image_.begin(), image_.end(), got.begin());
  if (mine == image_.end()) return "";
  return "wrote outside of the outputs, at byte " + std::to_string(mine - image_.begin()) + " of the GPU's memory";
}

}  // namespace tessella::tests
