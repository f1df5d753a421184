#include "files/npz.hpp"

#include <fmt/core.h>
#include <zip.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "files/foreign_format.hpp"
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

// What is read out of an archive keeps its file.
struct MappedArchive {
  SharedBytes file;
  Archive archive;
};

Archive open_archive(const std::string& path, std::span<const std::byte> bytes) {
  ZipError problem(ZIP_ER_OK);
  std::unique_ptr<zip_source_t, Discard> data(zip_source_buffer_create(bytes.data(), bytes.size(), 0, &problem.error));
  Archive archive(data ? zip_open_from_source(data.get(), ZIP_RDONLY, &problem.error) : nullptr);
  if (!archive) {
    const bool begins =
        bytes.size() >= 2 && std::to_integer<char>(bytes[0]) == 'P' && std::to_integer<char>(bytes[1]) == 'K';
    throw InputError(fmt::format("{}: cannot read as .npz: {}{}", path, zip_error_strerror(&problem.error),
                                 begins ? "; it begins as one, is it truncated?" : ""));
  }
  data.release();  // owned by the archive now
  return archive;
}

// One entry, front to back.
class EntryStream {
 public:
  EntryStream(const std::string& source, const MappedArchive& mapped, zip_uint64_t idx) : source_(source) {
    zip_t* archive = mapped.archive.get();
    zip_stat_t stat;
    constexpr zip_uint64_t kNeeded = ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD;
    if (zip_stat_index(archive, idx, 0, &stat) != 0 || (stat.valid & kNeeded) != kNeeded) {
      throw InputError(fmt::format("{}: entry {} of the archive cannot be read", source, idx));
    }
    if (stat.comp_size > mapped.file.bytes.size()) {
      throw InputError(
          fmt::format("{}: entry of {} bytes in a file of {}", source, stat.comp_size, mapped.file.bytes.size()));
    }
    const zip_uint64_t most = most_bytes(stat);
    if (stat.size > most) {
      throw InputError(fmt::format("{}: entry claims {} bytes out of {}, expected at most {}", source, stat.size,
                                   stat.comp_size, most));
    }
    size_ = left_ = stat.size;
    file_.reset(zip_fopen_index(archive, idx, 0));
    if (!file_) {
      throw InputError(fmt::format(
          "{}: {}, expected a stored, deflated or bzip2 entry, as numpy.savez and numpy.savez_compressed make", source,
          zip_strerror(archive)));
    }
  }

  uint64_t size() const { return size_; }

  SharedBytes take(uint64_t count) {
    auto memory = allocate(static_cast<int64_t>(count));
    auto* bytes = static_cast<std::byte*>(memory.get());
    fill({bytes, count});
    left_ -= count;
    if (left_ == 0) check_sum();
    return {{bytes, count}, std::move(memory)};
  }

 private:
  static zip_uint64_t most_bytes(const zip_stat_t& stat) {
    if (stat.comp_method == ZIP_CM_STORE) return stat.comp_size;
    if (stat.comp_method == ZIP_CM_DEFLATE) return stat.comp_size * kMaxDeflateRatio + 64;
    return INT64_MAX / 2;  // of others none is known; memory that is not filled costs nothing
  }

  void fill(std::span<std::byte> bytes) {
    constexpr size_t kMost = size_t{1} << 30;  // libzip loses count of what does not fit 32 bits
    const size_t size = bytes.size();
    while (!bytes.empty()) {
      const zip_int64_t got = zip_fread(file_.get(), bytes.data(), std::min(bytes.size(), kMost));
      if (got < 0) fail();
      if (got == 0) {
        throw InputError(
            fmt::format("{}: truncated: {} bytes, expected {}", source_, size_ - left_ + size - bytes.size(), size_));
      }
      bytes = bytes.subspan(static_cast<size_t>(got));
    }
  }

  // Reading past the end is what makes the library compare the checksum.
  void check_sum() {
    std::byte past_end;
    const zip_int64_t got = zip_fread(file_.get(), &past_end, 1);
    if (got < 0) fail();
    if (got > 0) throw InputError(fmt::format("{}: entry is longer than the {} bytes it claims", source_, size_));
  }

  [[noreturn]] void fail() const { throw InputError(fmt::format("{}: {}", source_, zip_file_strerror(file_.get()))); }

  const std::string& source_;
  uint64_t size_ = 0, left_ = 0;
  std::unique_ptr<zip_file_t, Discard> file_;
};

}  // namespace

std::vector<ListedArray> list_npz(const std::string& path, const SharedBytes& file) {
  const auto mapped = std::make_shared<const MappedArchive>(MappedArchive{file, open_archive(path, file.bytes)});
  std::vector<ListedArray> arrays;
  std::vector<std::string> others;
  const zip_int64_t num_entries = zip_get_num_entries(mapped->archive.get(), 0);
  for (zip_uint64_t idx = 0; idx < static_cast<zip_uint64_t>(num_entries); ++idx) {
    const char* entry = zip_get_name(mapped->archive.get(), idx, 0);
    if (entry == nullptr) continue;
    std::string name = entry;
    if (!name.ends_with(kSuffix)) {
      others.push_back(std::move(name));
      continue;
    }
    name.resize(name.size() - kSuffix.size());
    std::string source = fmt::format("{}:{}", path, shown_name(name));
    const auto load = [mapped, idx](const ListedArray& listed, const ArrayCheck& check) {
      EntryStream stream(listed.source, *mapped, idx);
      return read_npy(
          listed, stream.size(), [&](uint64_t count) { return stream.take(count); }, check);
    };
    arrays.push_back({std::move(source), std::move(name), path, load});
  }
  if (arrays.empty()) refuse_archive(path, others);
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
  if (zip_close(archive.get()) != 0) {
    throw InputError(fmt::format("{}: cannot write: {}", path, zip_strerror(archive.get())));
  }
  archive.release();  // closed
}

}  // namespace tessella::cli
