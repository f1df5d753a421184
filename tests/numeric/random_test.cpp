// Small random cases on every kernel that runs here, or one case from its line:
//
//   random_test --cases 20000 --seed 1 [--kernel NAME] [--jobs N] [--decode] [--quantized] [--mla]
//   random_test --linear --cases 20000 --seed 1 [--kernel NAME] [--jobs N]
//   random_test --case "kernel=reference.flash_2 seqlen_q=5 window_right=0"
//
// Kernels of the GPU are compiled for some choices of a case: their cases keep to the first --max-configs of a list,
// which --list-configs prints and --compile-only compiles into the cache.
// Those of cuda.decode's kernels are few queries on caches; --decode gives such cases to the other forward kernels,
// too. --quantized gives them k and v of 8 and 4 bits, for a kernel that takes these, --mla caches of MLA.
//
// --wrong-forward gives backward kernels an out and LSE of another forward (cases/wrong_forward.hpp): a case passes if
// the check refuses its gradients. --linear runs cases of linear (cases/linear_call.hpp) on its kernels.
//
// Every failing case is printed as its line. Exit status 0 when all passed and every kernel had one, 1 when one failed
// or was unsupported, as none of these cases should be, 2 on bad input.

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cases/backward_call.hpp"
#include "cases/call.hpp"
#include "cases/cases.hpp"
#include "cases/configurations.hpp"
#include "cases/linear_call.hpp"
#include "cases/wrong_forward.hpp"

namespace {

using tessella::tests::BackwardCall;
using tessella::tests::Call;
using tessella::tests::Case;
using tessella::tests::Catch;
using tessella::tests::Caught;
using tessella::tests::LinearCall;
using tessella::tests::LinearCase;
using tessella::tests::Outcome;
using tessella::tests::Takes;
using tessella::tests::Verdict;

struct Arguments {
  int64_t cases = 2000;
  uint64_t seed = 1;
  std::string kernel, line;
  int64_t jobs = 1;
  int64_t max_configs = tessella::tests::kUsualConfigurations;
  bool decode = false;
  bool quantized = false;
  bool mla = false;
  bool wrong_forward = false;
  bool linear = false;
  bool list_configs = false;
  bool compile_only = false;
};

struct Kernel {
  std::string name;
  std::string dtypes;
  bool is_on_gpu;
  bool is_backward;
  bool decodes() const { return name.starts_with("cuda.decode"); }
  bool is_for_few() const { return name.starts_with("cpu.decode"); }
  bool is_for_float8() const { return name == "cuda.forward_widened" || name == "cuda.forward_f8_sm90"; }
  tessella::tests::Configuration configuration(int idx) const {
    const Takes takes = is_backward                                                     ? Takes::backward
                        : name == "cuda.forward_sm90" || name == "cuda.forward_f8_sm90" ? Takes::copy_engine
                                                                                        : Takes::everything;
    return tessella::tests::configuration(idx, dtypes, takes);
  }
};

std::vector<Kernel> kernels(const Arguments& arguments) {
  const std::string& only = arguments.kernel;
  std::vector<Kernel> list;
  for (int32_t idx = 0; idx < tessella_kernel_count(); ++idx) {
    tessella_kernel_info info = TESSELLA_KERNEL_INFO_INIT;
    if (tessella_kernel_describe(idx, &info) != TESSELLA_OK) continue;
    const std::string_view operation = info.operation;
    const bool is_wanted = arguments.linear ? operation == "linear" : operation == "forward" || operation == "backward";
    if (!is_wanted || (!only.empty() && only != info.name)) continue;
    if (arguments.decode && (operation == "backward" || std::string_view(info.name) == "cuda.forward_sm90")) continue;
    // The reference finds out and LSE by itself. The check, which is what a wrong forward tries, runs on the CPU
    // whatever computed, and cases of GPUs have more rows than the same in f64.
    if (arguments.wrong_forward && (operation == "forward" || std::string_view(info.device) == "cuda" ||
                                    std::string_view(info.name) == "reference.backward")) {
      continue;
    }
    if (info.unavailable[0] != '\0') {
      std::printf("skipped %s: %s\n", info.name, info.unavailable);
      continue;
    }
    list.push_back({info.name, info.dtypes, std::string_view(info.device) == "cuda", operation == "backward"});
  }
  return list;
}

// A fault ends the program: the case at hand must not be lost with it.
thread_local char t_line[4096];
void on_fault(int signal) {
  const auto print = [](const char* message) { return write(STDOUT_FILENO, message, std::strlen(message)); };
  const bool printed = print("FAULT --case \"") >= 0 && print(t_line) >= 0 && print("\"\n") >= 0;
  _exit(printed ? 128 + signal : 127);
}

void print_failure(const std::string& message) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::printf("FAILED --case \"%s\"\n  %s\n", t_line, message.c_str());
  std::fflush(stdout);
}

