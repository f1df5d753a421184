// The subcommands. Each adds its options to the app and, when chosen, leaves what to run in `run`.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace tessella::cli {

inline constexpr int kDone = 0;
inline constexpr int kCheckFailed = 1;
inline constexpr int kBadInput = 2;

using Run = std::function<int()>;  // returns the exit code

void add_attend(CLI::App& app, Run& run);
void add_merge(CLI::App& app, Run& run);
void add_bench(CLI::App& app, Run& run);
void add_bench_decode(CLI::App& bench, Run& run);  // a subcommand of `bench`
void add_ladder(CLI::App& app, Run& run);
void add_kernels(CLI::App& app, Run& run);
void add_kernels_build(CLI::App& kernels, Run& run);  // a subcommand of `kernels`
void add_info(CLI::App& app, Run& run);

}  // namespace tessella::cli
