// A server's loop: requests of any length share one pool of pages and go through the model in packed batches.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <memory_resource>
#include <utility>
#include <vector>

#include <tessella/attention.hpp>
#include <tessella/paged_cache.hpp>

#include "device.hpp"
#include "model.hpp"

namespace ts = tessella;

struct Request {
  size_t arrival;  // the step before which it comes
  std::vector<int> prompt;
  size_t num_new;      // tokens to be generated
  size_t num_samples;  // of them
};

// A prompt and what was generated behind it. Sample n begins with the token that is nth likeliest.
struct Sequence {
  size_t request;
  size_t sample;
  std::vector<int> tokens;
  int64_t id = -1;        // in the cache
  size_t num_cached = 0;  // tokens that the cache has
};

class Server {
 public:
  Server(const Model& model, const std::vector<Request>& requests, int64_t num_pages, Device& device)
      : model_(model),
        requests_(requests),
        device_(device),
        pools_(2 * kLayers, Floats(static_cast<size_t>(num_pages) * kPageSize * kHeadsKv * kDim), &device),
        cache_(views_of_pools(0, num_pages), views_of_pools(kLayers, num_pages)),
        rotary_(&device),
        rows_(kRows, &device),
        seqlens_(kSlots, &device),
        cu_seqlens_(kSlots + 1, &device),
        table_(kSlots * kColumns, &device),
        pairs_(2 * kSlots, &device),
        decode_(*this, kSlots, 1),
        mixed_(*this, kRows, kRows) {}

  size_t num_steps = 0, num_preempted = 0;
  int64_t most_pages = 0;

  // The sequences of all requests, in the order in which they ended.
  std::vector<Sequence> serve() {
    for (size_t next = 0; next < requests_.size() || !waiting_.empty() || !running_.empty(); ++num_steps) {
      for (; next < requests_.size() && requests_[next].arrival <= num_steps; ++next) {
        waiting_.push_back({next, 0, requests_[next].prompt});
      }
      admit();
      if (!running_.empty()) step();
    }
    return std::move(finished_);
  }

 private:
  using Ints = std::pmr::vector<int32_t>;
  // A step has a row for each new token, and a slot for each sequence; a sequence has at most kColumns pages.
  static constexpr int64_t kRows = 32, kSlots = 8, kPageSize = 16, kColumns = kPositions / kPageSize;

  // Steps of one kind: a kernel that was chosen once, its workspace and, on a GPU, the schedule of a step's lengths.
  struct Attention {
    struct alignas(64) Line {
      std::byte bytes[64];
    };
    int64_t num_rows;
    ts::AttentionOptions options;
    bool follows_schedule;
    Ints schedule;  // as large as the plan says
    ts::Plan plan;
    ts::Workspace workspace;
    std::pmr::vector<Line> state, scratch;

    Attention(Server& server, int64_t rows, int64_t longest)
        : num_rows(rows),
          options{.mask = ts::Mask::causal(), .max_seqlen_q = longest},
          follows_schedule(server.device_.is_gpu() && longest == 1),
          schedule(1, &server.device_),
          plan(ts::plan_forward(server.arguments(*this, 0), options)),
          workspace(plan.workspace_size()),
          state(&server.device_),
          scratch(&server.device_) {
      schedule.resize(plan.schedule_bytes() / sizeof(int32_t));
      state.resize(workspace.state_bytes / sizeof(Line) + 1);
      scratch.resize(workspace.scratch_bytes / sizeof(Line) + 1);
      workspace.state = state.data();
      workspace.scratch = scratch.data();
      plan.initialize(workspace);
    }
  };

