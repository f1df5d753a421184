#include <fmt/core.h>

#include <algorithm>
#include <memory>

#include "commands/bench_configuration.hpp"
#include "commands/commands.hpp"
#include "commands/decode_configuration.hpp"
#include "commands/kernel_list.hpp"
#include "files/input_error.hpp"
#include "options/dtype_string.hpp"
#include "options/number_string.hpp"
#include "options/preset.hpp"
#include "report/machine.hpp"
#include "report/progress.hpp"
#include "report/table.hpp"

namespace tessella::cli {
namespace {

constexpr const char* kExamples =
    R"(Few queries over a long cache of keys and values. Calls take turns over caches of 400 MB and more, so that none is in a
cache of the processor's; on a GPU they are one CUDA graph, timed by its own clock. Before that, rows of a few sequences
are checked against the float64 reference. The rate counts once the bytes of the valid rows of K and V, and of their
scales. Read: the same bytes by a kernel of plain loads in the same run, on a CPU by a loop in as many threads. The
default is Flash-Decoding's micro-benchmark: 16/2 heads x 128, batch x seqlen = 65536. What memory does not hold is left
out.

Examples:
  tessella bench decode --device cuda
  tessella bench decode --device cuda --preset gqa --json > gqa.json
  tessella bench decode --device cuda --heads 64/8 --batch 1,64 --seqlen 1k:128k --queries 1,2,4,8
  tessella bench decode --device cuda --heads 64/8 --batch 64 --seqlen 32k --ragged --pages 0,1,16,64
  tessella bench decode --device cuda --heads 64/8 --batch 32 --seqlen 4k --kv-dtype bf16,f8e4m3fn,i8,i4 --kv-scale tensor,token
  tessella bench decode --heads 32/8 --batch 1 --seqlen 4k,32k --dtype bf16,f32 --num-threads 1
  tessella bench decode --heads 8/2 --batch 1 --seqlen 16k --kernel cpu.forward_avx2,reference.flash_2)";

struct Settings {
  AttentionOptionValues options;
  std::string dtype = "bf16";
  std::string kv_dtype;  // "" = dtype
  std::string kv_scale = "token";
  std::string head_dim = "128";
  std::string heads = "16/2";
  std::string batch;  // "" = 64k / seqlen
  std::string seqlen = "256:131072";
  std::string queries = "1";
  std::string pages = "0";
  std::string kernels;
  std::string budget = "0.5";
  std::string check_rows = "16";
  std::string preset;
  bool ragged = false;
  bool json = false;
  bool csv = false;
};

const Preset<Settings> kPresets[] = {
    {"flash-decoding",
     "16/2 heads, batch x seqlen = 65536, and 1 x 131072",
     {{&Settings::heads, "--heads", "16/2"}, {&Settings::seqlen, "--seqlen", "256:131072"}}},
    {"gqa",
     "64/8 heads, batch 1 to 128, 2k to 128k keys",
     {{&Settings::heads, "--heads", "64/8"},
      {&Settings::batch, "--batch", "1:128"},
      {&Settings::seqlen, "--seqlen", "2k:128k"}}},
    {"mha",
     "32/32 heads, batch 1 to 32, 1k to 32k keys",
     {{&Settings::heads, "--heads", "32/32"},
      {&Settings::batch, "--batch", "1:32"},
      {&Settings::seqlen, "--seqlen", "1k:32k"}}},
};

// As parse_sizes, where 0 stands for a cache without pages.
std::vector<int64_t> parse_pages(const std::string& string) {
  std::vector<int64_t> sizes;
  for (const std::string& part : split(string, ',')) {
    if (part == "0") {
      sizes.push_back(0);
    } else if (part.starts_with('-')) {
      throw InputError(fmt::format("--pages is '{}', expected 0 (no pages) or sizes of 1 and more", part));
    } else {
      for (const int64_t size : parse_sizes("--pages", part)) sizes.push_back(size);
    }
  }
  return sizes;
}

tessella_dtype q_dtype_named(const std::string& name) {
  const std::string_view spelled = short_name(name);
  if (spelled == "i4" || spelled == "i8" || spelled.starts_with("f8")) {
    throw InputError(
        fmt::format("--dtype is '{}', expected some of f64, f32, bf16, f16; caches have --kv-dtype", name));
  }
  return parse_float_dtype("--dtype", name);
}

// A cache of a type and its scales; of a type that is not quantised, one without.
struct Cache {
  tessella_dtype dtype;
  ScaleOf scale;
};

std::vector<Cache> list_caches(const Settings& settings, const std::string& dtype) {
  std::vector<ScaleOf> scales;
  for (const std::string& scale : split(settings.kv_scale, ',')) scales.push_back(scale_of_named("--kv-scale", scale));
  std::vector<Cache> caches;
  for (const std::string& name : split(settings.kv_dtype.empty() ? dtype : settings.kv_dtype, ',')) {
    const CacheType& type = cache_type_named(name);
    if (!type.is_quantized) {
      caches.push_back({type.dtype, ScaleOf::none});
    } else {
      for (const ScaleOf scale : scales) caches.push_back({type.dtype, scale});
    }
  }
  return caches;
}

// Of one dtype, cache, heads and head_dim, all sizes.
void add_sizes(const Settings& settings, DecodeCase c, std::vector<DecodeCase>& cases) {
  constexpr int64_t kKeys = 65536;
  const std::vector<int64_t> pages = parse_pages(settings.pages);
  const std::vector<int64_t> queries = parse_sizes("--queries", settings.queries);
  for (const int64_t seqlen : parse_sizes("--seqlen", settings.seqlen)) {
    c.seqlen = seqlen;
    const std::vector<int64_t> batches = settings.batch.empty() ? std::vector{std::max<int64_t>(1, kKeys / seqlen)}
                                                                : parse_sizes("--batch", settings.batch);
    for (const int64_t batch : batches) {
      c.batch = batch;
      for (const int64_t page_size : pages) {
        c.page_size = page_size;
        for (const int64_t num_queries : queries) {
          c.queries = num_queries;
          cases.push_back(c);
        }
      }
    }
  }
}

std::vector<DecodeCase> list_cases(const Settings& settings) {
  std::vector<DecodeCase> cases;
  DecodeCase c;
  c.ragged = settings.ragged;
  for (const std::string& dtype : split(settings.dtype, ',')) {
    c.dtype = q_dtype_named(dtype);
    for (const Cache& cache : list_caches(settings, dtype)) {
      c.kv_dtype = cache.dtype;
      c.kv_scale = cache.scale;
      for (const std::string& heads : split(settings.heads, ',')) {
        parse_heads("--heads", heads, c.heads_q, c.heads_kv);
        for (const int64_t head_dim : parse_sizes("--head-dim", settings.head_dim)) {
          c.head_dim = head_dim;
          add_sizes(settings, c, cases);
        }
      }
    }
  }
  return cases;
}

Json describe(const DecodeCase& c, const DecodeConfiguration& configuration, const DecodeResult& result) {
  const bool timed = result.timing.runs > 0;
  const auto bytes = static_cast<double>(configuration.cache_bytes());
  return {{"kernel", result.kernel},
          {"dtype", dtype_name(c.dtype)},
          {"kv_dtype", cache_type_of(c.kv_dtype).name},
          {"kv_scale", kScaleNames[static_cast<size_t>(c.kv_scale)]},
          {"heads", fmt::format("{}/{}", c.heads_q, c.heads_kv)},
          {"head_dim", c.head_dim},
          {"batch", c.batch},
          {"seqlen", c.seqlen},
          {"lengths", c.ragged ? "ragged" : "uniform"},
          {"page_size", c.page_size},
          {"queries", c.queries},
          {"threads", configuration.num_threads() > 0 ? Json(configuration.num_threads()) : Json()},
          {"cache_bytes", bytes},
          {"runs", result.timing.runs},
          {"seconds", timed ? Json(result.timing.median) : Json()},
          {"min_seconds", timed ? Json(result.timing.min) : Json()},
          {"max_seconds", timed ? Json(result.timing.max) : Json()},
          {"spread", timed ? Json(result.timing.spread) : Json()},
          {"bytes_per_second", timed ? Json(bytes / result.timing.median) : Json()},
          {"read_seconds", configuration.read_seconds()},
          {"read_ratio", timed ? Json(configuration.read_seconds() / result.timing.median) : Json()},
          {"max_error", result.check.max_error},
          {"tolerance", result.check.tolerance},
          {"check", result.check.passed ? "ok" : "FAILED"}};
}

std::string giga_string(const Json& value) { return fmt::format("{:.3g}", value.number() / 1e9); }
std::string tera_string(const Json& value) { return fmt::format("{:.3g}", value.number() / 1e12); }

Table make_table(bool on_gpu) {
  const auto microseconds = [](const Json& value) { return fmt::format("{:.1f}", value.number() * 1e6); };
  const auto percent = [](const Json& value) { return fmt::format("{:.1f} %", value.number() * 100); };
  return {
      {{"kernel", "kernel", {}, true},
       {"dtype", "dtype", {}, true},
       {"kv_dtype", "K+V of", {}, true},
       {"kv_scale", "scale", [](const Json& value) { return value.string() == "none" ? "-" : value.string(); }, true},
       {"heads", "heads", {}},
       {"head_dim", "head_dim", {}},
       {"batch", "batch", {}},
       {"seqlen", "seqlen", {}},
       {"lengths", "lengths", {}, true},
       {"page_size", "page", [](const Json& value) { return value.integer() == 0 ? "-" : value.dump(); }},
       {"queries", "queries", {}},
       {"threads", on_gpu ? "" : "threads", {}},
       {"cache_bytes", "K+V", [](const Json& value) { return bytes_string(value.number()); }},
       {"runs", "", {}},
       {"seconds", "us", microseconds},
       {"min_seconds", "", {}},
       {"max_seconds", "", {}},
       {"spread", "spread", percent},
       {"bytes_per_second", on_gpu ? "TB/s" : "GB/s", on_gpu ? tera_string : giga_string},
       {"read_seconds", "read us", microseconds},
       {"read_ratio", "of read", percent},
       {"max_error", "", {}},
       {"tolerance", "", {}},
       {"check", "check", {}, true}},
      {}};
}

// Every kernel over one case. False where one failed.
bool bench_case(const Settings& settings, const DecodeCase& decode_case, double budget, int64_t check_rows,
                Table& table) {
  NotMeasured missing;
  const std::unique_ptr<DecodeConfiguration> configuration =
      DecodeConfiguration::make(decode_case, settings.options, budget, missing);
  if (configuration == nullptr) {
    note(fmt::format("not run at {}: {}", decode_case.name(), missing.why));
    return !missing.failed;
  }
  bool ran = true;
  for (const std::string& kernel : split(settings.kernels, ',')) {
    const std::optional<DecodeResult> result = configuration->run(kernel, check_rows, missing);
    if (result) {
      table.rows.push_back(describe(decode_case, *configuration, *result));
    } else {
      note(fmt::format("not run at {}: {}", decode_case.name(), missing.why));
      ran = false;
    }
  }
  return ran;
}

int bench_decode(const Settings& settings) {
  const std::vector<DecodeCase> cases = list_cases(settings);
  const double budget = parse_budget(settings.budget);
  const int64_t check_rows = parse_integer_between("--check-rows", settings.check_rows, 1, INT64_MAX);
  if (settings.json && settings.csv) throw InputError("--json and --csv are both given, expected one");
  if (settings.options.has_tensors()) {
    throw InputError("values per head, sequence or row are for `tessella attend`: the cases differ in all three");
  }
  for (const std::string& kernel : split(settings.kernels, ',')) {
    if (!kernel.empty()) kernel_named("--kernel", kernel, "forward");
  }
  const Placement placement = settings.options.placement();
  if (placement.gpu) Gpu::open(*placement.gpu);
  Table table = make_table(placement.gpu.has_value());
  bool ran = true;
  {
    Progress progress;
    for (size_t i = 0; i < cases.size(); ++i) {
      progress.show(fmt::format("{}/{}: {}", i + 1, cases.size(), cases[i].name()));
      ran &= bench_case(settings, cases[i], budget, check_rows, table);
    }
  }
  if (table.rows.empty()) throw InputError("nothing could be measured");
  Json about = about_run("bench decode");
  about["budget_seconds"] = budget;
  print_table(table, settings.json ? TableFormat::json : settings.csv ? TableFormat::csv : TableFormat::text, about);
  const bool passed = std::ranges::all_of(table.rows, [](const Json& row) { return row["check"].string() == "ok"; });
  return !ran ? kBadInput : passed ? kDone : kCheckFailed;
}

}  // namespace

