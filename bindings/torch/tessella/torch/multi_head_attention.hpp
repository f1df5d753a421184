// The multi-head attention layer: libtorch's linear projections around tessella::torch::attention.
//
//   tessella::torch::MultiHeadAttention layer({.embed_dim = 512, .num_heads = 8, .num_kv_heads = 2});
//   at::Tensor out = layer->forward(x, {.is_causal = true});  // x (batch, seqlen, embed_dim)
//
// It computes what torch::nn::MultiheadAttention does on rows whose batch comes first, and has the parameters of
// Python's tessella.torch.MultiHeadAttention.
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

#include <cmath>
#include <string>
#include <tessella/torch.hpp>
#include <utility>
#include <vector>

namespace tessella::torch {

struct MultiHeadAttentionOptions {
  int64_t embed_dim = 0;  // width of query and of the output
  int64_t num_heads = 0;
  double dropout = 0;  // probability that a weight of attention is dropped, in training
  bool bias = true;
  int64_t num_kv_heads = 0;    // a divisor of num_heads; 0 = num_heads
  int64_t head_dim = 0;        // 0 = embed_dim / num_heads
  int64_t kdim = 0, vdim = 0;  // widths of key and value; 0 = embed_dim
  double rotary_base = 0;      // of rotary embeddings in the half-split order of GPT-NeoX and Llama; 0 = none
};

// What a call has beside query; an undefined tensor is absent. All masks hide together; a row that sees nothing is the
// bias of out_proj.
struct MultiHeadAttentionArgs {
  at::Tensor key = {};               // (batch, seqlen_kv, kdim); absent = query
  at::Tensor value = {};             // (batch, seqlen_kv, vdim); absent = key
  bool is_causal = false;            // query i sees keys 0 to i
  at::Tensor seqlens = {};           // (batch), integers: valid keys of each sequence
  at::Tensor key_padding_mask = {};  // (batch, seqlen_kv): bool, true = hidden, or added to the scores
  // (seqlen_q, seqlen_kv), (batch * num_heads, seqlen_q, seqlen_kv) or what broadcasts to (batch, num_heads, seqlen_q,
  // seqlen_kv): bool, true = hidden, or added to the scores
  at::Tensor attn_mask = {};
  at::Tensor positions = {};  // of rotary embeddings: (seqlen_q) or (batch, seqlen_q); absent = 0, 1, ...
};

namespace detail {

inline void require(bool is_true, const std::string& message) {
  if (!is_true) throw Error(ErrorCode::invalid_argument, ("MultiHeadAttention: " + message).c_str());
}

inline std::string shape_of(const at::Tensor& tensor) {
  std::string shape;
  for (const int64_t size : tensor.sizes()) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
  return "(" + shape + ")";
}

// q and k, (batch, seqlen, heads, head_dim): entry i of a head turns with entry i + head_dim / 2.
inline void rotate(at::Tensor& q, at::Tensor& k, at::Tensor positions, double base) {
  const at::ScalarType dtype = q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;  // 16 bits count no positions
  const at::TensorOptions wide = q.options().dtype(dtype);
  if (!positions.defined()) positions = at::arange(q.size(1), wide);
  const at::Tensor frequencies = at::pow(base, -at::arange(0, q.size(3), 2, wide) / q.size(3));
  const at::Tensor angles = (positions.to(dtype).unsqueeze(-1) * frequencies).unsqueeze(-2);  // the same for all heads
  const at::Tensor cos = angles.cos(), sin = angles.sin();
  for (at::Tensor* rows : {&q, &k}) {
    const std::vector<at::Tensor> halves = rows->to(dtype).chunk(2, -1);
    const at::Tensor turned =
        at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, /*dim=*/-1);
    *rows = turned.to(rows->scalar_type());
  }
}

}  // namespace detail

class MultiHeadAttentionImpl : public ::torch::nn::Cloneable<MultiHeadAttentionImpl> {
 public:
  explicit MultiHeadAttentionImpl(const MultiHeadAttentionOptions& given) : options(given) {
    using detail::require;
    const auto or_else = [](int64_t& size, int64_t otherwise) { size = size == 0 ? otherwise : size; };
    require(options.embed_dim > 0, "embed_dim is " + std::to_string(options.embed_dim) + ", expected 1 or more");
    require(options.num_heads > 0, "num_heads is " + std::to_string(options.num_heads) + ", expected 1 or more");
    or_else(options.num_kv_heads, options.num_heads);
    require(options.num_kv_heads > 0 && options.num_heads % options.num_kv_heads == 0,
            "num_kv_heads is " + std::to_string(options.num_kv_heads) + ", expected a divisor of num_heads, " +
                std::to_string(options.num_heads));
    require(options.head_dim != 0 || options.embed_dim % options.num_heads == 0,
            "num_heads is " + std::to_string(options.num_heads) + ", expected a divisor of embed_dim, " +
                std::to_string(options.embed_dim) + ", or head_dim given");
    or_else(options.head_dim, options.embed_dim / options.num_heads);
    or_else(options.kdim, options.embed_dim);
    or_else(options.vdim, options.embed_dim);
    for (const auto& [name, size] :
         {std::pair{"head_dim", options.head_dim}, {"kdim", options.kdim}, {"vdim", options.vdim}}) {
      require(size > 0, std::string(name) + " is " + std::to_string(size) + ", expected 1 or more, or 0: the default");
    }
    require(options.dropout >= 0 && options.dropout < 1,
            "dropout is " + std::to_string(options.dropout) + ", expected a probability in [0, 1)");
    require(options.rotary_base >= 0 && std::isfinite(options.rotary_base),
            "rotary_base is " + std::to_string(options.rotary_base) + ", expected a positive number, or 0: none");
    require(options.rotary_base == 0 || options.head_dim % 2 == 0,
            "head_dim is " + std::to_string(options.head_dim) + ", expected an even number beside rotary_base");
    reset();
  }

