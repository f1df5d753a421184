// forward: the user's structs -> arguments.

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

#include "core/error.hpp"
#include "core/message.hpp"
#include "operations/attention/made_before.hpp"
#include "operations/attention/read_forward.hpp"
#include "operations/attention/score_operands.hpp"
#include "operations/tensor_reader.hpp"
#include "tessella/arguments.hpp"

namespace tessella::core {
namespace {

// The argument of each of kSequenceTables, which has its name.
constexpr auto kGivenTables = [] {
  std::array<const tessella_tensor * tessella_forward_args::*, std::size(kSequenceTables)> members{};
  for (size_t n = 0; n < members.size(); ++n) {
    for (const tessella::detail::TensorField& field : tessella::detail::kTensorFields) {
      if (std::string_view(field.name) == kSequenceTables[n].name) members[n] = field.member;
    }
  }
  return members;
}();
static_assert(std::ranges::none_of(kGivenTables, [](auto member) { return member == nullptr; }));

class ForwardReader {
 public:
  ForwardReader(const Forward::Args& args, const Forward::Options& options, const Reading& reading)
      : args_(args), options_(options), reader_(reading), function_(reading.function), memory_(reading.memory) {}

  AttentionArguments run() {
    operands();
    lengths();
    device();
    scalars();
    bounds();
    outputs();
    scales();
    slice();
    read_score_operands(args_, options_, function_, reader_, p_);
    modifications();
    p_.cache_is_settled = options_.cache_settled != 0;
    read_made_before(args_, function_, memory_, reader_, p_);
    p_.derive_shape();
    return p_;
  }

 private:
  void operands() {
    const bool packed_q = args_.cu_seqlens_q != nullptr;
    const bool packed_kv = args_.cu_seqlens_kv != nullptr;
    const bool paged_kv = args_.page_table != nullptr;
    const bool in_slots = args_.cache_batch_idx != nullptr;
    if (packed_kv && paged_kv) {
      invalid(message(function_, ": cu_seqlens_kv is given, expected it absent beside page_table"));
    }
    if (in_slots && (packed_kv || paged_kv)) {
      invalid(message(function_, ": cache_batch_idx is given, expected it absent beside ",
                      paged_kv ? "page_table" : "cu_seqlens_kv"));
    }
    for (const auto& [name, tensor] : {std::pair{"k", args_.k}, std::pair{"v", args_.v}}) {
      if (paged_kv && tensor != nullptr && tensor->ndim != 4) {
        invalid(message(function_, ": ", name, " has ", tensor->ndim,
                        " axes, expected (num_pages, page_size, heads_kv, head_dim) beside page_table"));
      }
    }
    const TensorAxes q = reader_.attention("q", args_.q, packed_q, p_.q());
    const TensorAxes k = reader_.attention("k", args_.k, packed_kv, p_.k());
    const bool is_transposed = args_.v != nullptr && (args_.v->flags & TESSELLA_TRANSPOSED) != 0;
    const TensorAxes v = is_transposed ? transposed_v(k) : reader_.attention("v", args_.v, packed_kv, p_.v());
    for (const auto& [label, operand] : {std::pair{"q", &p_.q()}, std::pair{"k", &p_.k()}, std::pair{"v", &p_.v()}}) {
      if (!is_float(operand->dtype) && !is_quantized(operand->dtype)) {
        invalid(message(function_, ": ", label, ".dtype is ", name(operand->dtype), ", expected ",
                        operand == &p_.q() ? "f64, f32, bf16, f16, f8e4m3fn or f8e5m2"
                                           : message(name(p_.q().dtype), " = q.dtype, or f8e4m3fn, i8 or i4")));
      }
      if (is_float8(p_.q().dtype) && operand->dtype != p_.q().dtype) {
        invalid(message(function_, ": ", label, ".dtype is ", name(operand->dtype), ", expected ", name(p_.q().dtype),
                        " = q.dtype, as q is of 8 bits"));
      }
    }
    p_.batch = q.batch;
    p_.seqlen_q = p_.total_q = q.rows;
    p_.seqlen_kv = p_.total_kv = k.rows;
    p_.heads_q = q.heads;
    p_.heads_kv = k.heads;
    p_.head_dim_qk = q.head_dim;
    p_.head_dim_v = v.head_dim;
    if (packed_q) p_.batch = reader_.length("cu_seqlens_q", *args_.cu_seqlens_q) - 1;
    const bool has_batch = !packed_kv && !paged_kv && !in_slots;
    if (has_batch && packed_q && k.batch != p_.batch) {
      reader_.mismatch("k", *args_.k, 4, 0, k.batch, p_.batch, "the sequences of cu_seqlens_q");
    }
    if (packed_kv && !packed_q && reader_.length("cu_seqlens_kv", *args_.cu_seqlens_kv) != p_.batch + 1) {
      reader_.table<int32_t>("cu_seqlens_kv", args_.cu_seqlens_kv, p_.batch + 1, "batch + 1");
    }
    if (has_batch && !packed_q && k.batch != q.batch) {
      reader_.mismatch("k", *args_.k, 4, 0, k.batch, q.batch, "q.shape[0]");
    }
    if (k.head_dim != q.head_dim) reader_.mismatch("k", *args_.k, 4, 3, k.head_dim, q.head_dim, "q.shape[-1]");
    if (!packed_kv && v.batch != k.batch) reader_.mismatch("v", *args_.v, 4, 0, v.batch, k.batch, "k.shape[0]");
    if (paged_kv) pages(k);
    if (in_slots) slots(k);
    if (v.rows != k.rows) reader_.mismatch("v", *args_.v, 4, 1, v.rows, k.rows, "the rows of k");
    if (v.heads != k.heads) reader_.mismatch("v", *args_.v, 4, 2, v.heads, k.heads, "the heads of k");
    for (const auto& [label, heads] : {std::pair{"q", q.heads}, std::pair{"k", k.heads}}) {
      if (heads < 1) {
        invalid(message(function_, ": ", label, " has ", heads,
                        " heads, expected at least 1 (layout batch, seqlen, heads, head_dim)"));
      }
    }
    if (q.heads % k.heads != 0) {
      invalid(message(function_, ": q has ", q.heads, " heads and k has ", k.heads,
                      ", expected heads of q to be a multiple of heads of k (layout batch, seqlen, heads, head_dim",
                      reader_.swap_hint(q, k), ")"));
    }
    for (const auto& [label, dim] : {std::pair{"q", q.head_dim}, std::pair{"v", v.head_dim}}) {
      if (dim < 1) invalid(message(function_, ": head_dim of ", label, " is ", dim, ", expected at least 1"));
    }
  }

