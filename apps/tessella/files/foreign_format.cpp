#include "files/foreign_format.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

#include "files/input_error.hpp"
#include "files/printable.hpp"

namespace tessella::cli {
namespace {

struct Format {
  std::string_view magic;
  const char* is;
};

constexpr const char* kTorch =
    "a PyTorch file (a pickle), which can run code; save its tensors with safetensors.torch.save_file or numpy.savez";

using namespace std::string_view_literals;
constexpr Format kFormats[] = {
    {"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19"sv, kTorch},  // torch.save before 1.6
    {"GGUF"sv, "a GGUF file; read its tensors with gguf.GGUFReader and save them with numpy.savez"},
    {"\x89HDF\r\n\x1a\n"sv, "an HDF5 file; read its arrays with h5py and save them with numpy.savez"},
    {"MATLAB 5.0"sv, "a MATLAB file; read its arrays with scipy.io.loadmat and save them with numpy.savez"},
    {"version https://git-lfs"sv, "a pointer of Git LFS in place of the file; fetch it with git lfs pull"},
    {"<!DOCTYPE"sv, "a web page, not the file behind it"},
    {"<!doctype"sv, "a web page, not the file behind it"},
    {"<html"sv, "a web page, not the file behind it"},
    {"\x1f\x8b"sv, "compressed with gzip; decompress it first"},
    {"\x28\xb5\x2f\xfd"sv, "compressed with Zstandard; decompress it first"},
    {"\xfd"
     "7zXZ\0"sv,
     "compressed with xz; decompress it first"},
};

bool is_pickle(std::string_view bytes) {
  return bytes.size() > 2 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5 && bytes[2] != 0;
}

// An entry of torch.save's archive, which libzip need not be able to open.
bool is_of_torch(std::string_view entry) { return entry == "data.pkl" || entry.ends_with("/data.pkl"); }

std::string_view first_entry(std::string_view bytes) {
  constexpr size_t kHeader = 30;
  if (!bytes.starts_with("PK\3\4") || bytes.size() < kHeader) return {};
  const auto byte = [&](size_t idx) { return static_cast<size_t>(static_cast<unsigned char>(bytes[idx])); };
  return bytes.substr(kHeader, byte(26) | byte(27) << 8);
}

[[noreturn]] void refuse(const std::string& path, std::string_view is) {
  throw InputError(fmt::format("{}: is {}; expected .npy, .npz or .safetensors", path, is));
}

}  // namespace

void refuse_foreign_format(const std::string& path, std::span<const std::byte> bytes) {
  const std::string_view string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (const Format& format : kFormats) {
    if (string.starts_with(format.magic)) refuse(path, format.is);
  }
  if (is_pickle(string))
    refuse(path, "a pickle, which can run code; load it with Python and save arrays with numpy.savez");
  if (is_of_torch(first_entry(string))) refuse(path, kTorch);
}

void refuse_archive(const std::string& path, std::span<const std::string> entries) {
  if (std::ranges::any_of(entries, is_of_torch)) refuse(path, kTorch);
  if (entries.empty()) throw InputError(fmt::format("{}: is an archive without files, expected arrays", path));
  throw InputError(fmt::format("{}: is a zip archive without .npy files, expected what numpy.savez writes; it has {}{}",
                               path, shown_name(entries.front()),
                               entries.size() > 1 ? fmt::format(" and {} others", entries.size() - 1) : ""));
}

}  // namespace tessella::cli
