#include "operations/attention/score_operands.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/error.hpp"
#include "core/message.hpp"

namespace tessella::core {
namespace {

class ScoreOperands {
 public:
  ScoreOperands(const tessella_forward_args& args, const tessella_attention_options& options, const char* function,
                TensorReader& reader, AttentionArguments& p)
      : args_(args), options_(options), function_(function), reader_(reader), p_(p) {}

  void score_features() {
    if (args_.bias != nullptr) {
      p_.features |= Feature::bias;
      p_.bias = over_scores("bias", *args_.bias);
      const bool is_as_q = p_.bias.dtype == p_.q().dtype && is_float(p_.q().dtype);
      if (p_.bias.dtype != DType::f32 && !is_as_q) {
        const bool is_f32_alone = p_.q().dtype == DType::f32 || !is_float(p_.q().dtype);
        invalid(message(function_, ": bias.dtype is ", name(p_.bias.dtype), ", expected f32",
                        is_f32_alone ? "" : message(" or ", name(p_.q().dtype), " = q.dtype")));
      }
    }
    if (args_.alibi_slopes != nullptr) {
      p_.features |= Feature::alibi;
      p_.alibi_slopes = reader_.alibi(*args_.alibi_slopes, p_.batch, p_.heads_q);
    }
    if (args_.sink != nullptr) {
      p_.features |= Feature::sink;
      p_.sink = reader_.table<float>("sink", args_.sink, p_.heads_q, "the heads of q");
    }
  }

  void masks() {
    const bool packed_q = args_.cu_seqlens_q != nullptr;
    const bool packed_kv = args_.cu_seqlens_kv != nullptr;
    const auto boolean = [&](const char* name, DType dtype) {
      if (dtype != DType::boolean) {
        invalid(message(function_, ": ", name, ".dtype is ", core::name(dtype), ", expected bool (true = visible)"));
      }
    };
    if (args_.dense_mask != nullptr) {
      p_.features |= Feature::dense_mask;
      p_.dense_mask = over_scores("dense_mask", *args_.dense_mask);
      boolean("dense_mask", p_.dense_mask.dtype);
    }
    if (args_.block_map != nullptr) {
      for (const auto& [name, size] :
           {std::pair{"block_map_q", options_.block_map_q}, std::pair{"block_map_kv", options_.block_map_kv}}) {
        if (size < 1) invalid(message(function_, ": ", name, " is ", size, ", expected the size of a block_map tile"));
      }
      p_.features |= Feature::block_map;
      p_.block_q = options_.block_map_q;
      p_.block_kv = options_.block_map_kv;
      p_.block_map = over_scores("block_map", *args_.block_map, p_.block_q, p_.block_kv);
      boolean("block_map", p_.block_map.dtype);
    }
    if (args_.draft_mask != nullptr) {
      p_.features |= Feature::draft_mask;
      wants_bound("draft_mask", *args_.draft_mask, 0, args_.draft_mask->ndim - 1);
      p_.draft_mask = reader_.draft_mask(*args_.draft_mask, score_axes());
      boolean("draft_mask", p_.draft_mask.dtype);
    }
    if (args_.key_ranges != nullptr) {
      p_.features |= Feature::key_ranges;
      p_.key_ranges =
          reader_.ranges("key_ranges", *args_.key_ranges,
                         {packed_q ? 1 : p_.batch, p_.heads_q, p_.total_q, packed_q ? "total_q" : "seqlen_q"});
    }
    if (args_.query_ranges != nullptr) {
      p_.features |= Feature::query_ranges;
      p_.query_ranges =
          reader_.ranges("query_ranges", *args_.query_ranges,
                         {packed_kv ? 1 : p_.batch, p_.heads_q, p_.total_kv, packed_kv ? "total_kv" : "seqlen_kv"});
    }
    if (args_.document_ids_q != nullptr || args_.document_ids_kv != nullptr) {
      if (args_.document_ids_q == nullptr) {
        invalid(message(function_, ": document_ids_q is absent, expected it beside document_ids_kv"));
      }
      if (args_.document_ids_kv == nullptr && (p_.total_q != p_.total_kv || packed_q != packed_kv)) {
        invalid(message(function_, ": document_ids_kv is absent, expected it where q and k differ in length"));
      }
      p_.features |= Feature::document;
      p_.document_q = reader_.per_row("document_ids_q", *args_.document_ids_q, packed_q, p_.batch, p_.total_q);
      p_.document_kv = args_.document_ids_kv == nullptr ? p_.document_q
                                                        : reader_.per_row("document_ids_kv", *args_.document_ids_kv,
                                                                          packed_kv, p_.batch, p_.total_kv);
    }
  }

