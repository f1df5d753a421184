#include "model.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace ts = tessella;

namespace {

constexpr int64_t kPromptRows = 512;  // of a prompt that are computed at once

}  // namespace

Model::Model(const Checkpoint& checkpoint, ts::DType dtype, int64_t num_sequences, int64_t most_tokens,
             const Sampling& sampling, Device& device)
    : device_(device),
      config_(checkpoint.config()),
      dtype_(dtype),
      num_sequences_(num_sequences),
      most_tokens_(most_tokens),
      sampling_(sampling) {
  const Config& c = config_;
  const int64_t q_columns = c.heads * c.head_dim, kv_columns = c.heads_kv * c.head_dim;
  embedding_ = weights(checkpoint, {{"model.embed_tokens.weight", c.vocabulary}}, c.hidden);
  head_ = c.is_tied ? embedding_ : weights(checkpoint, {{"lm_head.weight", c.vocabulary}}, c.hidden);
  norm_ = vector(checkpoint, "model.norm.weight");
  for (int64_t i = 0; i < c.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
    layers_.push_back(
        {.attention_norm = vector(checkpoint, layer + "input_layernorm.weight"),
         .mlp_norm = vector(checkpoint, layer + "post_attention_layernorm.weight"),
         .qkv = weights(checkpoint,
                        {{attention + "q_proj.weight", q_columns},
                         {attention + "k_proj.weight", kv_columns},
                         {attention + "v_proj.weight", kv_columns}},
                        c.hidden),
         .out = weights(checkpoint, {{attention + "o_proj.weight", c.hidden}}, q_columns),
         .gate_and_up =
             weights(checkpoint, {{mlp + "gate_proj.weight", c.intermediate}, {mlp + "up_proj.weight", c.intermediate}},
                     c.hidden),
         .down = weights(checkpoint, {{mlp + "down_proj.weight", c.hidden}}, c.intermediate)});
  }

  // Every sequence holds its pages from the start, so that the table stays while a step is repeated.
  const int64_t num_pages = num_sequences * page_columns();
  std::vector<ts::TensorView> pools[2];
  for (int64_t i = 0; i < 2 * c.layers; ++i) {
    pools_.push_back(elements(num_pages * kPageSize, kv_columns));
    pools[i % 2].push_back(view(pools_.back(), {num_pages, kPageSize, c.heads_kv, c.head_dim}));
  }
  cache_.emplace(pools[0], pools[1]);
  for (int64_t i = 0; i < num_sequences; ++i) ids_.push_back(cache_->new_sequence());
  (void)cache_->pages().reserve(ids_, std::vector<int64_t>(ids_.size(), most_tokens));  // nothing is shared or copied
  page_table_ = uploaded(cache_->page_table(ids_, page_columns()).entries);

  std::vector<float> cosines, sines;
  for (int64_t position = 0; position < most_tokens; ++position) {
    for (const float frequency : c.rotary_frequencies) {
      cosines.push_back(std::cos(static_cast<float>(position) * frequency));
      sines.push_back(std::sin(static_cast<float>(position) * frequency));
    }
  }
  cosines_ = uploaded(cosines);
  sines_ = uploaded(sines);

  const int64_t rows = std::max(std::min(most_tokens, kPromptRows), num_sequences);
  hidden_ = elements(rows, c.hidden);
  normal_ = elements(rows, c.hidden);
  qkv_ = elements(rows, qkv_columns());
  attended_ = elements(rows, q_columns);
  inner_ = elements(rows, c.intermediate);
  logits_ = uploaded(std::vector<float>(static_cast<size_t>(num_sequences * c.vocabulary)));
  lengths_ = uploaded(std::vector<int32_t>(ids_.size()));
  tokens_ = uploaded(std::vector<int32_t>(ids_.size()));
  prompt_ = uploaded(std::vector<int32_t>(static_cast<size_t>(rows)));
  step_ = device_.repeated([this] {
    run({.first = 0, .sequences = num_sequences_, .tokens = 1, .ids = ids(tokens_), .are_a_step = true});
    choose(0, num_sequences_);
  });
}

int32_t Model::start(int64_t sequence, const std::vector<int32_t>& prompt) {
  int32_t* const length = ids(lengths_) + sequence;
  for (int64_t first = 0; first < std::ssize(prompt); first += kPromptRows) {
    const int64_t count = std::min(kPromptRows, std::ssize(prompt) - first);
    const auto cached = static_cast<int32_t>(first + count);  // with these rows
    device_.upload(length, &cached, sizeof cached);
    device_.upload(prompt_.get(), prompt.data() + first, static_cast<size_t>(count) * sizeof(int32_t));
    run({.first = sequence, .sequences = 1, .tokens = count, .ids = ids(prompt_), .are_a_step = false});
  }
  choose(sequence, 1);
  int32_t token = 0;
  device_.download(&token, ids(tokens_) + sequence, sizeof token);
  return token;
}