Outcome run(const Case& c) {
  std::snprintf(t_line, sizeof t_line, "%s", to_string(c).c_str());
  Outcome outcome{Verdict::failed, ""};
  try {
    outcome = run_case(c);
  } catch (const std::exception& error) {
    outcome.message = error.what();
  }
  if (outcome.verdict == Verdict::failed) print_failure(outcome.message);
  return outcome;
}

Outcome run_with_wrong_forward(const Case& c, uint64_t seed) {
  std::snprintf(t_line, sizeof t_line, "%s", to_string(c).c_str());
  const char* what = tessella::tests::kWrongForwards[seed / 7 % tessella::tests::kWrongForwards.size()];
  Catch found{Caught::no, ""};
  try {
    found = run_wrong_forward(c, what);
  } catch (const std::exception& error) {
    found.message = error.what();
  }
  if (found.caught == Caught::no) print_failure("not refused with another " + found.message);
  return {found.caught == Caught::no ? Verdict::failed : Verdict::passed, found.message};
}

Outcome run_linear(const LinearCase& c) {
  std::snprintf(t_line, sizeof t_line, "%s", to_string(c).c_str());
  LinearCall call(c);
  const tessella_status status = call.run();
  Outcome outcome{status == TESSELLA_UNSUPPORTED ? Verdict::unsupported : Verdict::failed, ""};
  outcome.message = status == TESSELLA_OK ? call.check() : tessella_last_error();
  if (outcome.message.empty()) outcome.verdict = Verdict::passed;
  if (outcome.verdict == Verdict::failed) print_failure(outcome.message);
  return outcome;
}

// work(at) for every at below count, in so many threads.
void in_threads(int64_t jobs, int64_t count, const std::function<void(int64_t)>& work) {
  std::atomic<int64_t> next{0};
  std::vector<std::jthread> threads;
  for (int64_t job = 0; job < jobs; ++job) {
    threads.emplace_back([&] {
      for (int64_t at; (at = next++) < count;) work(at);
    });
  }
}

Case random_case(const Kernel& kernel, uint64_t seed, const Arguments& arguments) {
  const int64_t max_configs = arguments.max_configs;
  if (arguments.quantized) {  // nowhere beside f64
    return tessella::tests::random_quantized_case(seed, kernel.name, "f32 bf16 f16", static_cast<int>(max_configs));
  }
  if (arguments.mla) {
    return tessella::tests::random_mla_case(seed, kernel.name, kernel.dtypes, static_cast<int>(max_configs));
  }
  if (arguments.decode || kernel.decodes()) {
    return tessella::tests::random_decode_case(seed, kernel.name, kernel.dtypes, static_cast<int>(max_configs));
  }
  const auto idx = static_cast<int>(seed % static_cast<uint64_t>(max_configs));
  Case c = kernel.is_on_gpu ? random_case_of(kernel.configuration(idx), seed, kernel.name)
                            : tessella::tests::random_case(seed, kernel.name, kernel.dtypes);
  if (kernel.is_for_float8()) c = tessella::tests::supported(tessella::tests::of_eight_bits(c));
  if (kernel.is_for_few()) c.batch_invariant = c.few = true;  // for any number of rows
  return kernel.is_backward ? tessella::tests::supported(tessella::tests::backward_of(c)) : c;
}