  // v as quantize writes it for Hopper, beside k.
  TensorAxes transposed_v(const TensorAxes& k) {
    for (const auto& [name, table] :
         {std::pair{"cu_seqlens_kv", args_.cu_seqlens_kv}, std::pair{"page_table", args_.page_table},
          std::pair{"cache_batch_idx", args_.cache_batch_idx}}) {
      if (table != nullptr) {
        invalid(message(function_, ": v is transposed, expected no such layout beside ", name));
      }
    }
    if (args_.v->ndim != 4) {
      invalid(message(function_, ": v has ", args_.v->ndim, " axes, expected (batch, heads, head_dim, seqlen in whole ",
                      "tiles of 128) of a transposed v"));
    }
    const int64_t head_dim = args_.v->shape[2];
    p_.v() = reader_.transposed("v", *args_.v, {k.batch, k.heads, head_dim, whole_tiles(k.rows)});
    if (!is_float8(p_.v().dtype)) {
      invalid(
          message(function_, ": v.dtype is ", name(p_.v().dtype), ", expected f8e4m3fn or f8e5m2 of a transposed v"));
    }
    p_.features |= Feature::transposed_v;
    return {.batch = k.batch, .rows = k.rows, .heads = k.heads, .head_dim = head_dim};
  }

  // k: a pool of pages.
  void pages(const TensorAxes& k) {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (k.batch < 1 || k.rows < 1 || k.batch > kMost || k.rows > kMost) {
      invalid(
          message(function_, ": k has ", k.batch, " pages of ", k.rows, " rows, expected 1 to ", kMost, " of each"));
    }
    p_.features |= Feature::paged_kv;
    p_.num_pages = k.batch;
    p_.page_size = k.rows;
    const tessella_tensor& table = *args_.page_table;
    const int64_t pages = table.ndim >= 1 && table.ndim <= 8 ? table.shape[table.ndim - 1] : 0;
    p_.page_table = reader_.per_row("page_table", table, false, p_.batch, pages, "pages");
    p_.seqlen_kv = p_.total_kv = std::min(pages, kMost) * p_.page_size;  // validate() reports what is longer
  }

