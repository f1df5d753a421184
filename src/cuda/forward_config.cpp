#include "cuda/forward_config.hpp"

#include <algorithm>
#include <array>

#include "core/message.hpp"
#include "core/sequence.hpp"

namespace tessella::cuda {
namespace {

using core::Feature;
using portable::Element;
using portable::ForwardConfig;
using portable::MaskLevel;

constexpr std::array kHeadDims = {32, 64, 96, 128, 192, 256, 384, 512};
constexpr int32_t kMaxSlice = 256;  // columns of v whose accumulators fit into registers

int32_t padded(int64_t head_dim) {
  return *std::ranges::find_if(kHeadDims, [&](int32_t compiled) { return head_dim <= compiled; });
}

// The wider the tiles, the fewer bytes of shared memory a matrix instruction takes: two blocks of 16 rows a warp read
// every k and v once for both.
struct Rows {
  int32_t tile_q, num_warps;
};
constexpr std::array kRows = {Rows{128, 4}, Rows{64, 4}, Rows{32, 2}, Rows{16, 1}};

// "tessella::device::forward_sm80<tessella::portable::ForwardConfig{.element = ...}>"
std::string expression(const char* kernel, const ForwardConfig& c) {
  constexpr std::array kElements = {"bf16", "f16", "f32"};
  std::string text = core::message("tessella::device::", kernel,
                                   "<tessella::portable::ForwardConfig{.element = tessella::portable::Element::",
                                   kElements[static_cast<size_t>(c.element)]);
  for (const auto& [name, value] : {std::pair{"head_dim_qk", c.head_dim_qk}, std::pair{"head_dim_v", c.head_dim_v},
                                    std::pair{"tile_q", c.tile_q}, std::pair{"tile_kv", c.tile_kv},
                                    std::pair{"num_warps", c.num_warps}, std::pair{"blocks_per_sm", c.blocks_per_sm}}) {
    text += core::message(", .", name, " = ", value);
  }
  text += core::message(", .vector_loads = ", c.vector_loads ? "true" : "false",
                        ", .mask = tessella::portable::MaskLevel::", c.mask == MaskLevel::bits ? "bits" : "band");
  for (const auto& [name, value] :
       {std::pair{"softcap", c.softcap}, std::pair{"alibi", c.alibi}, std::pair{"bias", c.bias},
        std::pair{"dropout", c.dropout}, std::pair{"score", c.score}, std::pair{"keep", c.keep}}) {
    text += core::message(", .", name, " = ", value ? "true" : "false");
  }
  return text + "}>";
}

}  // namespace

int register_limit(const ForwardConfig& c) { return std::min(255, 65536 / (c.num_warps * 32 * c.blocks_per_sm)); }

int estimated_registers(const ForwardConfig& c) {
  const int m = c.tile_q / (16 * c.num_warps);
  const bool is_f32 = c.element == Element::f32;
  const int accumulators = m * (c.head_dim_v + c.tile_kv) / 2;
  const int operands = is_f32 ? 12 + 16 * m : 12 + 8 * m;
  int registers = 32 + accumulators + operands;
  if (!c.vector_loads) registers += 24;
  if (c.softcap || c.alibi) registers += 8;
  if (c.bias || c.score) registers += 24;
  if (c.dropout) registers += 16;
  if (c.mask == MaskLevel::bits) registers += 24;
  return registers;
}

ForwardConfig forward_config(const core::Problem& p, const DeviceInfo& device) {
  const int64_t size = core::size_bytes(p.dtype);
  const int64_t num_slices = (p.head_dim_v + kMaxSlice - 1) / kMaxSlice;
  ForwardConfig c{
      .element = p.dtype == core::DType::bf16  ? Element::bf16
                 : p.dtype == core::DType::f16 ? Element::f16
                                               : Element::f32,
      .head_dim_qk = padded(p.head_dim_qk),
      .head_dim_v = padded((p.head_dim_v + num_slices - 1) / num_slices),
      .blocks_per_sm = 1,
      .vector_loads = p.alignment >= 16 && p.head_dim_qk * size % 16 == 0 && p.head_dim_v * size % 16 == 0,
      .mask = p.features.has_any(core::kElementMasks | Feature::keep) ? MaskLevel::bits : MaskLevel::band,
      .softcap = p.features.has(Feature::softcap),
      .alibi = p.features.has(Feature::alibi),
      .bias = p.features.has(Feature::bias),
      .dropout = p.features.has(Feature::dropout),
      .score = p.features.has(Feature::score),
      .keep = p.features.has(Feature::keep),
  };
  const int32_t dim = std::max(c.head_dim_qk, c.head_dim_v);
  const int32_t preferred = c.element == Element::f32 || dim > 256 ? 32 : dim <= 64 ? 96 : 64;
  for (const Rows& rows : kRows) {
    c.tile_q = rows.tile_q;
    c.num_warps = rows.num_warps;
    for (const int32_t tile_kv : {preferred, 32, 16}) {
      c.tile_kv = tile_kv;
      if (estimated_registers(c) <= register_limit(c) && shared_bytes(c) <= device.shared_bytes_per_block) return c;
    }
  }
  return c;
}

DeviceInfo typical_device(int arch) {
  const int per_block = arch == 80 || arch == 87 ? 163 : arch / 10 == 9 || arch / 10 == 10 ? 227 : 99;
  return {.arch = arch, .shared_bytes_per_block = per_block * 1024, .shared_bytes_per_sm = (per_block + 1) * 1024};
}

Program forward_program(const ForwardConfig& config, const std::string& user_text) {
  return {.header = "cuda/device/forward_sm80.hpp",
          .expression = expression("forward_sm80", config),
          .user_text = user_text};
}

// Knows the tiles' sizes and the caller's text, nothing of element types and head dims, so that one serves many
// kernels.
Program classify_program(const ForwardConfig& config, const std::string& user_text) {
  const ForwardConfig classes{
      .tile_q = config.tile_q, .tile_kv = config.tile_kv, .mask = MaskLevel::bits, .keep = config.keep};
  return {
      .header = "cuda/device/mask.hpp", .expression = expression("classify_tiles", classes), .user_text = user_text};
}

}  // namespace tessella::cuda
