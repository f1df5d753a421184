#include "api/plan_cache.hpp"

#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "api/backends.hpp"
#include "api/dataflow.hpp"
#include "core/choose.hpp"
#include "core/operation_type.hpp"
#include "cpu/parallel.hpp"
#include "process/once.hpp"

namespace tessella::api {
namespace {

using core::Plan;
using core::Shape;

// The most recently used plans, newest first. A lock that is taken counts as a miss: a child forked while another
// thread held it would wait forever.
class PlanCache {
 public:
  std::shared_ptr<const Plan> find(const Shape& key, std::string_view kernel) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return nullptr;
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (entry->kernel == kernel && same(entry->plan->shape, key)) {
        entries_.splice(entries_.begin(), entries_, entry);
        return entry->plan;
      }
    }
    return nullptr;
  }
  void insert(std::shared_ptr<const Plan> plan, std::string kernel) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return;
    entries_.push_front({std::move(plan), std::move(kernel)});
    if (entries_.size() > kCapacity) entries_.pop_back();
  }
  void clear() {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (lock) entries_.clear();
  }

 private:
  static bool same(const Shape& a, const Shape& b) {
    return &a.type() == &b.type() && a.type().equal(a.data(), b.data());
  }

  static constexpr size_t kCapacity = 64;
  struct Entry {
    std::shared_ptr<const Plan> plan;  // of exactly the wanted shape
    std::string kernel;                // the name that was forced
  };
  std::mutex mutex_;
  std::list<Entry> entries_;
};

PlanCache& plan_cache() {
  return *process::once([] { return new PlanCache; });
}

}  // namespace

void forget_plans() { plan_cache().clear(); }

int32_t threads_of_key(core::Device device, int32_t num_threads) {
  return device.type == core::DeviceType::cpu ? cpu::threads_for(num_threads) : 0;
}

Plan make_plan(const Shape& shape, core::ForcedKernel forced, const char* function) {
  const core::PreferredKernel preferred = forced.is_given() ? core::PreferredKernel() : preferred_kernel(shape);
  Plan plan = core::choose(shape, kernel_tables(), forced, function, preferred);
  if (plan.kernel->prepare != nullptr) plan.prepared = plan.kernel->prepare(plan);
  return plan;
}

std::shared_ptr<const Plan> plan_of_key(const Shape& shape, core::ForcedKernel forced, const char* function) {
  if (std::shared_ptr<const Plan> plan = plan_cache().find(shape, forced.name)) return plan;
  auto plan = std::make_shared<const Plan>(make_plan(shape, forced, function));
  plan_cache().insert(plan, std::string(forced.name));
  return plan;
}

}  // namespace tessella::api