std::vector<int32_t> Model::step() {
  step_();
  std::vector<int32_t> tokens(ids_.size());
  device_.download(tokens.data(), tokens_.get(), tokens.size() * sizeof(int32_t));
  return tokens;
}

// Logits of the last token of each sequence.
void Model::run(const Rows& rows) {
  const Config& c = config_;
  const int64_t count = rows.sequences * rows.tokens;
  const auto hidden = view(hidden_, {count, c.hidden}), normal = view(normal_, {count, c.hidden});
  const auto qkv = view(qkv_, {count, qkv_columns()});
  const auto attended = view(attended_, {count, c.heads * c.head_dim});
  const auto inner = view(inner_, {count, c.intermediate});
  device_.run(Embedding{rows.ids, embedding_.get(), hidden_.get(), static_cast<int>(c.hidden)},
              static_cast<int>(count));
  if (rows.are_a_step) make_schedule(rows);
  for (int i = 0; i < static_cast<int>(c.layers); ++i) {
    const Layer& layer = layers_[static_cast<size_t>(i)];
    normalize(layer.attention_norm, 0, 1, count);
    multiply(kQkv, rows, {.x = normal, .w = view(layer.qkv, {qkv.shape(1), c.hidden}), .out = qkv});
    attend(rows, i);
    multiply(kOut, rows,
             {.x = attended, .w = view(layer.out, {c.hidden, attended.shape(1)}), .residual = hidden, .out = hidden});
    normalize(layer.mlp_norm, 0, 1, count);
    multiply(kGateAndUp, rows,
             {.x = normal, .w = view(layer.gate_and_up, {2 * c.intermediate, c.hidden}), .out = inner});
    multiply(kDown, rows,
             {.x = inner, .w = view(layer.down, {c.hidden, c.intermediate}), .residual = hidden, .out = hidden});
  }
  normalize(norm_, rows.tokens - 1, rows.tokens, rows.sequences);
  multiply(kHead, rows,
           {.x = view(normal_, {rows.sequences, c.hidden}),
            .w = view(head_, {c.vocabulary, c.hidden}),
            .out = view(logits_, ts::f32, {rows.sequences, c.vocabulary}, rows.first * c.vocabulary)});
}

void Model::normalize(const Memory& weight, int64_t first, int64_t step, int64_t count) {
  const Config& c = config_;
  device_.run(RmsNorm{hidden_.get() + first * c.hidden * ts::size_bits(dtype_) / 8, weight.get(), normal_.get(),
                      step * c.hidden, static_cast<int>(c.hidden), c.epsilon},
              static_cast<int>(count));
}

void Model::choose(int64_t first, int64_t count) {
  device_.run(NextToken{reinterpret_cast<const float*>(logits_.get()) + first * config_.vocabulary,
                        ids(tokens_) + first, ids(lengths_) + first, static_cast<int>(first), sampling_.seed,
                        static_cast<int>(config_.vocabulary), sampling_.temperature, sampling_.top_p},
              static_cast<int>(count));
}

// out = x w^T: in a step by the plan of such products.
void Model::multiply(Product product, const Rows& rows, const ts::LinearArgs& args) {
  const ts::LinearOptions options{.activation = product == kGateAndUp ? ts::Activation::swiglu : ts::Activation::none,
                                  .weights_ready = true};
  if (!rows.are_a_step) return ts::linear(args, options, device_.stream());
  auto& planned = products_[product];
  if (!planned) planned = with_workspace(ts::plan_linear(args, options));
  planned->plan.run(args, planned->workspace, device_.stream());
}

// Keys and values go into the cache, and queries see it.
void Model::attend(const Rows& rows, int layer) {
  const Config& c = config_;
  const ts::ForwardArgs args = attention_args(rows, layer);
  const int64_t row = qkv_columns(), stride = rows.tokens * row;
  const auto new_rows = [&](int64_t first_head) {
    return view(qkv_, {rows.sequences, rows.tokens, c.heads_kv, c.head_dim}, {stride, row, c.head_dim, 1},
                first_head * c.head_dim);
  };
  const ts::AppendArgs append{.k_new = new_rows(c.heads),
                              .v_new = new_rows(c.heads + c.heads_kv),
                              .k = args.k,
                              .v = args.v,
                              .seqlens_kv = args.seqlens_kv,
                              .page_table = args.page_table,
                              .rotary_cos = view(cosines_, ts::f32, {most_tokens_, c.head_dim / 2}),
                              .rotary_sin = view(sines_, ts::f32, {most_tokens_, c.head_dim / 2}),
                              .q = args.q,
                              .q_out = args.q};
  if (!rows.are_a_step) {
    ts::append(append, {}, device_.stream());
    ts::forward(args, {.mask = ts::Mask::causal()}, device_.stream());
    return;
  }
  if (!append_) append_ = with_workspace(ts::plan_append(append, {}));
  append_->plan.run(append, append_->workspace, device_.stream());
  attention_->plan.run(args, attention_->workspace, device_.stream());
}