  void slots(const TensorAxes& k) {
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (k.batch < 1 || k.batch > kMost) {
      invalid(message(function_, ": k has a batch axis of ", k.batch, ", expected 1 to ", kMost,
                      " beside cache_batch_idx"));
    }
    p_.slots = k.batch;
  }

  // Empty tensors do not show where they are; one of the tables may.
  void device() { p_.device = reader_.device(); }

  void scalars() {
    for (const auto& [name, value] : {std::pair{"causal_top_left", options_.causal_top_left},
                                      std::pair{"batch_invariant", options_.batch_invariant},
                                      std::pair{"check_device_values", options_.check_device_values},
                                      std::pair{"cache_settled", options_.cache_settled}}) {
      if (value != 0 && value != 1) invalid(message(function_, ": ", name, " is ", value, ", expected 0 or 1"));
    }
    if (options_.deterministic < 0 || options_.deterministic > 2) {
      invalid(message(function_, ": deterministic is ", options_.deterministic, ", expected 0 to 2"));
    }
    const bool is_f64 = p_.q().dtype == DType::f64;
    p_.scale = std::isnan(options_.scale) ? 1.0 / std::sqrt(static_cast<double>(p_.head_dim_qk)) : options_.scale;
    if (is_f64 && options_.scale_f64 != 0) p_.scale = options_.scale_f64;
    if (!is_f64) p_.scale = static_cast<float>(p_.scale);
    p_.softcap = options_.softcap;
    if (p_.softcap != 0) p_.features |= Feature::softcap;
    p_.dropout = options_.dropout;
    if (p_.dropout != 0) p_.features |= Feature::dropout;
    p_.seed = options_.seed;
    p_.offset = options_.offset;
    seed("seed", args_.seed, p_.seed, p_.seed_data);
    seed("offset", args_.offset, p_.offset, p_.offset_data);
    p_.num_threads = options_.num_threads;
    p_.cancel = options_.cancel;
    p_.window_left = std::min(options_.window_left, kUnbounded);
    p_.window_right = std::min(options_.window_right, kUnbounded);
    if (p_.window_left != -1 || p_.window_right != -1) p_.features |= Feature::window;
    if (options_.causal_top_left != 0) p_.features |= Feature::causal_top_left;
    p_.chunk = std::min(options_.chunk, kUnbounded);
    if (p_.chunk != 0) p_.features |= Feature::chunk;
    p_.keep_first = std::min(options_.keep_first, kUnbounded);
    if (p_.keep_first != 0) p_.features |= Feature::keep_first;
    p_.batch_invariant = options_.batch_invariant != 0;
    p_.num_sms = options_.num_sms;
    invalid_on_cpu("num_sms", options_.num_sms != 0);
    query_class();
    if (p_.batch_invariant && options_.num_splits > 1) {
      invalid(message(function_, ": num_splits is ", options_.num_splits,
                      ", expected 0 or 1 beside batch_invariant, which splits keys at multiples of a constant"));
    }
    constexpr int32_t kMostSplits = 1024;
    if (options_.num_splits < 0 || options_.num_splits > kMostSplits) {
      invalid(message(function_, ": num_splits is ", options_.num_splits, ", expected 0 (automatic) to ", kMostSplits));
    }
    p_.num_splits = options_.num_splits;
  }

  void query_class() {
    if (options_.query_class < 0 || options_.query_class > 2) {
      invalid(message(function_, ": query_class is ", options_.query_class,
                      ", expected 0 (automatic), 1 (few) or 2 (many)"));
    }
    p_.query_class = static_cast<QueryClass>(options_.query_class);
    if (p_.query_class != QueryClass::automatic && !p_.batch_invariant) {
      invalid(message(function_, ": query_class is ", name(p_.query_class),
                      ", expected automatic unless batch_invariant is set"));
    }
  }

  bool is_on_cpu() const { return p_.device.type == DeviceType::cpu; }

  void invalid_on_cpu(const char* option, bool is_set) const {
    if (is_set && is_on_cpu()) {
      unsupported(message(function_, ": option ", option, " is for GPUs, and q is on the CPU"));
    }
  }

