// Where NVRTC is looked for, and what is said of a file that is none.
#include "cuda/compile/nvrtc.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.hpp"
#include "cuda/driver/library_paths.hpp"

namespace {

namespace fs = std::filesystem;
using namespace tessella::cuda;
using tessella::core::Error;
using tessella::core::ErrorCode;

class NvrtcTest : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"TESSELLA_NVRTC", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "HOME"}) {
      ::unsetenv(name);
    }
    ::setenv("PATH", "/nonexistent", 1);
    root_ = fs::canonical(testing::TempDir()).string() + "/tessella-nvrtc-" + std::to_string(::getpid());
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string make(const std::string& path) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << "no library";
    return root_ + path;
  }
  static ptrdiff_t index_of(const std::string& path) {
    const std::vector<std::string> paths = library_paths(kNvrtcLibrary);
    const auto found = std::ranges::find(paths, path);
    return found == paths.end() ? -1 : found - paths.begin();
  }
  static std::string error_of(const std::string& path) {
    try {
      Nvrtc::open(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::compile);
      return error.what();
    }
    return "opened";
  }
  std::string root_;
};

TEST_F(NvrtcTest, TheNamedOneIsTheOnlyOne) {
  ::setenv("TESSELLA_NVRTC", "/opt/libnvrtc.so.12", 1);
  EXPECT_EQ(library_paths(kNvrtcLibrary), std::vector<std::string>{"/opt/libnvrtc.so.12"});
}

TEST_F(NvrtcTest, TheLinkersOwnAreFirst) {
  EXPECT_EQ(index_of("libnvrtc.so.13"), 0);
  EXPECT_EQ(index_of("libnvrtc.so.12"), 1);
}

TEST_F(NvrtcTest, ToolkitsAndPythonsAreLookedThrough) {
  const std::string toolkit = make("/cuda/lib64/libnvrtc.so.12");
  const std::string of_12 = make("/venv/lib/python3.11/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12");
  const std::string of_13 = make("/venv/lib/python3.11/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
  const std::string conda = make("/conda/lib/libnvrtc.so.12");
  const std::string user = make("/home/.local/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
  make("/real/bin/python3");
  const std::string real = make("/real/lib/python3.13/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
  fs::create_directories(root_ + "/link/bin");
  fs::create_symlink(root_ + "/real/bin/python3", root_ + "/link/bin/python3");
  const std::string link = make("/link/lib/python3.13/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
  for (const std::string& path : {toolkit, of_12, of_13, conda, user, real, link}) EXPECT_EQ(index_of(path), -1);

  ::setenv("CUDA_HOME", (root_ + "/cuda").c_str(), 1);
  ::setenv("VIRTUAL_ENV", (root_ + "/venv").c_str(), 1);
  ::setenv("CONDA_PREFIX", (root_ + "/conda").c_str(), 1);
  ::setenv("HOME", (root_ + "/home").c_str(), 1);
  ::setenv("PATH", ("/nonexistent::" + root_ + "/link/bin:/bin").c_str(), 1);
  EXPECT_GT(index_of(toolkit), 1);
  EXPECT_GT(index_of(of_13), index_of(toolkit));
  EXPECT_GT(index_of(of_12), index_of(of_13));
  EXPECT_GT(index_of(conda), index_of(of_12));
  EXPECT_GT(index_of(link), index_of(conda));
  EXPECT_GT(index_of(real), index_of(link));
  EXPECT_GT(index_of(user), index_of(real));
}

TEST_F(NvrtcTest, FilesThatAreNoneAreExplained) {
  EXPECT_EQ(error_of(root_ + "/absent.so"), "no " + root_ + "/absent.so");
  const std::string message = make("/libnvrtc.so.12");
  EXPECT_EQ(error_of(message).find(message + " does not load: "), 0u) << error_of(message);
  EXPECT_NE(error_of("libc.so.6").find("libc.so.6 lacks nvrtc"), std::string::npos) << error_of("libc.so.6");
}

}  // namespace