ts::ForwardArgs Model::attention_args(const Rows& rows, int layer) const {
  const Config& c = config_;
  const int64_t row = qkv_columns(), columns = page_columns();
  ts::ForwardArgs args{
      .q = view(qkv_, {rows.sequences, rows.tokens, c.heads, c.head_dim}, {rows.tokens * row, row, c.head_dim, 1}),
      .k = cache_->k(layer),
      .v = cache_->v(layer),
      .out = view(attended_, {rows.sequences, rows.tokens, c.heads, c.head_dim}),
      .seqlens_kv = view(lengths_, ts::i32, {rows.sequences}, rows.first),
      .page_table = view(page_table_, ts::i32, {rows.sequences, columns}, rows.first * columns)};
  if (rows.are_a_step && schedule_ != nullptr) args.schedule = view(schedule_, ts::i32, {schedule_size_});
  return args;
}

// Of a step's lengths, for all layers: how a GPU shares the keys of ragged sequences.
void Model::make_schedule(const Rows& rows) {
  const ts::AttentionOptions options{.mask = ts::Mask::causal()};
  if (!attention_) {
    ts::ForwardArgs args = attention_args(rows, 0);
    const bool is_on_gpu = device_.id().type == TESSELLA_CUDA;
    if (is_on_gpu) args.schedule = view(schedule_, ts::i32, {1});  // there is to be one: it needs no memory yet
    attention_ = with_workspace(ts::plan_forward(args, options));
    schedule_size_ = static_cast<int64_t>(attention_->plan.schedule_bytes() / sizeof(int32_t));
    if (schedule_size_ > 0) schedule_ = uploaded(std::vector<int32_t>(static_cast<size_t>(schedule_size_)));
  }
  if (schedule_ != nullptr) attention_->plan.make_schedule(attention_args(rows, 0), device_.stream());
}

template <typename Plan>
Model::Planned<Plan> Model::with_workspace(Plan plan) {
  ts::Workspace workspace = plan.workspace_size();
  Memory state = device_.allocate(static_cast<size_t>(workspace.state_bytes) + 1);
  Memory scratch = device_.allocate(static_cast<size_t>(workspace.scratch_bytes) + 1);
  workspace.state = state.get();
  workspace.scratch = scratch.get();
  plan.initialize(workspace, device_.stream());
  return {std::move(plan), std::move(state), std::move(scratch), workspace};
}

Memory Model::weights(const Checkpoint& checkpoint, const std::vector<std::pair<std::string, int64_t>>& matrices,
                      int64_t columns) {
  int64_t all_rows = 0;
  for (const auto& [name, rows] : matrices) all_rows += rows;
  Memory memory = elements(all_rows, columns);
  std::byte* to = memory.get();
  for (const auto& [name, rows] : matrices) {
    const std::vector<std::byte> bytes = checkpoint.read(name, {rows, columns}, dtype_);
    device_.upload(to, bytes.data(), bytes.size());
    to += bytes.size();
  }
  return memory;
}

Memory Model::vector(const Checkpoint& checkpoint, const std::string& name) {
  return uploaded(checkpoint.read(name, {config_.hidden}, dtype_));
}

template <typename T>
Memory Model::uploaded(const std::vector<T>& values) {
  const size_t bytes = values.size() * sizeof(T);
  Memory memory = device_.allocate(bytes);
  device_.upload(memory.get(), values.data(), bytes);
  return memory;
}

Memory Model::elements(int64_t rows, int64_t columns) {
  return device_.allocate(static_cast<size_t>(rows * columns * ts::size_bits(dtype_) / 8));
}

ts::TensorView Model::view(const Memory& memory, std::initializer_list<int64_t> shape,
                           std::initializer_list<int64_t> strides, int64_t first) const {
  return ts::view(memory.get() + first * ts::size_bits(dtype_) / 8, dtype_, shape, strides, device_.id());
}
ts::TensorView Model::view(const Memory& memory, ts::DType dtype, std::initializer_list<int64_t> shape,
                           int64_t first) const {
  return ts::view(memory.get() + first * ts::size_bits(dtype) / 8, dtype, shape, {}, device_.id());
}