void add_bench_decode(Command& bench) {
  Command& command = bench.add_command("decode", "Time, and check, few queries over a long cache");
  auto settings = std::make_shared<Settings>();
  command.set_footer(kExamples);
  command.add_option("--preset", settings->preset, "NAME", preset_help<Settings>(kPresets));
  command.add_option("--dtype", settings->dtype, "DTYPE,...", "list of bf16, f16, f32, f64");
  command.add_option("--kv-dtype", settings->kv_dtype, "DTYPE,...",
                     "list: the cache's, also f8e4m3fn, i8, i4 [that of --dtype]");
  command.add_option("--kv-scale", settings->kv_scale, "LIST",
                     "list of tensor, head, token: what of a quantised cache has its scale");
  command.add_option("--heads", settings->heads, "N/M,...", "list of query heads over KV heads");
  command.add_option("--head-dim", settings->head_dim, "D,...", "list");
  command.add_option("--batch", settings->batch, "N,...", "sequences: 1,64 or 1:128 [64k / seqlen]");
  command.add_option("--seqlen", settings->seqlen, "N,...", "keys of each: 1k,4k or 1k:128k");
  command.add_option("--queries", settings->queries, "N,...", "list: the last tokens of each sequence, causal");
  command.add_option("--pages", settings->pages, "N,...", "list of rows of a page, in random order; 0 = no pages");
  command.add_flag("--ragged", settings->ragged, "keys of each sequence: uniform from 1 to --seqlen");
  command.add_option("--budget", settings->budget, "SECONDS", "seconds a measurement may take");
  command.add_option("--check-rows", settings->check_rows, "N", "rows compared with the float64 reference");
  command.add_flag("--json", settings->json, "results as JSON");
  command.add_flag("--csv", settings->csv, "results as CSV");
  settings->options.add_without_mask_to(command);
  command.set_help("--kernel", "list of names of `tessella kernels` [automatic]");
  command.set_run([settings, &command] {
    apply_preset<Settings>(command, kPresets, *settings);
    settings->kernels = settings->options.take_kernel();
    return bench_decode(*settings);
  });
}

}  // namespace tessella::cli