 private:
  // The lengths of queries (0) and keys (1) for tensors over scores. With cu_seqlens these tensors count from the first
  // row of each sequence, so they have the length of the longest one, and at most the caller's bound. A tensor over the
  // rows of the packed tensors is then an error.
  struct Counted {
    const char* rows;
    bool is_packed;
    int64_t longest, bound;
  };
  std::array<Counted, 2> counted() const {
    return {{{"q", args_.cu_seqlens_q != nullptr, p_.seqlen_q, options_.max_seqlen_q},
             {"kv", args_.cu_seqlens_kv != nullptr, p_.seqlen_kv, options_.max_seqlen_kv}}};
  }

  // The axes of a tensor (batch, heads_q, queries, keys) with an entry for every block_q x block_kv scores.
  ScoreAxes score_axes(int64_t block_q = 1, int64_t block_kv = 1) const {
    const auto blocks = [](int64_t rows, int64_t block) { return rows / block + (rows % block != 0); };
    ScoreAxes axes{{p_.batch, p_.heads_q}, {p_.batch, p_.heads_q}};
    for (size_t i = 0; i < 2; ++i) {
      const auto [rows, is_packed, longest, bound] = counted()[i];
      const int64_t block = i == 0 ? block_q : block_kv;
      axes.least[2 + i] = blocks(longest, block);
      const int64_t most = p_.batch == 0 ? kUnbounded : std::max(longest, bound);  // of no sequence none is the longest
      axes.most[2 + i] = blocks(is_packed ? most : longest, block);
      axes.is_packed = axes.is_packed || is_packed;
    }
    return axes;
  }

  // Lengths on a GPU are not read, and the rows of several sequences are no length of one. i: of counted(); axis: the
  // tensor's that counts them.
  void wants_bound(const char* name, const tessella_tensor& tensor, size_t i, int axis) const {
    const auto [rows, is_packed, longest, bound] = counted()[i];
    const bool has_no_length =
        is_packed && p_.device.type != DeviceType::cpu && bound == 0 && longest > 0 && p_.batch > 1;
    if (has_no_length && axis >= 0 && axis < 8 && tensor.shape[axis] != 1) {
      invalid(message(function_, ": max_seqlen_", rows, " is 0, expected the longest sequence beside cu_seqlens_", rows,
                      " on a GPU: ", name, " counts ", i == 0 ? "queries" : "keys",
                      " from the first of each sequence"));
    }
  }

  ScoreOperand over_scores(const char* name, const tessella_tensor& tensor, int64_t block_q = 1, int64_t block_kv = 1) {
    wants_bound(name, tensor, 0, tensor.ndim - 2);
    wants_bound(name, tensor, 1, tensor.ndim - 1);
    return reader_.broadcast(name, tensor, score_axes(block_q, block_kv));
  }

  const tessella_forward_args& args_;
  const tessella_attention_options& options_;
  const char* function_;
  TensorReader& reader_;
  AttentionArguments& p_;
};

}  // namespace

void read_score_operands(const tessella_forward_args& args, const tessella_attention_options& options,
                         const char* function, TensorReader& reader, AttentionArguments& arguments) {
  ScoreOperands operands(args, options, function, reader, arguments);
  operands.score_features();
  operands.masks();
}

}  // namespace tessella::core