  void seed(const char* name, const tessella_tensor* tensor, uint64_t& value, const int64_t*& data) {
    if (tensor == nullptr) return;
    const Table<int64_t> table = reader_.table<int64_t>(name, tensor, 1, "one value");
    data = table.data;
    if (is_on_cpu()) value = static_cast<uint64_t>(table.at(0));
  }

  void lengths() {
    const auto table = [&](Feature feature, const char* name, const tessella_tensor* tensor, int64_t size,
                           const char* meaning) {
      Table<int32_t> values;
      if (tensor == nullptr) return values;
      p_.features |= feature;
      return reader_.table<int32_t>(name, tensor, size, meaning);
    };
    p_.cu_seqlens_q = table(Feature::packed_q, "cu_seqlens_q", args_.cu_seqlens_q, p_.batch + 1, "batch + 1");
    p_.cu_seqlens_kv = table(Feature::packed_kv, "cu_seqlens_kv", args_.cu_seqlens_kv, p_.batch + 1, "batch + 1");
    for (size_t n = 0; n < std::size(kSequenceTables); ++n) {
      const SequenceTable& of = kSequenceTables[n];
      p_.*of.member = table(of.feature, of.name, args_.*kGivenTables[n], p_.batch, "batch");
    }
  }

  // Packed: the longest sequence; on a GPU, where lengths are not read, the caller's bound or all rows. validate()
  // holds the tables against the tensors.
  void bounds() {
    const auto longest = [&](const Table<int32_t>& cu, int64_t seqlen, int64_t bound) {
      if (!cu) return seqlen;
      if (!is_on_cpu()) return bound > 0 ? std::min(bound, seqlen) : seqlen;
      int64_t most = 0;
      for (int64_t b = 0; b < p_.batch; ++b) most = std::max<int64_t>(most, int64_t{cu.at(0, b + 1)} - cu.at(0, b));
      return std::min(most, seqlen);  // a table that goes beyond the tensor is an error of validate()
    };
    p_.seqlen_q = longest(p_.cu_seqlens_q, p_.seqlen_q, options_.max_seqlen_q);
    p_.seqlen_kv = longest(p_.cu_seqlens_kv, p_.seqlen_kv, options_.max_seqlen_kv);
    struct Bound {
      const char* name;
      int64_t bound, seqlen;
    };
    for (const auto& [name, bound, seqlen] : {Bound{"max_seqlen_q", options_.max_seqlen_q, p_.seqlen_q},
                                              Bound{"max_seqlen_kv", options_.max_seqlen_kv, p_.seqlen_kv}}) {
      if (bound < 0 || (bound > 0 && bound < seqlen)) {
        invalid(message(function_, ": ", name, " is ", bound, ", expected 0 or at least ", seqlen,
                        ", the longest sequence"));
      }
    }
  }

  void outputs() {
    const TensorAxes out = reader_.attention("out", args_.out, args_.cu_seqlens_q != nullptr, p_.out());
    for (const auto& [name, tensor] :
         {std::pair{"out", args_.out}, std::pair{"lse", args_.lse}, std::pair{"amax", args_.amax}}) {
      reader_.writable(name, tensor);
    }
    if (options_.out_dtype < TESSELLA_DTYPE_DEFAULT || options_.out_dtype > static_cast<int32_t>(kLastDType)) {
      invalid(message(function_, ": out_dtype is ", options_.out_dtype, ", expected one of tessella_dtype"));
    }
    const auto wanted = static_cast<DType>(options_.out_dtype);
    if (wanted != DType::none) {
      may_be_out("out_dtype", wanted);
      if (p_.out().dtype != wanted) {
        invalid(message(function_, ": out.dtype is ", name(p_.out().dtype), ", expected ", name(wanted),
                        " = option out_dtype"));
      }
    }
    may_be_out("out.dtype", p_.out().dtype);
    if (!args_.cu_seqlens_q && out.batch != p_.batch) {
      reader_.mismatch("out", *args_.out, 4, 0, out.batch, p_.batch, "q.shape[0]");
    }
    if (out.rows != p_.total_q) reader_.mismatch("out", *args_.out, 4, 1, out.rows, p_.total_q, "the rows of q");
    if (out.heads != p_.heads_q) reader_.mismatch("out", *args_.out, 4, 2, out.heads, p_.heads_q, "the heads of q");
    if (out.head_dim != p_.head_dim_v) {
      reader_.mismatch("out", *args_.out, 4, 3, out.head_dim, p_.head_dim_v, "v.shape[-1]");
    }
    if (args_.lse != nullptr) {
      p_.features |= Feature::lse;
      p_.lse() = reader_.lse("lse", *args_.lse, args_.q->ndim, {p_.batch, p_.total_q, p_.heads_q, 1},
                             args_.cu_seqlens_q != nullptr ? "(heads_q, total_q)" : "(batch, heads_q, seqlen_q)");
      if (p_.lse().dtype != DType::f32 && !(p_.lse().dtype == DType::f64 && p_.q().dtype == DType::f64)) {
        invalid(message(function_, ": lse.dtype is ", name(p_.lse().dtype), ", expected f32"));
      }
    }
  }