// With the gradients that decide what is compiled.
Case smallest_case(const Kernel& kernel, int idx) {
  if (kernel.decodes()) {  // among more choices than idx, that one
    return tessella::tests::random_decode_case(static_cast<uint64_t>(idx), kernel.name, kernel.dtypes, idx + 1);
  }
  Case c = smallest_case(kernel.configuration(idx), kernel.name);
  if (kernel.is_for_float8()) return tessella::tests::supported(tessella::tests::of_eight_bits(c));
  if (!kernel.is_backward) return c;
  c.gradients = "qkvs";
  c.sink = true;
  if (!c.bias.empty()) c.gradients += 'b';
  return c;
}

// What became of it, and its dtype.
std::pair<Outcome, std::string> run_random_case(const Kernel& kernel, uint64_t seed, const Arguments& arguments) {
  if (arguments.linear) return {run_linear(tessella::tests::random_linear(kernel.name, kernel.dtypes, seed)), ""};
  const Case c = random_case(kernel, seed, arguments);
  return {arguments.wrong_forward ? run_with_wrong_forward(c, seed) : run(c), c.dtype};
}

// How many cases of each dtype the check refused: more than half. The others differ by no more than rounding.
class Refusals {
 public:
  void add(const std::string& dtype, bool refused) {
    const std::lock_guard lock(mutex_);
    ++of_dtype_[dtype].cases;
    of_dtype_[dtype].refused += refused;
  }
  bool are_most() const {
    bool most = true;
    for (const auto& [dtype, count] : of_dtype_) {
      std::printf("%s: %lld of %lld refused, expected most\n", dtype.c_str(), count.refused, count.cases);
      most &= 2 * count.refused > count.cases;
    }
    return most;
  }

 private:
  struct Count {
    long long cases = 0, refused = 0;
  };
  std::mutex mutex_;
  std::map<std::string, Count> of_dtype_;
};

int run_random(const Arguments& arguments, const std::vector<Kernel>& list) {
  std::vector<std::atomic<int64_t>> passed(list.size());
  std::atomic<int64_t> failed{0}, unsupported{0};
  Refusals refusals;
  in_threads(arguments.jobs, arguments.cases, [&](int64_t at) {
    const size_t idx = static_cast<size_t>(at) % list.size();
    const uint64_t seed = arguments.seed * 1'000'000'007 + static_cast<uint64_t>(at);
    const auto [outcome, dtype] = run_random_case(list[idx], seed, arguments);
    switch (outcome.verdict) {
      case Verdict::passed:
        ++passed[idx];
        if (arguments.wrong_forward) refusals.add(dtype, outcome.message.empty());
        break;
      case Verdict::failed: ++failed; break;
      case Verdict::unsupported:
        ++unsupported;
        print_failure("unsupported, which none of these cases should be: " + outcome.message);
    }
  });
  int64_t all_passed = 0;
  bool is_right = failed == 0 && unsupported == 0;
  for (size_t idx = 0; idx < list.size(); ++idx) {
    all_passed += passed[idx];
    if (passed[idx] > 0) continue;
    std::printf("FAILED %s: none of its cases passed, expected all\n", list[idx].name.c_str());
    is_right = false;
  }
  if (arguments.wrong_forward) is_right &= refusals.are_most();
  std::printf("%lld passed, %lld failed, %lld unsupported by their kernel\n", static_cast<long long>(all_passed),
              static_cast<long long>(failed), static_cast<long long>(unsupported));
  return is_right ? 0 : 1;
}

