#include "cuda/prebuild.hpp"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <vector>

#include "core/error.hpp"
#include "core/message.hpp"
#include "cuda/compile/cubin_store.hpp"
#include "cuda/compile/find_cubin.hpp"
#include "cuda/compile/nvrtc.hpp"
#include "cuda/driver/gpus.hpp"
#include "cuda/precompiled_programs.hpp"

namespace tessella::cuda {
namespace {

using core::message;

struct Job {
  const PrecompiledProgram* precompiled;
  Target target;
};

std::vector<Target> parse_targets(const std::string& list) {
  std::vector<Target> targets;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    const std::string string = list.substr(begin, end - begin);
    const std::optional<Target> target = parse_target(string);
    if (!target || target->arch < 80) {
      core::invalid(message("kernels build: archs has '", string, "', expected sm_80 or later, as in \"sm_80,sm_90\""));
    }
    targets.push_back(*target);
    begin = end + 1;
  }
  return targets;
}

// The target of one program for a wanted architecture. Nothing if a program of sm_90a is wanted for another one.
std::optional<Target> target_of(const PrecompiledProgram& precompiled, Target wanted) {
  wanted.arch_specific = precompiled.program.arch_specific;
  const auto runs_on = [&](const Target& own) {
    return wanted.arch_specific ? own == wanted : own.arch <= wanted.arch;
  };
  return std::ranges::any_of(precompiled.targets, runs_on) ? std::optional(wanted) : std::nullopt;
}

std::vector<Target> wanted_targets(const PrecompiledProgram& precompiled, const std::vector<Target>& asked) {
  if (asked.empty() && device_count() == 0) return precompiled.targets;
  std::vector<Target> wanted;
  const auto add = [&](const Target& target) {
    const std::optional<Target> own = target_of(precompiled, target);
    if (own && std::ranges::find(wanted, *own) == wanted.end()) wanted.push_back(*own);
  };
  for (const Target& target : asked) add(target);
  if (asked.empty()) {
    for (int id = 0; id < device_count(); ++id) add({.arch = device_info(id).arch});
  }
  return wanted;
}

std::string result_string(const Job& job, const Cubin& cubin) {
  const Resources& takes = cubin.resources;
  std::string string = message(job.precompiled->kernel, " ", job.target.name(), " ", name(cubin.origin));
  if (cubin.origin == Cubin::Origin::compiled) string += message(" in ", static_cast<int>(cubin.milliseconds), " ms");
  if (takes.registers >= 0) {
    string += message(", ", takes.registers, " registers, ", takes.spill_store_bytes + takes.spill_load_bytes,
                      " bytes spilled");
  }
  return string + ": " + job.precompiled->program.expression;
}

}  // namespace

void prebuild(const std::string& targets, const std::string& kernel, const core::Progress& progress) {
  const std::vector<Target> asked = targets.empty() ? std::vector<Target>() : parse_targets(targets);
  const std::vector<PrecompiledProgram> programs = precompiled_programs();
  std::vector<Job> jobs;
  std::string names;
  for (const PrecompiledProgram& precompiled : programs) {
    if (names.find(precompiled.kernel) == names.npos) names += (names.empty() ? "" : ", ") + precompiled.kernel;
    if (!kernel.empty() && precompiled.kernel != kernel) continue;
    for (const Target& target : wanted_targets(precompiled, asked)) jobs.push_back({&precompiled, target});
  }
  if (!kernel.empty() && std::ranges::none_of(programs, [&](const PrecompiledProgram& precompiled) {
        return precompiled.kernel == kernel;
      })) {
    core::invalid(message("kernels build: kernel is '", kernel, "', expected one of ", names));
  }
  if (const std::string problem = cubin_store().disk().folder().problem(); !problem.empty()) {
    throw core::Error(core::ErrorCode::io, message("kernels build: the cache cannot be written: ", problem));
  }
  for (size_t i = 0; i < jobs.size(); ++i) {
    std::shared_ptr<const Cubin> cubin = find_embedded_for(jobs[i].precompiled->program, jobs[i].target);
    if (cubin == nullptr) cubin = cubin_store().get(jobs[i].precompiled->program, jobs[i].target);
    if (progress) progress(static_cast<int>(i + 1), static_cast<int>(jobs.size()), result_string(jobs[i], *cubin));
  }
}

}  // namespace tessella::cuda
