#include "cuda/compile/find_cubin.hpp"

#include <algorithm>
#include <chrono>
#include <limits>

#include "core/error.hpp"
#include "core/message.hpp"
#include "cuda/compile/cubin_store.hpp"
#include "cuda/compile/embedded_cubins.hpp"
#include "cuda/compile/nvrtc.hpp"
#include "cuda/driver/driver.hpp"

namespace tessella::cuda {
namespace {

// A driver loads cubins of its own major version's compilers, and PTX of compilers that are not newer than itself.
bool driver_takes(CompilerVersion compiler, bool ptx) {
  const int version = driver_version();
  if (version == 0) return true;
  const CompilerVersion driver{version / 1000, version % 1000 / 10};
  return ptx ? compiler <= driver : compiler.major <= driver.major;
}

std::shared_ptr<const Cubin> find_embedded(const Program& program, const Target& target) {
  if (embedded_cubins().empty()) return nullptr;
  const auto start = std::chrono::steady_clock::now();
  const auto found = embedded_cubins().find(program_key(program, target).hex());
  if (found == embedded_cubins().end() || !driver_takes(found->second.compiler, target.ptx)) return nullptr;
  std::string_view record = found->second.record;
  auto cubin = std::make_shared<Cubin>(*unpack(record, false));
  cubin->origin = Cubin::Origin::embedded;
  cubin->milliseconds = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return cubin;
}

}  // namespace

std::vector<Target> native_targets(int arch, bool arch_specific) {
  if (arch_specific) return {{.arch = arch, .arch_specific = true}};
  std::vector<Target> targets;
  for (int minor = arch; minor >= arch / 10 * 10; --minor) targets.push_back({.arch = minor});
  return targets;
}

std::shared_ptr<const Cubin> find_embedded_for(const Program& program, const Target& target) {
  if (target.ptx) return find_embedded(program, target);
  for (const Target& native : native_targets(target.arch, target.arch_specific)) {
    if (std::shared_ptr<const Cubin> cubin = find_embedded(program, native)) return cubin;
  }
  return nullptr;
}

std::optional<Target> compile_target(int arch, bool arch_specific, const std::vector<int>& compiler_archs) {
  // A compiler that does not say what it knows is asked for what is needed.
  if (compiler_archs.empty()) return Target{.arch = arch, .arch_specific = arch_specific};
  int nearest = 0;
  for (const int known : compiler_archs) {
    if (known <= arch) nearest = std::max(nearest, known);
  }
  if (nearest == arch) return Target{.arch = arch, .arch_specific = arch_specific};
  if (arch_specific || nearest == 0) return std::nullopt;
  return Target{.arch = nearest, .ptx = nearest / 10 != arch / 10};
}

Cubin::Origin origin(const Program& program, const Target& target) {
  if (find_embedded_for(program, target) != nullptr) return Cubin::Origin::embedded;
  constexpr CompilerVersion kNewest{.major = std::numeric_limits<int>::max()};
  const bool is_cached = cubin_store().disk().read_any(program_key(program, target), kNewest).has_value();
  return is_cached ? Cubin::Origin::disk : Cubin::Origin::compiled;
}

std::shared_ptr<const Cubin> find_or_compile(const Program& program, int arch) {
  const Target own{.arch = arch, .arch_specific = program.arch_specific};
  if (std::shared_ptr<const Cubin> cubin = find_embedded_for(program, own)) return cubin;
  std::optional<Target> target = own;
  if (const Nvrtc* compiler = nvrtc(); compiler != nullptr) {
    target = compile_target(arch, program.arch_specific, compiler->archs());
    if (!target) {
      throw core::Error(core::ErrorCode::compile,
                        core::message(program.expression, ": ", own.name(), " is not known to NVRTC ",
                                      compiler->version().string(), " (", compiler->path(), "), expected a newer one"));
    }
  } else if (!program.arch_specific) {
    // PTX is the last resort: the driver takes seconds to compile it.
    for (int older = arch; older >= 80; --older) {
      std::shared_ptr<const Cubin> ptx = find_embedded(program, {.arch = older, .ptx = true});
      if (ptx == nullptr) continue;
      try {
        return cubin_store().get(program, own);
      } catch (const core::Error&) {
        return ptx;
      }
    }
  }
  return cubin_store().get(program, *target);
}

}  // namespace tessella::cuda
