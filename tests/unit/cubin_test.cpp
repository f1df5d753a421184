// A compiled kernel as bytes, what names it, and what the compiler reports of it.
#include "cuda/compile/cubin.hpp"

#include <gtest/gtest.h>

#include "cuda/compile/program.hpp"
#include "cuda/compile/target.hpp"

namespace {

using namespace tessella::cuda;

constexpr const char* kLog =
    "ptxas info    : 0 bytes gmem\n"
    "ptxas info    : Compiling entry function '_Zother' for 'sm_90a'\n"
    "ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads\n"
    "ptxas info    : Used 255 registers, used 1 barriers, 64 bytes smem\n"
    "ptxas info    : Compiling entry function '_Zmine' for 'sm_90a'\n"
    "ptxas info    : Function properties for _Zmine\n"
    "ptxas         .     16 bytes stack frame, 12 bytes spill stores, 24 bytes spill loads\n"
    "ptxas info    : Used 168 registers, used 2 barriers, 16 bytes stack, 1024 bytes smem, 400 bytes cmem[0]\n";

Cubin sample() {
  Cubin cubin{.compiler = {12, 8}, .target = "sm_90a", .symbol = "_Zmine", .image = std::string("ELF\0image", 9)};
  cubin.log = kLog;
  cubin.key.add_bytes("sample");
  return cubin;
}

TEST(ContentHash, IsFnv1a128) {  // the published vectors
  Hash128 hash;
  EXPECT_EQ(hash.hex(), "6c62272e07bb014262b821756295c58d");
  hash.add_bytes("a");
  EXPECT_EQ(hash.hex(), "d228cb696f1a8caf78912b704e4a8964");
  Hash128 foobar;
  foobar.add_bytes("foobar");
  EXPECT_EQ(foobar.hex(), "343e1662793c64bf6f0d3597ba446f18");
}

TEST(Resources, AreThoseOfTheNamedKernel) {
  EXPECT_EQ(parse_resources(kLog, "_Zmine"), (Resources{168, 16, 12, 24, 1024}));
  EXPECT_EQ(parse_resources(kLog, "_Zother"), (Resources{255, 8, 4, 4, 64}));
  EXPECT_EQ(parse_resources(kLog, "_Znone"), Resources{});
  EXPECT_EQ(parse_resources("Compiling entry function 'k' for 'sm_80'\nUsed 8 registers\n", "k").static_shared_bytes,
            0);
}

TEST(Cubin, ComesBackFromItsBytes) {
  const Cubin cubin = sample();
  const std::string bytes = pack(cubin) + pack(cubin);
  std::string_view rest = bytes;
  for (int i = 0; i < 2; ++i) {
    const std::optional<Cubin> read = unpack(rest, true);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->key, cubin.key);
    EXPECT_EQ(read->compiler, cubin.compiler);
    EXPECT_EQ(read->target, cubin.target);
    EXPECT_EQ(read->symbol, cubin.symbol);
    EXPECT_EQ(read->image, cubin.image);
    EXPECT_EQ(read->log, cubin.log);
    EXPECT_EQ(read->resources.registers, 168);
  }
  EXPECT_TRUE(rest.empty());
}

TEST(Cubin, IsAnErrorWhenCutOrChangedAnywhere) {
  const std::string bytes = pack(sample());
  for (size_t length = 0; length < bytes.size(); ++length) {
    std::string_view cut(bytes.data(), length);
    EXPECT_FALSE(unpack(cut, false)) << length << " bytes";
  }
  for (size_t at = 0; at < bytes.size(); ++at) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 0x10);
    std::string_view rest = changed;
    EXPECT_FALSE(unpack(rest, true)) << "byte " << at;
  }
}

TEST(Target, IsReadAsItIsWritten) {
  for (const char* name : {"sm_80", "sm_90", "sm_90a", "sm_100a", "compute_80"}) {
    const std::optional<Target> target = parse_target(name);
    ASSERT_TRUE(target) << name;
    EXPECT_EQ(target->name(), name);
  }
  for (const char* name : {"", "sm_", "90", "sm_9", "sm_9x", "sm_90b", "sm_1000", "compute", "SM_90", "sm_090"}) {
    EXPECT_FALSE(parse_target(name)) << name;
  }
}

TEST(ProgramKey, DependsOnAllThatTheImageDoes) {
  const Program program{.header = "portable/band.hpp", .expression = "f<1>", .user_source = "sourct"};
  const Target target{.arch = 90};
  const std::string key = program_key(program, target).hex();
  EXPECT_EQ(program_key(program, target).hex(), key);
  const auto differs = [&](const Program& other, const Target& other_target) {
    return program_key(other, other_target).hex() != key;
  };
  EXPECT_TRUE(differs({.header = "portable/dropout.hpp", .expression = "f<1>", .user_source = "sourct"}, target));
  EXPECT_TRUE(differs({.header = "portable/band.hpp", .expression = "f<2>", .user_source = "sourct"}, target));
  EXPECT_TRUE(differs({.header = "portable/band.hpp", .expression = "f<1>", .user_source = "sourcu"}, target));
  EXPECT_TRUE(differs(program, {.arch = 80}));
  EXPECT_TRUE(differs(program, {.arch = 90, .arch_specific = true}));
  EXPECT_TRUE(differs(program, {.arch = 90, .ptx = true}));
}

TEST(DeviceSources, AreReachedThroughIncludes) {
  const auto has = [](const std::vector<DeviceSource>& headers, std::string_view name) {
    for (const DeviceSource& header : headers) {
      if (header.name == name) return !header.content.empty();
    }
    return false;
  };
  const std::vector<DeviceSource> headers = headers_of({.header = "portable/band.hpp"});
  EXPECT_TRUE(has(headers, "cuda/device/prelude.cuh"));
  EXPECT_TRUE(has(headers, "portable/band.hpp"));
  EXPECT_TRUE(has(headers, "portable/integers.hpp"));
  EXPECT_FALSE(has(headers, "portable/dropout.hpp"));
  EXPECT_TRUE(has(headers_of({.header = "user.hpp", .user_source = "#include \"portable/dropout.hpp\"\n"}),
                  "portable/dropout.hpp"));
}

}  // namespace
