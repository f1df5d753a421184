// Preconditions of copy_pages on values: ranges, memory, pairs.
#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/limits.hpp"
#include "core/message.hpp"
#include "core/overlaps.hpp"
#include "operations/copy_pages/copy_pages.hpp"

namespace tessella::core {
namespace {

class CopyPagesValidator {
 public:
  CopyPagesValidator(const CopyPagesArguments& arguments, const char* function) : a_(arguments), function_(function) {}

  void run() const {
    validate_resources(a_, function_);
    CopyPages::validate_sizes(a_, function_);
    std::vector<NamedMemory> pools;
    validate_outputs_not_folded(a_, function_);
    call_memory(a_, [&](const FieldName& name, const MemoryBox& box, Access access) {
      if (access == Access::written) pools.push_back({name, box});
    });
    are_apart(pools);
    if (a_.device.type == DeviceType::cpu) pairs();
  }

 private:
  // Only those whose spans meet are compared, of which there are few.
  void are_apart(std::vector<NamedMemory>& pools) const {
    std::sort(pools.begin(), pools.end(),
              [](const NamedMemory& x, const NamedMemory& y) { return x.box.begin < y.box.begin; });
    for (size_t i = 0; i < pools.size(); ++i) {
      for (size_t j = i + 1; j < pools.size() && pools[j].box.begin < pools[i].box.end; ++j) {
        if (!overlap(pools[i].box, pools[j].box)) continue;
        const bool is_first = pools[i].name.idx < pools[j].name.idx;
        fail_overlap(function_, pools[is_first ? j : i].name, pools[is_first ? i : j].name);
      }
    }
    call_memory(a_, [&](const FieldName& name, const MemoryBox& box, Access access) {
      if (access == Access::written) return;
      for (const NamedMemory& pool : pools) {
        if (overlap(pool.box, box)) fail_overlap(function_, pool.name, name);
      }
    });
  }

  // Pages are copied side by side, so none is read that another pair writes.
  void pairs() const {
    struct Use {
      int64_t page, pair;
      bool is_target;
    };
    std::vector<Use> uses;
    for (int64_t i = 0; i < a_.num_pairs; ++i) {
      const int64_t from = a_.pairs.at(i, 0), into = a_.pairs.at(i, 1);
      if (from < 0) continue;
      for (const auto& [which, page] : {std::pair{0, from}, std::pair{1, into}}) {
        if (page >= 0 && page < a_.num_pages) continue;
        invalid(message(function_, ": pairs[", i, "][", which, "] is ", page, ", expected 0 to ", a_.num_pages - 1,
                        ", the pages of pools", which == 0 ? ", or a negative number for no copy" : ""));
      }
      if (from == into) continue;
      uses.push_back({from, i, false});
      uses.push_back({into, i, true});
    }
    std::sort(uses.begin(), uses.end(), [](const Use& x, const Use& y) {
      return std::pair(x.page, !x.is_target) < std::pair(y.page, !y.is_target);
    });
    for (size_t i = 1; i < uses.size(); ++i) {
      const Use& target = uses[i - 1];
      if (!target.is_target || uses[i].page != target.page) continue;
      invalid(message(function_, ": page ", target.page, " is the target of pairs[", target.pair, "] and the ",
                      uses[i].is_target ? "target" : "source", " of pairs[", uses[i].pair,
                      "], expected a target of one pair alone"));
    }
  }

  const CopyPagesArguments& a_;
  const char* function_;
};

}  // namespace

void CopyPages::validate_sizes(const CopyPagesShape& p, const char* function) {
  at_most(function, "the pages of pools[0]", p.num_pages, kMostCount);
  at_most(function, "the rows of pairs", p.num_pairs, kMostCount);
}

void CopyPages::validate(const CopyPagesArguments& arguments, const char* function) {
  CopyPagesValidator(arguments, function).run();
}

}  // namespace tessella::core