  // Makes the projections, with weights by the rules of torch::nn::MultiheadAttention.
  void reset() override {
    const auto made = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name, ::torch::nn::Linear(::torch::nn::LinearOptions(in, out).bias(options.bias)));
    };
    const int64_t width = options.num_heads * options.head_dim, width_kv = options.num_kv_heads * options.head_dim;
    q_proj = made("q_proj", options.embed_dim, width);
    k_proj = made("k_proj", options.kdim, width_kv);
    v_proj = made("v_proj", options.vdim, width_kv);
    out_proj = made("out_proj", width, options.embed_dim);
    // Inputs of one width have one matrix there, so its rows count together.
    const bool is_one = options.kdim == options.embed_dim && options.vdim == options.embed_dim;
    for (const auto& projection : {q_proj, k_proj, v_proj}) {
      const int64_t rows = is_one ? width + 2 * width_kv : projection->weight.size(0);
      const double bound = std::sqrt(6 / static_cast<double>(projection->weight.size(1) + rows));
      ::torch::nn::init::uniform_(projection->weight, -bound, bound);
    }
    for (const auto& projection : {q_proj, k_proj, v_proj, out_proj}) {
      if (options.bias) ::torch::nn::init::zeros_(projection->bias);
    }
  }

  // query (batch, seqlen_q, embed_dim) to an output of that shape; without a batch, (seqlen_q, embed_dim), none of args
  // has one.
  at::Tensor forward(const at::Tensor& query, MultiHeadAttentionArgs args = {}) {
    if (!args.key.defined()) args.key = query;
    if (!args.value.defined()) args.value = args.key;
    detail::require(options.rotary_base != 0 || !args.positions.defined(),
                    "positions is given, expected a layer with rotary_base");
    detail::require(options.rotary_base == 0 || args.key.is_same(query),
                    "key is another tensor than query, expected query beside rotary_base");
    const bool is_batched = !query.defined() || query.dim() != 2;
    at::Tensor q = heads("query", query, q_proj, is_batched), k = heads("key", args.key, k_proj, is_batched);
    const at::Tensor v = heads("value", args.value, v_proj, is_batched);
    if (!is_batched) {
      for (at::Tensor* array : {&args.seqlens, &args.key_padding_mask}) {
        if (array->defined()) *array = array->unsqueeze(0);
      }
    }
    AttentionOptions call;
    Tensors tensors;
    set_masks(call, tensors, args, q, k);
    if (args.seqlens.defined()) {
      const at::ScalarType type = args.seqlens.scalar_type();
      detail::require(type == at::kInt || type == at::kLong,
                      std::string("seqlens is a tensor of ") + at::toString(type) + ", expected int32 or int64");
      tensors.seqlens_kv = args.seqlens.clamp(-1, std::numeric_limits<int32_t>::max()).to(at::kInt);
    }
    if (args.positions.defined()) {
      const at::IntArrayRef rows = query.sizes().slice(0, query.dim() - 1);
      detail::require(
          args.positions.sizes() == rows || args.positions.sizes() == rows.slice(rows.size() - 1),
          "positions is " + detail::shape_of(args.positions) + ", expected (seqlen_q) or (batch, seqlen_q)");
    }
    if (options.rotary_base != 0) detail::rotate(q, k, args.positions, options.rotary_base);
    if (is_training() && options.dropout != 0) {
      call.dropout = static_cast<float>(options.dropout);
      tensors.seed = at::randint(int64_t{1} << 62, {1}, q.options().dtype(at::kLong).requires_grad(false));
    }
    const at::Tensor out = out_proj->forward(attention(q, k, v, call, tensors).flatten(2));
    return is_batched ? out : out.squeeze(0);
  }

  MultiHeadAttentionOptions options;  // with numbers instead of defaults
  ::torch::nn::Linear q_proj{nullptr}, k_proj{nullptr}, v_proj{nullptr}, out_proj{nullptr};

 private:
  // The projection as (batch, seqlen, heads, head_dim).
  at::Tensor heads(const char* name, const at::Tensor& rows, ::torch::nn::Linear& projection, bool is_batched) const {
    detail::require(rows.defined(), std::string(name) + " is undefined, expected a tensor");
    const int64_t axes = is_batched ? 3 : 2, width = projection->options.in_features();
    detail::require(rows.dim() == axes && rows.size(-1) == width, std::string(name) + " is " + detail::shape_of(rows) +
                                                                      ", expected " + std::to_string(axes) +
                                                                      " axes, the last of " + std::to_string(width));
    const at::Tensor projected = projection->forward(is_batched ? rows : rows.unsqueeze(0));
    return projected.unflatten(-1, {projected.size(-1) / options.head_dim, options.head_dim});
  }

  void set_masks(AttentionOptions& call, Tensors& tensors, const MultiHeadAttentionArgs& args, const at::Tensor& q,
                 const at::Tensor& k) const {
    const int64_t batch = q.size(0), rows = q.size(1), keys = k.size(1), all_heads = batch * options.num_heads;
    at::Tensor padding = args.key_padding_mask, mask = args.attn_mask;
    if (padding.defined()) {
      detail::require(padding.sizes().equals({batch, keys}), "key_padding_mask is " + detail::shape_of(padding) +
                                                                 ", expected (" + std::to_string(batch) + ", " +
                                                                 std::to_string(keys) + ")");
      padding = padding.unsqueeze(1).unsqueeze(1);
    }
    if (mask.defined()) {
      const bool is_whole = mask.sizes().equals({rows, keys}) || mask.sizes().equals({all_heads, rows, keys});
      const std::string pair = std::to_string(rows) + ", " + std::to_string(keys) + ")";
      detail::require(is_whole || mask.dim() == 4, "attn_mask is " + detail::shape_of(mask) + ", expected (" + pair +
                                                       ", (" + std::to_string(all_heads) + ", " + pair + " or 4 axes");
      if (mask.dim() == 3) mask = mask.unflatten(0, {batch, options.num_heads});
    }
    at::Tensor hidden;
    for (const auto& [name, array] : {std::pair{"key_padding_mask", padding}, {"attn_mask", mask}}) {
      if (!array.defined()) continue;
      const bool is_bool = array.scalar_type() == at::kBool;
      detail::require(
          is_bool || array.is_floating_point(),
          std::string(name) + " is " + c10::toString(array.scalar_type()) + ", expected bool or a floating type");
      at::Tensor& sum = is_bool ? hidden : tensors.bias;
      sum = !sum.defined() ? array : is_bool ? sum.logical_or(array) : sum + array;
    }
    if (args.is_causal) call.mask = Mask::causal_top_left();
    if (hidden.defined()) {
      tensors.mask_arrays = {hidden.logical_not()};
      call.mask = call.mask & Mask::dense(view(tensors.mask_arrays[0]));
    }
  }
};

