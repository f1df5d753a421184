// Compiling through the store: once, whatever happens to the folder, in threads, processes and forks. Needs NVRTC, no
// GPU.
#include "cuda/compile/cubin_store.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "core/error.hpp"

#ifdef __SANITIZE_THREAD__
// In a forked child the parent's other threads look as if nobody had joined them.
extern "C" const char* __tsan_default_options() { return "report_thread_leaks=0"; }
#endif

namespace {

namespace fs = std::filesystem;
using namespace tessella::cuda;
using tessella::core::Error;
using tessella::core::ErrorCode;
using Origin = Cubin::Origin;

constexpr const char* kTrial = R"(#pragma once
#include "portable/band.hpp"
namespace trial {
struct Config { int tile; bool is_causal; };
struct Params { int32_t* to; tessella::portable::Band band; };
template <Config C>
__global__ void fill(const Params params) {
  if (threadIdx.x < C.tile) params.to[threadIdx.x] = static_cast<int32_t>(params.band.end(threadIdx.x)) + C.is_causal;
}
}
)";

Program trial(int tile) {
  return {.header = "user.hpp",
          .expression = "trial::fill<trial::Config{.tile = " + std::to_string(tile) + ", .is_causal = true}>",
          .user_source = kTrial};
}

constexpr Target kTarget{.arch = 90, .arch_specific = true};

class CubinStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    if (nvrtc() == nullptr) GTEST_SKIP() << nvrtc_problem();
    root_ = testing::TempDir() + "tessella-store-" + std::to_string(::getpid());
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string folder() const { return root_ + "/cache"; }
  // A store as another process has it: nothing in memory.
  CubinStore store() const { return CubinStore(folder(), nvrtc()); }
  Origin origin() const { return store().get(trial(1), kTarget)->origin; }

  std::vector<fs::path> files(std::string_view suffix) const {
    std::vector<fs::path> found;
    if (!fs::exists(folder())) return found;
    for (const auto& entry : fs::directory_iterator(folder())) {
      if (entry.path().extension() == suffix) found.push_back(entry.path());
    }
    return found;
  }
  std::string only_file() const {
    EXPECT_EQ(files(".cubin").size(), 1u);
    return files(".cubin").at(0).string();
  }
  static std::string content(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  }
  static void replace(const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }

  std::string root_;
};

