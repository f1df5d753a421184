#include "options/attention_options.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <variant>

#include "files/input_error.hpp"
#include "options/dtype_string.hpp"
#include "options/mask_string.hpp"
#include "options/number_string.hpp"
#include "options/value_string.hpp"

namespace tessella::cli {
namespace {

using Options = tessella_attention_options;

struct TensorTarget {
  Call::Member member;
  tessella_dtype dtype;  // of read_values()
};
// One of some words, which stand for 0, 1, 2 of the option.
struct WordTarget {
  int32_t Options::*member;
  std::array<const char*, 3> words;
};
struct FlagTarget {
  int32_t Options::*member;
};
struct DtypeTarget {
  tessella_dtype Options::*member;
};
using Target = std::variant<float Options::*, int64_t Options::*, uint64_t Options::*, int32_t Options::*,
                            const char * Options::*, WordTarget, FlagTarget, DtypeTarget, TensorTarget>;

struct Row {
  const char* name;
  Target target;
  const char* help;
};

using Args = tessella_forward_args;
const Row kRows[] = {
    {"scale", &Options::scale, "factor on q.k [1/sqrt(head_dim)]"},
    {"softcap", &Options::softcap, "c of c*tanh(s/c) [0 = off]"},
    {"dropout", &Options::dropout, "probability of a zero, in multiples of 1/65536 [0]"},
    {"seed", &Options::seed, "dropout's seed; the same one drops the same entries [0]"},
    {"offset", &Options::offset, "dropout's offset [0]"},
    {"bias", TensorTarget{&Args::bias, TESSELLA_DTYPE_DEFAULT},
     "added to the scaled scores, of the longest sequence where packed"},
    {"alibi-slopes", TensorTarget{&Args::alibi_slopes, TESSELLA_F32},
     "slope per head: adds -slope * distance to the scores"},
    {"sink", TensorTarget{&Args::sink, TESSELLA_F32}, "logit per head that joins the sum and no value"},
    {"q-scale", TensorTarget{&Args::q_scale, TESSELLA_F32},
     "factors on q: (batch, blocks of rows, heads); no kernel takes them yet"},
    {"k-scale", TensorTarget{&Args::k_scale, TESSELLA_F32}, "the same on k, of 8 or 4 bits"},
    {"v-scale", TensorTarget{&Args::v_scale, TESSELLA_F32}, "the same on v"},
    {"out-scale", TensorTarget{&Args::out_scale, TESSELLA_F32}, "out is divided by it; no kernel takes it yet"},
    {"scale-block", &Options::scale_block, "rows that have one entry of a scale [0 = all]"},
    {"seqlens-q", TensorTarget{&Args::seqlens_q, TESSELLA_I32}, "valid length of q per sequence"},
    {"seqlens-kv", TensorTarget{&Args::seqlens_kv, TESSELLA_I32}, "valid length of k and v per sequence"},
    {"leftpad-kv", TensorTarget{&Args::leftpad_kv, TESSELLA_I32},
     "rows of k and v that are padding in front, per sequence; bias and dense masks have them too"},
    {"page-table", TensorTarget{&Args::page_table, TESSELLA_I32}, "pages of each sequence; k and v are pools of pages"},
    {"cache-batch-idx", TensorTarget{&Args::cache_batch_idx, TESSELLA_I32},
     "the sequence of k and v that each one of q reads; they may have any number of them"},
    {"cu-seqlens-q", TensorTarget{&Args::cu_seqlens_q, TESSELLA_I32},
     "packed q: first row of each sequence, and the end"},
    {"cu-seqlens-kv", TensorTarget{&Args::cu_seqlens_kv, TESSELLA_I32}, "the same for k and v"},
    {"document-ids-q", TensorTarget{&Args::document_ids_q, TESSELLA_I32}, "where they differ from the keys'"},
    {"document-ids-kv", TensorTarget{&Args::document_ids_kv, TESSELLA_I32}, "a key is visible iff the ids are equal"},
    {"draft-mask", TensorTarget{&Args::draft_mask, TESSELLA_BOOL},
     "what queries see of the last keys, which are theirs: bool (batch or 1, seqlen_q, seqlen_q)"},
    {"out-dtype", DtypeTarget{&Options::out_dtype}, "that of q, or f32"},
    {"kernel", &Options::kernel, "a name of `tessella kernels` [automatic]"},
    {"num-threads", &Options::num_threads, "0 = all that the process may use"},
    {"num-splits", &Options::num_splits, "0 = automatic"},
    {"num-sms", &Options::num_sms, "GPU; 0 = all"},
    {"max-seqlen-q", &Options::max_seqlen_q, "bound of a plan; 0 = the tensors' sizes"},
    {"max-seqlen-kv", &Options::max_seqlen_kv, "bound of a plan; 0 = the tensors' sizes"},
    {"deterministic", WordTarget{&Options::deterministic, {"automatic", "required", "not-needed"}},
     "the same bits in every run"},
    {"batch-invariant", FlagTarget{&Options::batch_invariant}, "bits of a row that depend on nothing beside it"},
    {"query-class", WordTarget{&Options::query_class, {"automatic", "few", "many"}},
     "beside --batch-invariant: the class of kernels"},
    {"first-batch", &Options::first_batch, "where a slice begins in the whole"},
    {"first-head", &Options::first_head, "the same of heads"},
    {"first-query", &Options::first_query, "the same of queries"},
    {"first-key", &Options::first_key, "the same of keys"},
    {"whole-heads-q", &Options::whole_heads_q, "query heads of the whole [0 = those of q]"},
    {"check-device-values", FlagTarget{&Options::check_device_values}, "check values that live on a GPU"},
    {"score-mod", &Options::score_mod, "C++ source that modifies scores; GPU"},
    {"score-mod-gradient", &Options::score_mod_gradient, "C++ source of its gradient; GPU"},
    {"mask-mod", &Options::mask_mod, "C++ source of a mask; GPU"},
};

// What help shows for an option's value.
struct ValueName {
  std::string operator()(float Options::*) const { return "FLOAT"; }
  std::string operator()(int64_t Options::*) const { return "N"; }
  std::string operator()(uint64_t Options::*) const { return "N"; }
  std::string operator()(int32_t Options::*) const { return "N"; }
  std::string operator()(const char* Options::*member) const {
    return member == &Options::kernel ? "KERNEL" : "SOURCE";
  }
  std::string operator()(const WordTarget& target) const {
    return fmt::format("{}|{}|{}", target.words[0], target.words[1], target.words[2]);
  }
  std::string operator()(FlagTarget) const { return ""; }
  std::string operator()(DtypeTarget) const { return "DTYPE"; }
  std::string operator()(TensorTarget target) const {
    const bool takes_numbers = target.dtype == TESSELLA_F32 || target.dtype == TESSELLA_I32;
    return takes_numbers ? "NUMBERS|FILE[:NAME]" : "FILE[:NAME]";
  }
};

std::string flag_of(const Row& row) { return fmt::format("--{}", row.name); }

struct Apply {
  Call& call;
  const std::string what;
  const std::string& string;

