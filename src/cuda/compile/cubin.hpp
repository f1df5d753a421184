// A compiled program, and its serialized format in the cache folder and inside the library.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cuda/compile/content_hash.hpp"

namespace tessella::cuda {

struct CompilerVersion {
  int major = 0;
  int minor = 0;
  auto operator<=>(const CompilerVersion&) const = default;  // NOLINT(modernize-use-nullptr): a false alarm
  std::string string() const { return std::to_string(major) + "." + std::to_string(minor); }
};

// Resources of a kernel as the assembler reports them. PTX has no report: all are -1.
struct Resources {
  int registers = -1;
  int stack_bytes = -1;
  int spill_store_bytes = -1;
  int spill_load_bytes = -1;
  int static_shared_bytes = -1;
  bool operator==(const Resources&) const = default;
};

// The report on one entry function in the compiler's log.
Resources parse_resources(std::string_view log, std::string_view symbol);

struct Cubin {
  enum class Origin { embedded, disk, compiled };

  Hash128 key;
  CompilerVersion compiler;
  std::string target;  // "sm_90a"
  std::string symbol;  // of the kernel
  std::string image;   // a cubin, or PTX
  std::string log;     // of the compiler
  Resources resources;
  Origin origin = Origin::compiled;
  double milliseconds = 0;  // that finding or compiling it took
};

const char* name(Cubin::Origin origin);

std::string pack(const Cubin& cubin);

// Reads the record at the front of the bytes and removes it from them; returns nothing if they do not begin with a
// complete record. check_sum: compare the checksum, which embedded images do not need.
std::optional<Cubin> unpack(std::string_view& bytes, bool check_sum);

}  // namespace tessella::cuda