  void may_be_out(const char* argument, DType dtype) const {
    const bool is_16_bit = dtype == DType::bf16 || dtype == DType::f16;
    if (dtype == p_.q().dtype || dtype == DType::f32 || is_float8(dtype)) return;
    if (is_16_bit && is_quantized(p_.q().dtype)) return;
    invalid(message(function_, ": ", argument, " is ", name(dtype), ", expected ", name(p_.q().dtype), " = q.dtype",
                    p_.q().dtype == DType::f32   ? ""
                    : is_quantized(p_.q().dtype) ? ", or bf16, f16 or f32"
                                                 : ", or f32"));
  }

  // Blocks of rows of the tensor that is scaled; in a packed one all sequences have them together.
  void scales() {
    if (options_.scale_block < 0) {
      invalid(message(function_, ": scale_block is ", options_.scale_block, ", expected at least 0 (all rows)"));
    }
    p_.scale_block = options_.scale_block;
    const auto scale = [&](const char* name, const tessella_tensor* tensor, Operand& operand,
                           AttentionArguments::Axes axes, int64_t heads, bool packed) {
      if (tensor == nullptr) return;
      const auto [batch, blocks] = p_.scale_axes(axes, packed);
      operand = reader_.scale(name, *tensor, {batch, blocks, heads});
    };
    const bool packed_q = args_.cu_seqlens_q != nullptr;
    const bool packed_kv = args_.cu_seqlens_kv != nullptr;
    scale("q_scale", args_.q_scale, p_.tensors[Name::q_scale], p_.axes_q(), p_.heads_q, packed_q);
    scale("k_scale", args_.k_scale, p_.tensors[Name::k_scale], p_.axes_kv(), p_.heads_kv, packed_kv);
    scale("v_scale", args_.v_scale, p_.tensors[Name::v_scale], p_.axes_kv(), p_.heads_kv, packed_kv);
    scale("out_scale", args_.out_scale, p_.tensors[Name::out_scale], p_.axes_q(), p_.heads_q, packed_q);
    scale("amax", args_.amax, p_.tensors[Name::amax], p_.axes_q(), p_.heads_q, packed_q);
    for (const auto& [name, tensor, of] :
         {std::tuple{"q", args_.q_scale, &p_.q()}, {"k", args_.k_scale, &p_.k()}, {"v", args_.v_scale, &p_.v()}}) {
      if (tensor == nullptr || is_quantized(of->dtype)) continue;
      invalid(message(function_, ": ", name, "_scale is given and ", name, ".dtype is ", core::name(of->dtype),
                      ", expected a dtype of 8 or 4 bits"));
    }
    if (args_.out_scale != nullptr && !is_float8(p_.out().dtype)) {
      invalid(message(function_, ": out_scale is given and out.dtype is ", core::name(p_.out().dtype),
                      ", expected f8e4m3fn or f8e5m2"));
    }
    if (args_.k_scale != nullptr || args_.v_scale != nullptr) p_.features |= Feature::kv_scales;
    if (args_.q_scale != nullptr || args_.out_scale != nullptr || args_.amax != nullptr) {
      p_.features |= Feature::scales;
    }
    const bool lacks_scales = is_float(p_.q().dtype) && is_quantized(p_.k().dtype);  // read() says so
    if (p_.scale_block != 0 && !lacks_scales && !p_.features.has_any(Feature::scales | Feature::kv_scales)) {
      invalid(message(function_, ": scale_block is ", p_.scale_block,
                      ", expected 0 without q_scale, k_scale, v_scale, ", "out_scale and amax"));
    }
  }