// What TORCH_MODULE makes: a shared pointer to the layer.
class MultiHeadAttention : public ::torch::nn::ModuleHolder<MultiHeadAttentionImpl> {
 public:
  using ::torch::nn::ModuleHolder<MultiHeadAttentionImpl>::ModuleHolder;
  explicit MultiHeadAttention(const MultiHeadAttentionOptions& options)
      : ModuleHolder(std::make_shared<MultiHeadAttentionImpl>(options)) {}

  // A layer with a copy of the weights; its rows have the batch first.
  static MultiHeadAttention from_torch(const ::torch::nn::MultiheadAttention& module) {
    const auto& given = module->options;
    detail::require(!given.add_bias_kv(), "from_torch: add_bias_kv is true, expected false");
    detail::require(!given.add_zero_attn(), "from_torch: add_zero_attn is true, expected false");
    MultiHeadAttention layer({.embed_dim = given.embed_dim(),
                              .num_heads = given.num_heads(),
                              .dropout = given.dropout(),
                              .bias = given.bias(),
                              .kdim = given.kdim(),
                              .vdim = given.vdim()});
    layer->to(module->out_proj->weight.device(), module->out_proj->weight.scalar_type());
    layer->train(module->is_training());
    const ::torch::NoGradGuard guard;
    const std::vector<at::Tensor> weights =
        module->_qkv_same_embed_dim ? module->in_proj_weight.chunk(3)
                                    : std::vector{module->q_proj_weight, module->k_proj_weight, module->v_proj_weight};
    const std::vector projections{layer->q_proj, layer->k_proj, layer->v_proj};
    const auto copy = [](const at::Tensor& to, const at::Tensor& from, const at::Tensor& parameter) {
      to.copy_(from);
      to.set_requires_grad(parameter.requires_grad());
    };
    for (size_t i = 0; i < 3; ++i) {
      copy(projections[i]->weight, weights[i], module->_qkv_same_embed_dim ? module->in_proj_weight : weights[i]);
      if (given.bias()) copy(projections[i]->bias, module->in_proj_bias.chunk(3)[i], module->in_proj_bias);
    }
    copy(layer->out_proj->weight, module->out_proj->weight, module->out_proj->weight);
    if (given.bias()) copy(layer->out_proj->bias, module->out_proj->bias, module->out_proj->bias);
    return layer;
  }
};

}  // namespace tessella::torch