  // Requests begin in the order of their arrival, while there are slots for their samples and pages for their prompts.
  void admit() {
    size_t num_slots = 0;
    for (const Sequence& sequence : running_) num_slots += slots_of(sequence);
    while (!waiting_.empty() && num_slots + slots_of(waiting_.front()) <= kSlots &&
           std::ssize(waiting_.front().tokens) < cache_.pages().num_free() * kPageSize) {
      num_slots += slots_of(waiting_.front());
      running_.push_back(std::move(waiting_.front()));
      running_.back().id = cache_.new_sequence();
      waiting_.pop_front();
    }
  }
  bool is_prompt(const Sequence& sequence) const {
    return sequence.tokens.size() == requests_[sequence.request].prompt.size();
  }
  size_t slots_of(const Sequence& sequence) const {
    return is_prompt(sequence) ? requests_[sequence.request].num_samples : 1;
  }

  void step() {
    while (!reserve()) preempt();
    std::vector<int> tokens;  // packed: those that the cache has not yet
    for (size_t slot = 0; slot < kSlots; ++slot) {
      if (slot < running_.size()) {
        Sequence& sequence = running_[slot];
        const auto first = sequence.tokens.begin() + static_cast<ptrdiff_t>(sequence.num_cached);
        tokens.insert(tokens.end(), first, first + static_cast<ptrdiff_t>(num_new_[slot]));
        sequence.num_cached += num_new_[slot];
      }
      seqlens_[slot] = slot < running_.size() ? static_cast<int32_t>(running_[slot].num_cached) : 0;
      cu_seqlens_[slot + 1] = static_cast<int32_t>(tokens.size());
    }
    std::ranges::copy(cache_.page_table(ids(), kColumns).entries, table_.begin());

    Attention& attention = std::ranges::max(num_new_) == 1 ? decode_ : mixed_;
    if (attention.follows_schedule) attention.plan.make_schedule(arguments(attention, 0));
    const auto hidden =
        model_.forward(tokens, rows_, [&](size_t layer) { attend(attention, static_cast<int>(layer)); });
    choose(hidden);
  }

  // Says how many tokens each sequence has in this step and gives them pages; false if there are too few pages. Each
  // has a token; prompts, and what is computed again, have the rows that remain, first come, first served.
  bool reserve() {
    size_t spare = kRows - running_.size();
    num_new_.clear();
    std::vector<int64_t> lengths;
    for (const Sequence& sequence : running_) {
      const size_t more = std::min(spare, sequence.tokens.size() - sequence.num_cached - 1);
      spare -= more;
      num_new_.push_back(1 + more);
      lengths.push_back(static_cast<int64_t>(sequence.num_cached + 1 + more));
    }
    std::vector<ts::PageCopy> copies;
    try {
      copies = cache_.pages().reserve(ids(), lengths);
    } catch (const ts::Error& error) {
      if (error.code() != ts::ErrorCode::out_of_memory || running_.size() == 1) throw;
      return false;
    }
    for (size_t i = 0; i < copies.size(); ++i) {
      pairs_[2 * i] = copies[i].source;
      pairs_[2 * i + 1] = copies[i].target;
    }
    if (!copies.empty()) copy_pages(cache_.pools(), ts::view(pairs_.data(), ts::i32, {std::ssize(copies), 2}));
    most_pages = std::max(most_pages, cache_.pages().num_pages() - cache_.pages().num_free());
    return true;
  }
  // The sequence that came last gives its pages back; it is computed again from its tokens when there is room.
  void preempt() {
    Sequence sequence = std::move(running_.back());
    running_.pop_back();
    cache_.release({sequence.id});
    sequence.num_cached = 0;
    waiting_.push_front(std::move(sequence));
    ++num_preempted;
  }

