#include "cuda/launch/forward_cost.hpp"

#include <algorithm>

#include "cuda/launch/tile_map.hpp"
#include "portable/band.hpp"
#include "portable/query_tiles.hpp"

namespace tessella::cuda {
namespace {

using core::AttentionArguments;
using core::Feature;

// One head.
struct Head {
  double len_q, len_kv;
  double q_bytes, k_bytes, v_bytes, out_bytes;  // of a row
  double tiles_q, kv_tiles, slices;
  double visits_rows = 0,
         visits_keys = 0;  // rows and keys of the pairs of tiles that the band leaves, keys once a tile
  double heads;            // like this one

  Head(const AttentionArguments& p, const ForwardTiles& c) {
    const auto size = static_cast<double>(core::size_bytes(p.dtype()));
    const auto length = [&](Feature packed, int64_t total, int64_t seqlen) {
      return p.features.has(packed) ? total / std::max<int64_t>(p.batch, 1) : seqlen;
    };
    portable::Band band{.seqlen_q = length(Feature::packed_q, p.total_q, p.seqlen_q),
                        .seqlen_kv = length(Feature::packed_kv, p.total_kv, p.seqlen_kv),
                        .window_left = p.window_left,
                        .window_right = p.window_right,
                        .chunk = p.chunk,
                        .keep_first = p.keep_first,
                        .causal_top_left = p.features.has(Feature::causal_top_left)};
    len_q = static_cast<double>(band.seqlen_q);
    len_kv = static_cast<double>(band.seqlen_kv);
    q_bytes = k_bytes = static_cast<double>(p.head_dim_qk) * size;
    v_bytes = static_cast<double>(p.head_dim_v) * size;
    out_bytes =
        static_cast<double>(p.head_dim_v * core::size_bytes(p.out_dtype())) + (p.features.has(Feature::lse) ? 4 : 0);
    slices = slices_v(p, c);
    heads = static_cast<double>(p.batch * p.heads_q);
    const auto tiles = [](int64_t count, int64_t tile) { return (count + tile - 1) / tile; };
    tiles_q = static_cast<double>(tiles(band.seqlen_q, c.tile_q));
    kv_tiles = static_cast<double>(tiles(band.seqlen_kv, c.tile_kv));
    for (int64_t tile = 0; tile < tiles(band.seqlen_q, c.tile_q); ++tile) {
      const auto [first, end] = portable::tile_queries(band.seqlen_q, c.tile_q, tile);
      const int64_t last = end - 1;
      const int64_t begin = band.begin(first) / c.tile_kv;
      const int64_t first_tiles = std::min(tiles(std::min(band.keep_first, band.end(last)), c.tile_kv), begin);
      const auto seen =
          static_cast<double>(std::max<int64_t>(tiles(band.end(last), c.tile_kv) - begin, 0) + first_tiles);
      visits_rows += seen * static_cast<double>(last - first + 1);
      visits_keys += std::min(seen * c.tile_kv, len_kv);
    }
  }
};

constexpr double kRowBytes = sizeof(portable::BackwardRow);

// Bytes of a row of what backward reads and writes; 0 where it is not wanted.
struct GradientRows {
  double d_out, dq, dk, dv;
  double first_step;  // reads d_out, out, LSE and its gradient, and writes what later steps read
  double group;