// What a child returns becomes its exit status; -1 when it was killed.
template <typename Fn>
pid_t start(Fn&& fn) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(fn());
  return child;
}
int result_of(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(CubinStoreTest, CompilesATemplateByItsNameExpression) {
  const auto cubin = store().get(trial(1), kTarget);
  EXPECT_EQ(cubin->origin, Origin::compiled);
  EXPECT_EQ(cubin->target, "sm_90a");
  EXPECT_EQ(cubin->image.substr(0, 4),
            "\x7f"
            "ELF");
  EXPECT_NE(cubin->symbol.find("fill"), std::string::npos);
  EXPECT_NE(cubin->image.find(cubin->symbol), std::string::npos);
  EXPECT_GT(cubin->resources.registers, 0);
  EXPECT_EQ(cubin->resources.spill_store_bytes, 0);
  EXPECT_EQ(cubin->resources.stack_bytes, 0);
  EXPECT_GT(cubin->milliseconds, 0);
}

TEST_F(CubinStoreTest, CompilesPtx) {
  const auto cubin = store().get(trial(1), {.arch = 80, .ptx = true});
  EXPECT_NE(cubin->image.find(".target sm_80"), std::string::npos);
  EXPECT_EQ(cubin->image.back(), '\0');  // the driver reads PTX as a string
  EXPECT_EQ(cubin->resources, Resources{});
}

TEST_F(CubinStoreTest, ErrorCarriesTheCompilersLog) {
  Program program = trial(1);
  program.user_source += "int broken() { return undeclared; }\n";
  CubinStore mine = store();
  for (int i = 0; i < 2; ++i) {  // a failure is not remembered
    try {
      mine.get(program, kTarget);
      FAIL() << "compiled";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::compile);
      EXPECT_NE(std::string(error.what()).find("does not compile for sm_90a"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("user.hpp(11)"), std::string::npos) << error.what();
    }
  }
  EXPECT_TRUE(files(".cubin").empty());
}

TEST_F(CubinStoreTest, FindsItTheSecondTime) {
  CubinStore mine = store();
  const auto first = mine.get(trial(1), kTarget);
  EXPECT_EQ(mine.get(trial(1), kTarget), first);
  const auto second = store().get(trial(1), kTarget);
  EXPECT_EQ(second->origin, Origin::disk);
  EXPECT_EQ(second->image, first->image);
  EXPECT_EQ(second->symbol, first->symbol);
  EXPECT_EQ(second->resources, first->resources);
  EXPECT_EQ(store().get(trial(2), kTarget)->origin, Origin::compiled);
}

TEST_F(CubinStoreTest, FolderIsTheUsersOwn) {
  store().get(trial(1), kTarget);
  EXPECT_EQ(fs::status(folder()).permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(only_file()).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_TRUE(files(".tmp").empty());
}

TEST_F(CubinStoreTest, DamagedFilesAreCompiledAgain) {
  store().get(trial(1), kTarget);
  const std::string path = only_file();
  const std::string whole = content(path);
  std::string flipped = whole;
  flipped[whole.size() - 100] = static_cast<char>(flipped[whole.size() - 100] ^ 1);
  for (const std::string& damaged :
       {std::string(), whole.substr(0, 10), whole.substr(0, whole.size() / 2), whole.substr(0, whole.size() - 1),
        whole + "x", flipped, std::string("#!/bin/sh\nexit 1\n"), std::string(100000, '\0')}) {
    replace(path, damaged);
    EXPECT_EQ(origin(), Origin::compiled) << damaged.size() << " bytes";
    EXPECT_EQ(content(path), whole) << "mended";
    EXPECT_EQ(origin(), Origin::disk);
  }
}

TEST_F(CubinStoreTest, AnotherProgramsFileIsNotTaken) {
  store().get(trial(1), kTarget);
  const std::string path = only_file();
  store().get(trial(2), kTarget);
  for (const fs::path& file : files(".cubin")) {
    if (file != path) fs::copy_file(file, path, fs::copy_options::overwrite_existing);
  }
  EXPECT_EQ(origin(), Origin::compiled);
}

TEST_F(CubinStoreTest, AFolderThatCannotBeWrittenMeansMemoryOnly) {
  replace(root_ + "/file", "");
  for (const std::string& path : {root_ + "/file/cache", root_ + "/file", std::string("/proc/cache"), std::string()}) {
    CubinStore mine(path, nvrtc());
    EXPECT_NE(mine.disk().folder().problem(), "") << path;
    const auto first = mine.get(trial(1), kTarget);
    EXPECT_EQ(first->origin, Origin::compiled);
    EXPECT_EQ(mine.get(trial(1), kTarget), first) << "compiled once";
  }
}

TEST_F(CubinStoreTest, AFolderThatOthersWriteIsNotTrusted) {
  store().get(trial(1), kTarget);
  fs::permissions(folder(), fs::perms::others_write, fs::perm_options::add);
  EXPECT_NE(store().disk().folder().problem().find("every user"), std::string::npos);
  EXPECT_EQ(origin(), Origin::compiled);
  fs::permissions(folder(), fs::perms::others_write, fs::perm_options::remove);
  EXPECT_EQ(origin(), Origin::disk);
  if (::geteuid() != 0) return;
  ASSERT_EQ(::chown(folder().c_str(), 12345, 12345), 0);
  EXPECT_NE(store().disk().folder().problem().find("another user"), std::string::npos);
  EXPECT_EQ(origin(), Origin::compiled);
}

TEST_F(CubinStoreTest, AFullDiskLeavesNothingBehind) {
  const int result = result_of(start([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};  // a file that grows further fails as on a full disk, after a part was written
    ::setrlimit(RLIMIT_FSIZE, &limit);
    return store().get(trial(1), kTarget)->origin == Origin::compiled ? 0 : 1;
  }));
  EXPECT_EQ(result, 0);
  EXPECT_TRUE(files(".cubin").empty());
  EXPECT_TRUE(files(".tmp").empty());
  EXPECT_EQ(origin(), Origin::compiled);
  EXPECT_EQ(origin(), Origin::disk);
}

TEST_F(CubinStoreTest, WithoutACompilerTheFolderServes) {
  CubinStore without(folder(), nullptr);
  EXPECT_THROW(without.get(trial(1), kTarget), Error);
  store().get(trial(1), kTarget);
  EXPECT_EQ(without.get(trial(1), kTarget)->origin, Origin::disk);
}

TEST_F(CubinStoreTest, ThreadsThatAskTogetherCompileOnce) {
  CubinStore mine = store();
  std::vector<std::shared_ptr<const Cubin>> got(16);
  std::vector<std::thread> threads;
  for (auto& cubin : got) threads.emplace_back([&] { cubin = mine.get(trial(1), kTarget); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& cubin : got) EXPECT_EQ(cubin, got[0]);
}

TEST_F(CubinStoreTest, StoresThatAskTogetherCompileOnce) {
  std::atomic<int> compiled{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { compiled += origin() == Origin::compiled; });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiled, 1);
}

TEST_F(CubinStoreTest, ProcessesThatStartTogetherCompileOnce) {
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) children.push_back(start([&] { return origin() == Origin::compiled ? 1 : 0; }));
  int compiled = 0;
  for (const pid_t child : children) {
    const int result = result_of(child);
    ASSERT_GE(result, 0);
    compiled += result;
  }
  EXPECT_EQ(compiled, 1);
}

TEST_F(CubinStoreTest, AClaimEndsWithItsProcessAndBeforeAForkedChild) {
  const Hash128 key = program_key(trial(1), kTarget);
  const DiskCache cache(folder());
  pid_t sleeper = 0;
  {
    const DiskCache::Claim claim(cache, key);
    sleeper = start([] { return ::pause(); });  // shares the open file
  }
  EXPECT_EQ(result_of(start([&] {
              const DiskCache::Claim claim(cache, key);
              return 0;
            })),
            0);
  ::kill(sleeper, SIGKILL);
  EXPECT_EQ(result_of(sleeper), -1);
}

TEST_F(CubinStoreTest, AChildForkedWhileOthersCompileCompilesToo) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer's own locks do not survive a fork beside threads that allocate";
#endif
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer takes the lock that a child begins anew for one it holds (process/fork.hpp)";
#endif
  ::setenv("TESSELLA_CACHE_DIR", folder().c_str(), 1);
  cubin_store();  // the process's own, which knows of forks
  std::thread other([] { cubin_store().get(trial(1), kTarget); });
  for (int i = 0; i < 3; ++i) {
    const int result = result_of(start([] {
      ::alarm(60);
      return cubin_store().get(trial(2), kTarget)->symbol.empty() ? 1 : 0;
    }));
    EXPECT_EQ(result, 0);
  }
  other.join();
}

}  // namespace
