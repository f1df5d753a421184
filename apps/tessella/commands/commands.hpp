// The commands: each adds itself to the program.
#pragma once

#include "options/command.hpp"

namespace tessella::cli {

void add_attend(Command& program);
void add_merge(Command& program);
void add_quantize(Command& program);
void add_linear(Command& program);
void add_bench(Command& program);
void add_bench_decode(Command& bench);  // subcommands of `bench`
void add_bench_fp8_error(Command& bench);
void add_ladder(Command& program);
void add_ladder_linear(Command& ladder);  // a subcommand of `ladder`
void add_kernels(Command& program);
void add_kernels_build(Command& kernels);  // a subcommand of `kernels`
void add_tune(Command& program);
void add_info(Command& program);

}  // namespace tessella::cli