  explicit GradientRows(const AttentionArguments& p) : group(static_cast<double>(p.group())) {
    const auto row = [&](core::Name name, int64_t dim) {
      const core::Operand& t = p.tensors[name];
      return t.data == nullptr ? 0.0 : static_cast<double>(dim * core::size_bytes(t.dtype));
    };
    d_out = static_cast<double>(p.head_dim_v * core::size_bytes(p.dtype()));
    dq = row(core::Name::dq, p.head_dim_qk);
    dk = row(core::Name::dk, p.head_dim_qk);
    dv = row(core::Name::dv, p.head_dim_v);
    first_step = d_out + static_cast<double>(p.head_dim_v * core::size_bytes(p.out_dtype())) + 4 +
                 (p.features.has(Feature::d_lse) ? 4 : 0) + kRowBytes;
  }
  // Bytes that the query heads of a group read only once.
  double of_keys(double bytes) const { return bytes / group; }
};

double state_bytes(const ForwardTiles& c) { return (c.head_dim_v + 2) * 4.0; }
double matrix_heads(const core::AttentionShape& p) { return static_cast<double>(p.batch * p.heads_q); }
double matrix_rows(const core::AttentionShape& p, const ForwardTiles& c) {
  return static_cast<double>(largest_tile_map(p, c).tiles_q * c.tile_q);
}

}  // namespace

core::Cost forward_cost(const AttentionArguments& p, const ForwardTiles& c) {
  const Head h(p, c);
  const double bytes =
      h.slices * (h.len_q * h.q_bytes + h.visits_keys * h.k_bytes) + h.visits_keys * h.v_bytes + h.len_q * h.out_bytes;
  return {.score_passes = h.slices,
          .bytes_moved = h.heads * bytes,
          .extra_bytes = static_cast<double>(largest_tile_map(p, c).bytes())};
}

core::Cost standard_cost(const AttentionArguments& p, const ForwardTiles& c) {
  const Head h(p, c);
  // S is written, read twice and written as P, which every slice of v reads.
  const double passes = 4 + h.slices;
  const double bytes = h.kv_tiles * h.len_q * h.q_bytes + h.tiles_q * h.len_kv * (h.k_bytes + h.v_bytes) +
                       passes * 4 * h.len_q * h.len_kv + h.len_q * h.out_bytes;
  return {.score_passes = passes - 1, .bytes_moved = h.heads * bytes, .extra_bytes = standard_bytes(p, c)};
}

core::Cost flash_1_cost(const AttentionArguments& p, const ForwardTiles& c) {
  const Head h(p, c);
  // Each slice keeps its own state; at the start it is set, at the end it becomes out.
  const double visits = h.visits_rows * (h.q_bytes + 2 * state_bytes(c));
  const double bytes = h.slices * (h.len_kv * h.k_bytes + visits + 2 * h.len_q * state_bytes(c)) +
                       h.len_kv * h.v_bytes + h.len_q * h.out_bytes;
  return {.score_passes = h.slices, .bytes_moved = h.heads * bytes, .extra_bytes = flash_1_bytes(p, c)};
}

core::Cost backward_cost(const AttentionArguments& p, const portable::BackwardSm80Config& c, double extra_bytes,
                         int32_t tile_q_of_dq) {
  const Head h(p, c);
  const GradientRows rows(p);
  if (tile_q_of_dq > 0) {
    const double of_query = h.q_bytes + rows.d_out + kRowBytes, of_key = h.k_bytes + h.v_bytes;
    const double by_keys = h.visits_rows * of_query + h.len_kv * rows.of_keys(of_key + rows.dk + rows.dv);
    const double by_queries = h.len_q * (of_query + rows.dq) + h.visits_rows * c.tile_kv / tile_q_of_dq * of_key;
    const bool wants_both = rows.dq > 0 && rows.dk + rows.dv > 0;
    const double bytes =
        h.len_q * rows.first_step + (rows.dk + rows.dv > 0 ? by_keys : 0) + (rows.dq > 0 ? by_queries : 0);
    return {.score_passes = wants_both ? 2.0 : 1.0, .bytes_moved = h.heads * bytes, .extra_bytes = extra_bytes};
  }
  const double sums = rows.dq > 0 ? c.head_dim_qk * 4.0 : 0;
  // A visit adds to the sums; the first one only writes them, and they are read once more for dQ.
  const double bytes = h.len_q * rows.first_step + h.visits_rows * (h.q_bytes + rows.d_out + kRowBytes + 2 * sums) +
                       h.len_q * rows.dq + h.len_kv * rows.of_keys(h.k_bytes + h.v_bytes + rows.dk + rows.dv);
  return {.score_passes = 1, .bytes_moved = h.heads * bytes, .extra_bytes = extra_bytes};
}

core::Cost standard_backward_cost(const AttentionArguments& p, const portable::BackwardSm80Config& c,
                                  double extra_bytes) {
  const Head h(p, c);
  const GradientRows rows(p);
  const double matrix = h.len_q * h.len_kv * static_cast<double>(core::size_bytes(p.dtype()));
  const double queries = h.kv_tiles * h.len_q * (h.q_bytes + rows.d_out + kRowBytes);  // all, for every tile of keys
  double passes = 1;
  double bytes = h.len_q * rows.first_step + h.len_kv * (h.k_bytes + h.v_bytes) + queries + 2 * matrix;
  if (rows.dk + rows.dv > 0) {
    ++passes;
    bytes += queries + 2 * matrix + h.len_kv * rows.of_keys(rows.dk + rows.dv);
  }
  if (rows.dq > 0) {
    ++passes;
    bytes += h.tiles_q * h.len_kv * h.k_bytes + matrix + h.len_q * rows.dq;
  }
  return {.score_passes = passes, .bytes_moved = h.heads * bytes, .extra_bytes = extra_bytes};
}

double standard_bytes(const core::AttentionShape& p, const ForwardTiles& c) {
  return matrix_heads(p) * matrix_rows(p, c) * static_cast<double>(largest_tile_map(p, c).kv_tiles * c.tile_kv) * 4;
}

double standard_backward_bytes(const core::AttentionShape& p, const ForwardTiles& c) {
  return 2 * standard_bytes(p, c) / 4 * static_cast<double>(core::size_bytes(p.dtype()));
}

double flash_1_bytes(const core::AttentionShape& p, const ForwardTiles& c) {
  return matrix_heads(p) * slices_v(p, c) * matrix_rows(p, c) * state_bytes(c);
}

}  // namespace tessella::cuda
