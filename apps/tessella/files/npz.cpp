#include "files/npz.hpp"

#include <fmt/format.h>
#include <zip.h>

#include <memory>

#include "files/input_error.hpp"
#include "files/npy.hpp"
#include "files/printable.hpp"

namespace tessella::cli {
namespace {

constexpr std::string_view kSuffix = ".npy";

// Deflate cannot shrink more than this: an entry that claims to is lying, and is not worth its allocation.
constexpr zip_uint64_t kMaxDeflateRatio = 1032;

struct ZipError {
  explicit ZipError(int code) { zip_error_init_with_code(&error, code); }
  ~ZipError() { zip_error_fini(&error); }
  zip_error_t error;
};

struct Discard {
  void operator()(zip_t* archive) const { zip_discard(archive); }
  void operator()(zip_file_t* entry) const { zip_fclose(entry); }
  void operator()(zip_source_t* source) const { zip_source_free(source); }
};
using Archive = std::unique_ptr<zip_t, Discard>;

Archive open_archive(const std::string& source, std::span<const std::byte> bytes) {
  ZipError problem(ZIP_ER_OK);
  std::unique_ptr<zip_source_t, Discard> data(zip_source_buffer_create(bytes.data(), bytes.size(), 0, &problem.error));
  Archive archive(data ? zip_open_from_source(data.get(), ZIP_RDONLY, &problem.error) : nullptr);
  if (!archive)
    throw InputError(fmt::format("{}: cannot read as .npz: {}", source, zip_error_strerror(&problem.error)));
  data.release();  // owned by the archive now
  return archive;
}

std::vector<std::byte> read_entry(const std::string& where, zip_t* archive, zip_uint64_t idx, const zip_stat_t& stat) {
  const zip_uint64_t most = stat.comp_method == ZIP_CM_STORE ? stat.comp_size : stat.comp_size * kMaxDeflateRatio + 64;
  if (stat.size > most) {
    throw InputError(fmt::format("{}: entry claims {} bytes out of {}, expected at most {}", where, stat.size,
                                 stat.comp_size, most));
  }
  std::unique_ptr<zip_file_t, Discard> entry(zip_fopen_index(archive, idx, 0));
  if (!entry) throw InputError(fmt::format("{}: {}", where, zip_strerror(archive)));
  std::vector<std::byte> content(stat.size);
  size_t filled = 0;
  while (filled < content.size()) {
    const zip_int64_t got = zip_fread(entry.get(), content.data() + filled, content.size() - filled);
    if (got < 0) throw InputError(fmt::format("{}: {}", where, zip_file_strerror(entry.get())));
    if (got == 0) throw InputError(fmt::format("{}: truncated: {} bytes, expected {}", where, filled, content.size()));
    filled += static_cast<size_t>(got);
  }
  std::byte past_end;
  // Reading past the end is what makes the library compare the checksum.
  if (zip_fread(entry.get(), &past_end, 1) < 0)
    throw InputError(fmt::format("{}: {}", where, zip_file_strerror(entry.get())));
  return content;
}

}  // namespace

std::vector<Array> read_npz(const std::string& source, std::span<const std::byte> bytes) {
  const Archive archive = open_archive(source, bytes);
  std::vector<Array> arrays;
  const zip_int64_t num_entries = zip_get_num_entries(archive.get(), 0);
  for (zip_uint64_t idx = 0; idx < static_cast<zip_uint64_t>(num_entries); ++idx) {
    zip_stat_t stat;
    constexpr zip_uint64_t kNeeded = ZIP_STAT_NAME | ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD;
    if (zip_stat_index(archive.get(), idx, 0, &stat) != 0 || (stat.valid & kNeeded) != kNeeded) {
      throw InputError(fmt::format("{}: entry {} of the archive cannot be read", source, idx));
    }
    std::string name = stat.name;
    if (!name.ends_with(kSuffix)) continue;
    name.resize(name.size() - kSuffix.size());
    const std::string where = fmt::format("{}:{}", source, shown_name(name));
    if (stat.comp_size > bytes.size()) {
      throw InputError(fmt::format("{}: entry of {} bytes in a file of {}", where, stat.comp_size, bytes.size()));
    }
    auto content = std::make_shared<std::vector<std::byte>>(read_entry(where, archive.get(), idx, stat));
    arrays.push_back(read_npy(where, name, *content, content));
  }
  return arrays;
}

void write_npz(const std::string& path, std::span<const Array> arrays) {
  int code = 0;
  Archive archive(zip_open(path.c_str(), ZIP_CREATE | ZIP_TRUNCATE, &code));
  if (!archive) {
    ZipError problem(code);
    throw InputError(fmt::format("{}: cannot write: {}", path, zip_error_strerror(&problem.error)));
  }
  std::vector<std::vector<std::byte>> contents;  // read by zip_close
  for (const Array& array : arrays) {
    const std::vector<std::byte>& content = contents.emplace_back(to_npy(array));
    zip_source_t* data = zip_source_buffer(archive.get(), content.data(), content.size(), 0);
    const zip_int64_t idx = zip_file_add(archive.get(), (array.name + ".npy").c_str(), data, ZIP_FL_ENC_UTF_8);
    if (idx < 0) {
      zip_source_free(data);
      throw InputError(fmt::format("{}: {}", path, zip_strerror(archive.get())));
    }
    zip_set_file_compression(archive.get(), static_cast<zip_uint64_t>(idx), ZIP_CM_STORE, 0);
  }
  if (zip_close(archive.get()) != 0) throw InputError(fmt::format("{}: {}", path, zip_strerror(archive.get())));
  archive.release();  // closed
}

}  // namespace tessella::cli
