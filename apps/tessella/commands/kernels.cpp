#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "commands/commands.hpp"
#include "commands/kernel_list.hpp"
#include "commands/random_case.hpp"
#include "files/input_error.hpp"
#include "options/dtype_string.hpp"
#include "options/number_string.hpp"
#include "report/machine.hpp"
#include "report/output.hpp"
#include "report/table.hpp"

namespace tessella::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  tessella kernels
  tessella kernels --markdown
  tessella kernels --why --dtype bf16 --head-dim 128 --seqlen 4096 --heads 32/8 --mask causal)";

struct Settings {
  AttentionOptionValues options;
  std::string dtype = "bf16";
  std::string head_dim = "128";
  std::string seqlen = "4096";
  std::string heads = "16";
  std::string batch = "1";
  std::string mask = "none";
  bool why = false;
  bool backward = false;
  bool markdown = false;
  bool json = false;
  bool csv = false;

  TableFormat format() const {
    if (markdown + json + csv > 1) throw InputError("of --markdown, --json and --csv more than one is given");
    return json ? TableFormat::json : csv ? TableFormat::csv : markdown ? TableFormat::markdown : TableFormat::text;
  }
};

constexpr int64_t kAnyHeadDim = 1 << 16;

std::string head_dim_string(const Json& head_dim) { return head_dim.integer() > kAnyHeadDim ? "any" : head_dim.dump(); }

// Features of a kernel, said as "all" of its operation or by what is there or missing, whatever is shorter; one by its
// name.
std::string features_string(const std::string& features, const std::vector<std::string>& all) {
  const std::vector<std::string> mine = split(features, ' ');
  std::string there, missing;
  for (const std::string& feature : all) {
    std::string& list = std::ranges::find(mine, feature) == mine.end() ? missing : there;
    list += (list.empty() ? "" : ", ") + feature;
  }
  if (missing.empty() && mine.size() > 1) return "all";
  return there.size() < missing.size() || missing.empty() ? there : "all but " + missing;
}

std::vector<std::string> all_features(const std::vector<KernelEntry>& kernels) {
  std::vector<std::string> all;
  for (const KernelEntry& kernel : kernels) {
    for (const std::string& feature : split(kernel.info.features, ' ')) {
      if (!feature.empty() && std::ranges::find(all, feature) == all.end()) all.push_back(feature);
    }
  }
  return all;
}

// A call of backward has what one of forward has, and gradients.
std::vector<std::string> all_features_of(std::string_view operation) {
  return all_features(operation == "backward" ? list_kernels() : kernels_of(operation));
}

std::string chosen_string(const tessella_kernel_info& info) {
  const std::string automatic = info.automatic;
  if (automatic.empty()) return "by name";
  return automatic == info.dtypes ? "automatically" : "for " + automatic;
}

// Which kernels there are: the same on every machine but for "here".
int print_matrix(const Settings& settings) {
  const TableFormat format = settings.format();
  const bool is_data = format == TableFormat::json || format == TableFormat::csv;
  const std::vector<KernelEntry> kernels = list_kernels();
  Table table;
  table.columns = {
      {"kernel", "kernel", {}, true},
      {"operation", "operation", {}, true},
      {"architectures", "for", {}, true},
      {"summary", settings.markdown ? "what it is" : "", {}, true},
      {"dtypes", "dtypes", {}, true},
      {"max_head_dim", "head_dim up to", head_dim_string},
      {"chosen", "chosen", {}, true},
      {"features", "features", {}, true},
      {"unavailable", settings.markdown ? "" : "here",
       [](const Json& reason) { return reason.string().empty() ? "yes" : "no: " + reason.string(); }, true}};
  for (const KernelEntry& kernel : kernels) {
    const tessella_kernel_info& info = kernel.info;
    table.rows.push_back(
        {{"kernel", info.name},
         {"operation", info.operation},
         {"architectures", info.architectures},
         {"summary", info.summary},
         {"dtypes", info.dtypes},
         {"max_head_dim", info.max_head_dim},
         {"chosen", chosen_string(info)},
         {"features", is_data ? info.features : features_string(info.features, all_features_of(info.operation))},
         {"unavailable", info.unavailable}});
  }
  print_table(table, format, settings.json ? about_run("kernels") : Json());
  if (is_data) return kDone;
  std::string features;
  for (const std::string& feature : all_features(kernels)) features += (features.empty() ? "" : ", ") + feature;
  put("\nFeatures: {}.\n", features);
  return kDone;
}

int print_why(const Settings& settings) {
  const TableFormat format = settings.format();
  RandomCase random_case;
  random_case.dtype = parse_dtype("--dtype", settings.dtype);
  parse_heads("--heads", settings.heads, random_case.heads_q, random_case.heads_kv);
  random_case.batch = parse_integer_between("--batch", settings.batch, 1, 1 << 30);
  random_case.seqlen_q = random_case.seqlen_kv = parse_integer_between("--seqlen", settings.seqlen, 0, 1 << 30);
  random_case.head_dim = parse_integer_between("--head-dim", settings.head_dim, 1, 1 << 20);
  random_case.mask = settings.mask;
  random_case.is_backward = settings.backward;
  const Call call = make_random_call(random_case, settings.options, false);
  std::string chosen;
  try {
    chosen = tessella_plan_kernel(make_plan(call).get());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;  // the table says which kernels are not eligible, and why
  }
  Table table;
  table.columns = {{"kernel", "kernel", {}, true}, {"answer", "answer", {}, true}};
  for (const KernelEntry& kernel : kernels_of(random_case.operation())) {
    std::string answer = ineligible(kernel, call);
    if (answer.empty()) answer = kernel.info.name == chosen ? "runs this" : "would run if named";
    table.rows.push_back({{"kernel", kernel.info.name}, {"answer", answer}});
  }
  print_table(table, format, settings.json ? about_run("kernels --why") : Json());
  return kDone;
}

// The list of kernels is the same for every problem.
void expect_no_problem(const Command& command) {
  for (const std::string& name : command.given()) {
    if (name == "--markdown" || name == "--json" || name == "--csv") continue;
    throw InputError(fmt::format("{} is given without --why, expected beside it", name));
  }
}

}  // namespace

void add_kernels(Command& program) {
  Command& command = program.add_command("kernels", "The kernels, and why each would or would not run a problem");
  auto settings = std::make_shared<Settings>();
  command.set_footer(kExamples);
  command.add_flag("--why", settings->why, "which would run the problem below, and why each other would not");
  command.add_option("--dtype", settings->dtype, "DTYPE", "f64, f32, bf16, f16, f8e4m3fn or f8e5m2", "Problem");
  command.add_option("--head-dim", settings->head_dim, "D", "of q, k and v", "Problem");
  command.add_option("--seqlen", settings->seqlen, "N", "queries, and keys", "Problem");
  command.add_option("--heads", settings->heads, "N/M", "query heads over KV heads, or one number of both", "Problem");
  command.add_option("--batch", settings->batch, "N", "sequences", "Problem");
  command.add_option("--mask", settings->mask, "MASK", "as of `attend`", "Problem");
  command.add_flag("--backward", settings->backward, "its gradients", "Problem");
  command.add_flag("--markdown", settings->markdown, "as a Markdown table");
  command.add_flag("--json", settings->json, "as JSON");
  command.add_flag("--csv", settings->csv, "as CSV");
  settings->options.add_without_mask_to(command);
  add_kernels_build(command);
  command.set_condition([settings, &command] {
    if (!settings->why) expect_no_problem(command);
  });
  command.set_run([settings] { return settings->why ? print_why(*settings) : print_matrix(*settings); });
}

}  // namespace tessella::cli