// Whether the case has a plan, or its kernel a reason not to take it.
bool make_plan(const Case& c) {
  std::snprintf(t_line, sizeof t_line, "%s", to_string(c).c_str());
  try {
    tessella_plan* plan = nullptr;
    const tessella_status status = c.gradients.empty() ? Call(c).make_plan(&plan) : BackwardCall(c).make_plan(&plan);
    tessella_plan_free(plan);
    if (status == TESSELLA_OK || status == TESSELLA_UNSUPPORTED) return true;
    print_failure(tessella_last_error());
  } catch (const std::exception& error) {
    print_failure(error.what());
  }
  return false;
}

// Prints every configuration of the GPU's kernels, or makes a plan for each.
int run_configs(const Arguments& arguments, const std::vector<Kernel>& list) {
  std::vector<Case> cases;
  for (const Kernel& kernel : list) {
    if (!kernel.is_on_gpu) continue;
    for (int idx = 0; idx < arguments.max_configs; ++idx) {
      cases.push_back(smallest_case(kernel, idx));
    }
  }
  if (!arguments.compile_only) {
    for (const Case& c : cases) std::printf("%s\n", to_string(c).c_str());
    return 0;
  }
  std::atomic<int64_t> failed{0};
  in_threads(arguments.jobs, static_cast<int64_t>(cases.size()),
             [&](int64_t at) { failed += !make_plan(cases[static_cast<size_t>(at)]); });
  return failed == 0 ? 0 : 1;
}

int run_line(const Arguments& arguments) {
  const Outcome outcome = arguments.linear ? run_linear(tessella::tests::parse_linear(arguments.line))
                                           : run(tessella::tests::parse(arguments.line));
  std::printf("%s %s\n",
              outcome.verdict == Verdict::passed        ? "1 passed, 0 failed"
              : outcome.verdict == Verdict::unsupported ? "unsupported:"
                                                        : "0 passed, 1 failed",
              outcome.message.c_str());
  return outcome.verdict == Verdict::passed ? 0 : 1;
}

// False for an option that is unknown or has no value it can use.
bool read(int argc, char** argv, Arguments& to) {
  for (int arg = 1; arg < argc; ++arg) {
    const std::string option = argv[arg];
    if (option == "--list-configs") {
      to.list_configs = true;
      continue;
    }
    if (option == "--decode") {
      to.decode = true;
      continue;
    }
    if (option == "--mla") {
      to.mla = true;
      continue;
    }
    if (option == "--wrong-forward") {
      to.wrong_forward = true;
      continue;
    }
    if (option == "--linear") {
      to.linear = true;
      continue;
    }
    if (option == "--quantized") {
      to.quantized = true;
      continue;
    }
    if (option == "--compile-only") {
      to.compile_only = true;
      continue;
    }
    if (++arg == argc) return false;
    const char* value = argv[arg];
    if (option == "--cases") {
      to.cases = std::atoll(value);
    } else if (option == "--seed") {
      to.seed = std::strtoull(value, nullptr, 10);
    } else if (option == "--kernel") {
      to.kernel = value;
    } else if (option == "--case") {
      to.line = value;
    } else if (option == "--jobs") {
      to.jobs = std::atoll(value);
    } else if (option == "--max-configs") {
      to.max_configs = std::atoll(value);
    } else {
      return false;
    }
  }
  return to.jobs > 0 && to.max_configs > 0;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (!read(argc, argv, arguments)) {
    std::fprintf(stderr,
                 "usage: random_test [--cases N] [--seed S] [--kernel NAME] [--jobs N] [--max-configs N]\n"
                 "                   [--decode | --quantized | --mla | --wrong-forward | --linear] [--list-configs | "
                 "--compile-only | --case \"LINE\"]\n");
    return 2;
  }
  for (const int signal_number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) signal(signal_number, on_fault);
  try {
    if (!arguments.line.empty()) return run_line(arguments);
    const std::vector<Kernel> list = kernels(arguments);
    if (list.empty()) {
      std::fprintf(stderr, "random_test: no kernel to run\n");
      return 2;
    }
    const bool only_configs = arguments.list_configs || arguments.compile_only;
    return only_configs ? run_configs(arguments, list) : run_random(arguments, list);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "random_test: %s\n", error.what());
    return 2;
  }
}
