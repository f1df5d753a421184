// Reads affinity and the CPU quota of the process's control groups, version 2 (cpu.max) and version 1
// (cpu.cfs_quota_us). A quota may be set on any group above the process's own; the smallest counts.
#include "process/thread_limit.hpp"

#include <sched.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "core/environment.hpp"
#include "process/once.hpp"

namespace tessella::process {
namespace {

int affinity_count() {
  // The kernel's mask may be larger than cpu_set_t: grow until it fits.
  for (size_t cpus = CPU_SETSIZE; cpus <= size_t{1} << 20; cpus *= 2) {
    std::vector<cpu_set_t> sets((CPU_ALLOC_SIZE(cpus) + sizeof(cpu_set_t) - 1) / sizeof(cpu_set_t));
    const size_t bytes = sets.size() * sizeof(cpu_set_t);
    if (sched_getaffinity(0, bytes, sets.data()) == 0) return std::max(1, CPU_COUNT_S(bytes, sets.data()));
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

int whole_cpus(double quota, double period) {
  if (quota <= 0 || period <= 0) return INT_MAX;
  const double cpus = quota / period;
  return cpus >= 1e6 ? INT_MAX : std::max(1, static_cast<int>(cpus + 0.999));
}

int quota_v2(const std::string& folder) {
  std::ifstream file(folder + "/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max") return INT_MAX;
  return whole_cpus(std::strtod(quota.c_str(), nullptr), period);
}

int quota_v1(const std::string& folder) {
  std::ifstream quota_file(folder + "/cpu.cfs_quota_us");
  std::ifstream period_file(folder + "/cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  if (!(quota_file >> quota) || !(period_file >> period)) return INT_MAX;
  return whole_cpus(quota, period);
}

// Smallest quota of the group and all above it.
int smallest_quota(const std::string& mount, std::string group, int (*quota)(const std::string&)) {
  int smallest = quota(mount);
  while (group.size() > 1) {
    smallest = std::min(smallest, quota(mount + group));
    group.resize(group.find_last_of('/'));
  }
  return smallest;
}

int cgroup_count() {
  int count = INT_MAX;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // hierarchy:controllers:/group
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos || second + 1 >= line.size() || line[second + 1] != '/') continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      count = std::min(count, smallest_quota("/sys/fs/cgroup", group, quota_v2));
    } else if (("," + controllers + ",").find(",cpu,") != std::string::npos) {
      count = std::min(count, smallest_quota("/sys/fs/cgroup/" + controllers, group, quota_v1));
      count = std::min(count, smallest_quota("/sys/fs/cgroup/cpu", group, quota_v1));
    }
  }
  return count;
}

}  // namespace

int thread_limit() {
  return once([] {
    const int wanted = core::environment_num_threads();
    const int most = std::min(affinity_count(), cgroup_count());
    return wanted > 0 ? std::min(wanted, most) : most;
  });
}

}  // namespace tessella::process