  void attend(Attention& attention, int layer) {
    const ts::TensorView q = view(rows_.q, attention.num_rows, kHeads);
    cache_.append({.k_new = view(rows_.k, attention.num_rows, kHeadsKv),
                   .v_new = view(rows_.v, attention.num_rows, kHeadsKv),
                   .seqlens_kv = ts::view(seqlens_.data(), ts::i32, {kSlots}),
                   .cu_seqlens_new = ts::view(cu_seqlens_.data(), ts::i32, {kSlots + 1}),
                   .page_table = ts::view(table_.data(), ts::i32, {kSlots, kColumns}),
                   .rotary_cos = ts::view(rotary_.cos.data(), ts::f32, {kPositions, kDim / 2}),
                   .rotary_sin = ts::view(rotary_.sin.data(), ts::f32, {kPositions, kDim / 2}),
                   .q = q,
                   .q_out = q},
                  layer);
    attention.plan.run(arguments(attention, layer), attention.workspace);
    device_.wait();
  }
  ts::ForwardArgs arguments(Attention& attention, int layer) {
    ts::ForwardArgs args{.q = view(rows_.q, attention.num_rows, kHeads),
                         .k = cache_.k(layer),
                         .v = cache_.v(layer),
                         .out = view(rows_.out, attention.num_rows, kHeads),
                         .seqlens_kv = ts::view(seqlens_.data(), ts::i32, {kSlots}),
                         .cu_seqlens_q = ts::view(cu_seqlens_.data(), ts::i32, {kSlots + 1}),
                         .page_table = ts::view(table_.data(), ts::i32, {kSlots, kColumns})};
    if (attention.follows_schedule) {
      args.schedule = ts::view(attention.schedule.data(), ts::i32, {std::ssize(attention.schedule)});
    }
    return args;
  }
  static ts::TensorView view(Floats& rows, int64_t count, int64_t heads) {
    return ts::view(rows.data(), ts::f32, {count, heads, kDim});
  }

  // A next token for each sequence whose tokens the cache has all; behind a prompt it is forked into its samples.
  void choose(const Floats& hidden) {
    for (size_t slot = 0, count = running_.size(); slot < count; ++slot) {
      if (running_[slot].num_cached < running_[slot].tokens.size()) continue;
      const float* row = &hidden[(static_cast<size_t>(cu_seqlens_[slot + 1]) - 1) * kWidth];
      for (size_t sample = 1; sample < slots_of(running_[slot]); ++sample) {
        Sequence fork = running_[slot];
        fork.id = cache_.fork(fork.id);
        fork.sample = sample;
        fork.tokens.push_back(model_.next_token(row, sample));
        running_.push_back(std::move(fork));
      }
      running_[slot].tokens.push_back(model_.next_token(row, 0));
    }
    const auto is_running = [&](const Sequence& sequence) {
      const Request& request = requests_[sequence.request];
      return sequence.tokens.size() < request.prompt.size() + request.num_new;
    };
    const auto ended = std::stable_partition(running_.begin(), running_.end(), is_running);
    for (auto sequence = ended; sequence != running_.end(); ++sequence) cache_.release({sequence->id});
    std::move(ended, running_.end(), std::back_inserter(finished_));
    running_.erase(ended, running_.end());
  }
  std::vector<int64_t> ids() const {
    std::vector<int64_t> ids;
    for (const Sequence& sequence : running_) ids.push_back(sequence.id);
    return ids;
  }
  std::vector<ts::TensorView> views_of_pools(size_t first, int64_t num_pages) {
    const ts::Device device{device_.is_gpu() ? TESSELLA_CUDA : TESSELLA_CPU, 0};
    std::vector<ts::TensorView> views;
    for (size_t i = first; i < first + kLayers; ++i) {
      views.push_back(ts::view(pools_[i].data(), ts::f32, {num_pages, kPageSize, kHeadsKv, kDim}, {}, device));
    }
    return views;
  }

  const Model& model_;
  const std::vector<Request>& requests_;
  Device& device_;
  std::pmr::vector<Floats> pools_;  // k of each layer, then v
  ts::PagedCache cache_;
  Rotary rotary_;
  Rows rows_;
  Ints seqlens_, cu_seqlens_, table_, pairs_;  // of the slots
  Attention decode_, mixed_;                   // steps of one token a sequence; others
  std::deque<Sequence> waiting_;
  std::vector<Sequence> running_, finished_;
  std::vector<size_t> num_new_;  // tokens of each running sequence in this step
};
