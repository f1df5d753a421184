#include "cuda/compile/nvrtc.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "core/environment.hpp"
#include "core/error.hpp"
#include "core/message.hpp"
#include "cuda/driver/driver.hpp"
#include "process/once.hpp"

namespace tessella::cuda {
namespace {

using core::message;

constexpr int kOldestMajor = 12;  // -std=c++20

[[noreturn]] void fail_compile(const std::string& why) { throw core::Error(core::ErrorCode::compile, why); }

// Differs from run to run, and the rest of the log does not.
std::string without_times(const std::string& log) {
  std::string result;
  for (size_t begin = 0; begin < log.size();) {
    const size_t end = std::min(log.find('\n', begin), log.size() - 1) + 1;
    const std::string line = log.substr(begin, end - begin);
    if (line.find("Compile time") == line.npos) result += line;
    begin = end;
  }
  return result;
}

std::vector<const char*> pointers(const std::vector<std::string>& sources) {
  std::vector<const char*> all(sources.size());
  std::ranges::transform(sources, all.begin(), &std::string::c_str);
  return all;
}

struct Search {
  std::optional<Nvrtc> found;
  std::string problem;
};

Search search() {
  Search result;
  const int driver_major = driver_version() / 1000;
  std::string tried;
  for (const std::string& path : library_paths(kNvrtcLibrary)) {
    try {
      Nvrtc opened = Nvrtc::open(path);
      if (driver_major == 0 || opened.version().major <= driver_major) {
        result.found = std::move(opened);
        return result;
      }
      tried += message("; ", opened.path(), " is version ", opened.version().string(), ", and the driver loads up to ",
                       driver_major);
    } catch (const core::Error& error) {
      tried += message("; ", error.what());
    }
  }
  const std::string expected = message(
      "version ", kOldestMajor,
      driver_major > kOldestMajor ? message(" to ", driver_major) : std::string(driver_major == 0 ? " or newer" : ""));
  if (const std::string chosen = core::environment_path(kNvrtcLibrary.variable); !chosen.empty()) {
    result.problem = message("TESSELLA_NVRTC is '", chosen, "', expected the path of NVRTC ", expected,
                             ", which compiles kernels, or no variable and "
                             "`pip install nvidia-cuda-nvrtc`",
                             tried);
    return result;
  }
  result.problem = message("NVRTC, which compiles kernels, was not found, expected ", expected,
                           ": `pip install nvidia-cuda-nvrtc`, or set TESSELLA_NVRTC to its path", tried);
  return result;
}

const Search& searched() {
  return process::once([] { return search(); });
}

}  // namespace

Nvrtc Nvrtc::open(const std::string& path) {
  // Never closed: it keeps state of its own until the process ends.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const bool is_there = path.find('/') != path.npos && ::access(path.c_str(), F_OK) == 0;
    fail_compile(is_there ? message(path, " does not load: ", ::dlerror()) : message("no ", path));
  }
  Nvrtc nvrtc;
  nvrtc.path_ = path;
  Functions& rtc = nvrtc.functions_;
  const char* missing = nullptr;
  const auto take = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr) missing = name;
  };
#define TESSELLA_TAKE(name) take(rtc.name, #name)
  TESSELLA_TAKE(nvrtcVersion);
  TESSELLA_TAKE(nvrtcGetErrorString);
  TESSELLA_TAKE(nvrtcGetNumSupportedArchs);
  TESSELLA_TAKE(nvrtcGetSupportedArchs);
  TESSELLA_TAKE(nvrtcCreateProgram);
  TESSELLA_TAKE(nvrtcDestroyProgram);
  TESSELLA_TAKE(nvrtcAddNameExpression);
  TESSELLA_TAKE(nvrtcGetLoweredName);
  TESSELLA_TAKE(nvrtcCompileProgram);
  TESSELLA_TAKE(nvrtcGetProgramLogSize);
  TESSELLA_TAKE(nvrtcGetProgramLog);
  TESSELLA_TAKE(nvrtcGetCUBINSize);
  TESSELLA_TAKE(nvrtcGetCUBIN);
  TESSELLA_TAKE(nvrtcGetPTXSize);
  TESSELLA_TAKE(nvrtcGetPTX);
