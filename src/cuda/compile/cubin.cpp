#include "cuda/compile/cubin.hpp"

#include <charconv>
#include <cstdint>
#include <cstring>

namespace tessella::cuda {
namespace {

// In the byte order of the machine that wrote it: a foreign one fails at `format`.
struct Header {
  char magic[8];
  uint32_t format;
  uint32_t compiler_major;
  uint32_t compiler_minor;
  uint32_t target_bytes;
  uint32_t symbol_bytes;
  uint32_t log_bytes;
  uint64_t image_bytes;
  Hash128 key;
  Hash128 checksum;  // over the rest of the header and all that follows
};
constexpr char kMagic[8] = {'T', 'E', 'S', 'S', 'E', 'L', 'L', 'A'};
constexpr uint32_t kFormat = 1;
constexpr size_t kSummedHeaderBytes = offsetof(Header, checksum);

Hash128 checksum(const Header& header, std::string_view payload) {
  Hash128 sum;
  sum.add_bytes({reinterpret_cast<const char*>(&header), kSummedHeaderBytes});
  sum.add_bytes(payload);
  return sum;
}

// The number that stands before `unit`, or -1.
int number_before(std::string_view string, std::string_view unit) {
  const size_t end = string.find(unit);
  if (end == string.npos || end == 0) return -1;
  size_t begin = end;
  while (begin > 0 && string[begin - 1] >= '0' && string[begin - 1] <= '9') --begin;
  int value = -1;
  std::from_chars(string.data() + begin, string.data() + end, value);
  return value;
}

}  // namespace

Resources parse_resources(std::string_view log, std::string_view symbol) {
  const size_t begin = log.find("Compiling entry function '" + std::string(symbol) + "'");
  if (begin == log.npos) return {};
  std::string_view report = log.substr(begin);
  report = report.substr(0, report.find("Compiling entry function", 1));
  Resources found{.registers = number_before(report, " registers"),
                  .stack_bytes = number_before(report, " bytes stack frame"),
                  .spill_store_bytes = number_before(report, " bytes spill stores"),
                  .spill_load_bytes = number_before(report, " bytes spill loads"),
                  .static_shared_bytes = number_before(report, " bytes smem")};
  if (found.registers >= 0 && found.static_shared_bytes < 0) found.static_shared_bytes = 0;  // not said when none
  return found;
}

const char* name(Cubin::Origin origin) {
  switch (origin) {
    case Cubin::Origin::embedded: return "embedded";
    case Cubin::Origin::disk: return "disk";
    case Cubin::Origin::compiled: break;
  }
  return "compiled";
}

std::string pack(const Cubin& cubin) {
  Header header{.format = kFormat,
                .compiler_major = static_cast<uint32_t>(cubin.compiler.major),
                .compiler_minor = static_cast<uint32_t>(cubin.compiler.minor),
                .target_bytes = static_cast<uint32_t>(cubin.target.size()),
                .symbol_bytes = static_cast<uint32_t>(cubin.symbol.size()),
                .log_bytes = static_cast<uint32_t>(cubin.log.size()),
                .image_bytes = cubin.image.size(),
                .key = cubin.key};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  const std::string payload = cubin.target + cubin.symbol + cubin.log + cubin.image;
  header.checksum = checksum(header, payload);
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + payload;
}

std::optional<Cubin> unpack(std::string_view& bytes, bool check_sum) {
  Header header;
  if (bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 || header.format != kFormat) return std::nullopt;
  std::string_view payload = bytes.substr(sizeof header);
  const uint64_t string_bytes = uint64_t{header.target_bytes} + header.symbol_bytes + header.log_bytes;
  if (string_bytes > payload.size() || header.image_bytes > payload.size() - string_bytes) return std::nullopt;
  payload = payload.substr(0, string_bytes + header.image_bytes);
  if (check_sum && checksum(header, payload) != header.checksum) return std::nullopt;

  Cubin cubin{.key = header.key,
              .compiler = {static_cast<int>(header.compiler_major), static_cast<int>(header.compiler_minor)}};
  bytes.remove_prefix(sizeof header + payload.size());
  const auto take = [&](size_t count) {
    const std::string_view field = payload.substr(0, count);
    payload.remove_prefix(count);
    return std::string(field);
  };
  cubin.target = take(header.target_bytes);
  cubin.symbol = take(header.symbol_bytes);
  cubin.log = take(header.log_bytes);
  cubin.image = take(header.image_bytes);
  cubin.resources = parse_resources(cubin.log, cubin.symbol);
  return cubin;
}

}  // namespace tessella::cuda