  void operator()(float Options::*member) const { call.options.*member = parse_float(what, string); }
  void operator()(int64_t Options::*member) const { call.options.*member = parse_integer(what, string); }
  void operator()(uint64_t Options::*member) const { call.options.*member = parse_unsigned(what, string); }
  void operator()(int32_t Options::*member) const {
    call.options.*member =
        static_cast<int32_t>(parse_integer_between(what, string, 0, std::numeric_limits<int32_t>::max()));
  }
  void operator()(const char* Options::*member) const {
    call.options.*member = call.strings.emplace_back(string).c_str();
  }
  void operator()(const WordTarget& target) const {
    const auto word = std::ranges::find(target.words, string);
    if (word == target.words.end()) {
      throw InputError(fmt::format("{} is '{}', expected {}, {} or {}", what, string, target.words[0], target.words[1],
                                   target.words[2]));
    }
    call.options.*target.member = static_cast<int32_t>(word - target.words.begin());
  }
  void operator()(FlagTarget target) const { call.options.*target.member = 1; }
  void operator()(DtypeTarget target) const { call.options.*target.member = parse_float_dtype(what, string); }
  void operator()(TensorTarget target) const { call.set(target.member, read_values(what, string, target.dtype, call)); }
};

}  // namespace

bool is_attention_option(std::string_view name) {
  return std::ranges::any_of(kRows, [&](const Row& row) { return row.name == name; });
}

AttentionOptionValues::AttentionOptionValues() = default;
AttentionOptionValues::AttentionOptionValues(const AttentionOptionValues& other) = default;
AttentionOptionValues::~AttentionOptionValues() = default;

void AttentionOptionValues::add_without_mask_to(Command& command) {
  command.add_option("--device", device_, "cpu|cuda[:N]", "where the call runs");
  for (const Row& row : kRows) {
    if (std::holds_alternative<FlagTarget>(row.target)) {
      command.add_flag(flag_of(row), flags_[row.name], row.help, "Attention");
    } else {
      command.add_option(flag_of(row), values_[row.name], std::visit(ValueName(), row.target), row.help, "Attention");
    }
  }
}

void AttentionOptionValues::add_to(Command& command) {
  command.add_option("--mask", masks_, "MASK", kMaskHelp);
  add_without_mask_to(command);
}

std::string AttentionOptionValues::take_kernel() { return std::exchange(values_["kernel"], ""); }

bool AttentionOptionValues::has_tensors() const {
  return std::ranges::any_of(kRows, [&](const Row& row) {
    const auto value = values_.find(row.name);
    return std::holds_alternative<TensorTarget>(row.target) && value != values_.end() && !value->second.empty();
  });
}

void AttentionOptionValues::apply(Call& call) const {
  for (const Row& row : kRows) {
    const auto value = values_.find(row.name);
    const auto flag = flags_.find(row.name);
    const bool given = (value != values_.end() && !value->second.empty()) || (flag != flags_.end() && flag->second);
    static const std::string kFlag = "1";
    if (given) std::visit(Apply{call, flag_of(row), value != values_.end() ? value->second : kFlag}, row.target);
  }
  for (const std::string& mask : masks_) apply_mask(mask, call);
}

}  // namespace tessella::cli