#undef TESSELLA_TAKE
  if (missing != nullptr) fail_compile(message(path, " lacks ", missing));
  if (rtc.nvrtcVersion(&nvrtc.version_.major, &nvrtc.version_.minor) != 0)
    fail_compile(path + " does not say its version");
  if (nvrtc.version_.major < kOldestMajor) {
    fail_compile(message(path, " is version ", nvrtc.version_.string(), ", expected ", kOldestMajor, " or newer"));
  }
  int count = 0;
  if (rtc.nvrtcGetNumSupportedArchs(&count) == 0 && count > 0) {
    nvrtc.archs_.resize(static_cast<size_t>(count));
    if (rtc.nvrtcGetSupportedArchs(nvrtc.archs_.data()) != 0) nvrtc.archs_.clear();
  }
  // A library opened by name may be in any folder; report its path.
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(rtc.nvrtcVersion), &info) != 0 && info.dli_fname != nullptr) {
    nvrtc.path_ = info.dli_fname;
  }
  return nvrtc;
}

Cubin Nvrtc::compile(const Program& program, const Target& target) const {
  const Functions& rtc = functions_;
  const auto require = [&](int result, const char* what) {
    if (result != 0) fail_compile(message(program.expression, ": ", what, ": ", rtc.nvrtcGetErrorString(result)));
  };
  const std::vector<DeviceSource> headers = headers_of(program);
  std::vector<std::string> names;
  std::vector<std::string> sources;
  for (const DeviceSource& header : headers) {
    names.emplace_back(header.name);
    sources.emplace_back(header.content);
  }

  Handle handle = nullptr;
  require(rtc.nvrtcCreateProgram(&handle, main_source(program).c_str(), "kernel.cu", static_cast<int>(headers.size()),
                                 pointers(sources).data(), pointers(names).data()),
          "nvrtcCreateProgram");
  const auto destroy = [&rtc](Handle created) { rtc.nvrtcDestroyProgram(&created); };
  const std::unique_ptr<NvrtcProgram, decltype(destroy)> owner(handle, destroy);

  // Everything that ends in '\0' counts it in its size.
  const auto string_of = [&](auto size_of, auto get, const char* what) {
    size_t bytes = 0;
    require(size_of(handle, &bytes), what);
    std::string string(bytes, '\0');
    require(get(handle, string.data()), what);
    return string;
  };
  require(rtc.nvrtcAddNameExpression(handle, program.expression.c_str()), "nvrtcAddNameExpression");
  const std::vector<std::string> options = compile_options(target);
  const int result = rtc.nvrtcCompileProgram(handle, static_cast<int>(options.size()), pointers(options).data());
  std::string log = string_of(rtc.nvrtcGetProgramLogSize, rtc.nvrtcGetProgramLog, "nvrtcGetProgramLog");
  log.resize(log.find_last_not_of(std::string_view("\n\0", 2)) + 1);
  if (result != 0) {
    fail_compile(message(program.expression, " does not compile for ", target.name(), ": ",
                         rtc.nvrtcGetErrorString(result), " (NVRTC ", version_.string(), ", ", path_, ")\n", log));
  }

  const char* symbol = nullptr;
  require(rtc.nvrtcGetLoweredName(handle, program.expression.c_str(), &symbol), "nvrtcGetLoweredName");
  Cubin cubin{.compiler = version_, .target = target.name(), .symbol = symbol, .log = without_times(log)};
  cubin.image = target.ptx ? string_of(rtc.nvrtcGetPTXSize, rtc.nvrtcGetPTX, "nvrtcGetPTX")
                           : string_of(rtc.nvrtcGetCUBINSize, rtc.nvrtcGetCUBIN, "nvrtcGetCUBIN");
  cubin.resources = parse_resources(cubin.log, cubin.symbol);
  return cubin;
}

const Nvrtc* nvrtc() { return searched().found ? &*searched().found : nullptr; }
std::string nvrtc_problem() { return searched().problem; }

}  // namespace tessella::cuda