  void slice() {
    struct First {
      const char* name;
      int64_t given;
      int64_t& first;
    };
    for (const First& at : {First{"first_batch", options_.first_batch, p_.first_batch},
                            First{"first_head", options_.first_head, p_.first_head},
                            First{"first_query", options_.first_query, p_.first_query},
                            First{"first_key", options_.first_key, p_.first_key}}) {
      if (at.given < 0 || at.given > kUnbounded) {
        invalid(message(function_, ": ", at.name, " is ", at.given, ", expected 0 to ", kUnbounded));
      }
      at.first = at.given;
      if (at.given != 0) p_.features |= Feature::slice;
    }
    const int64_t whole = options_.whole_heads_q;
    const int64_t needed = p_.first_head + p_.heads_q;
    if (whole > kUnbounded || whole < (whole == 0 && p_.first_head == 0 ? 0 : needed)) {
      invalid(message(function_, ": whole_heads_q is ", whole, ", expected ", needed, " = first_head + the heads of q",
                      ", to ", kUnbounded, p_.first_head == 0 ? ", or 0" : ""));
    }
    p_.whole_heads_q = whole;
    if (whole != 0 && whole != p_.heads_q) p_.features |= Feature::slice;
  }

  // C++ source, compiled for a GPU, and the arrays that it reads.
  void modifications() {
    const auto source = [&](const char* name, const char* given, Feature feature) {
      const std::string_view body = given == nullptr ? "" : given;
      invalid_on_cpu(name, !body.empty());
      if (!body.empty()) p_.features |= feature;
      return body;
    };
    p_.score_mod = source("score_mod", options_.score_mod, Feature::score_mod);
    p_.mask_mod = source("mask_mod", options_.mask_mod, Feature::mask_mod);
    if (p_.score_mod.empty() && options_.score_mod_gradient != nullptr && options_.score_mod_gradient[0] != '\0') {
      invalid(message(function_, ": score_mod_gradient is given, expected it beside score_mod"));
    }
    if (args_.num_mod_args < 0 || args_.num_mod_args > kMaxUserArrays) {
      invalid(message(function_, ": num_mod_args is ", args_.num_mod_args, ", expected 0 to ", kMaxUserArrays));
    }
    if (args_.num_mod_args == 0) return;
    if (args_.mod_args == nullptr) invalid(message(function_, ": mod_args is NULL, expected tensors"));
    if (!p_.features.has_any(kModFeatures)) {
      invalid(message(function_, ": mod_args is given, expected it beside score_mod or mask_mod"));
    }
    p_.num_arrays = args_.num_mod_args;
    for (int32_t i = 0; i < p_.num_arrays; ++i) {
      p_.arrays[i] = reader_.array(message("mod_args[", i, "]").c_str(), args_.mod_args[i]);
    }
  }

  const Forward::Args& args_;
  const Forward::Options& options_;
  TensorReader reader_;
  const char* function_;
  Memory memory_;
  AttentionArguments p_;
};

// k and v of 8 or 4 bits beside q of a float are a cache: that its scales are forgotten must not pass for scales of 1.
void require_scales_of_cache(const AttentionArguments& a, const char* function) {
  const bool is_cache = (dtype_bit(a.k().dtype) & kCacheDTypes) != 0 && a.k().dtype == a.v().dtype;
  if (!is_cache || !is_float(a.dtype())) return;
  for (const auto& [name, scale] : {std::pair{"k", Name::k_scale}, {"v", Name::v_scale}}) {
    if (a.tensors[scale].dtype != DType::none) continue;
    invalid(message(function, ": ", name, "_scale is NULL, expected the scales of ", name, ", whose dtype is ",
                    core::name(a.k().dtype), " (where it has none, one scale of 1)"));
  }
}

}  // namespace

AttentionArguments read_forward(const Forward::Args& args, const Forward::Options& options, const Reading& reading) {
  return ForwardReader(args, options, reading).run();
}

AttentionArguments Forward::read(const Args& args, const Options& options, const Reading& reading) {
  const AttentionArguments arguments = read_forward(args, options, reading);
  require_scales_of_cache(arguments, reading.function);
  return arguments;
}

}  // namespace tessella::core
