#include "device/cuda/kernel_cache.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include "trireme/core/environment.h"
#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"
#include "trireme/core/file_write.h"
#include "trireme/core/log.h"

namespace trireme::device::cuda {
namespace {

// A file is this, the code's length and its hash, both as 8 bytes, then the code.
constexpr char kKernelMark[] = "trireme kernels 1\n";
constexpr std::size_t kMarkBytes = sizeof(kKernelMark) - 1;
constexpr std::size_t kKernelHeader = kMarkBytes + 2 * sizeof(std::uint64_t);

std::string header_of(const std::string& code) {
  const std::uint64_t numbers[] = {code.size(), XXH3_64bits(code.data(), code.size())};
  return kKernelMark + std::string(reinterpret_cast<const char*>(numbers), sizeof(numbers));
}

// Nothing where the file is not there, or not what was written.
std::optional<std::string> read_code(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return std::nullopt;
  }
  std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (all.size() > kKernelHeader) {
    std::string code = all.substr(kKernelHeader);
    if (all.compare(0, kKernelHeader, header_of(code)) == 0) {
      return code;
    }
  }
  log(LogLevel::kWarning,
      detail::concat("the file of GPU kernels \"{}\" is damaged: they are compiled anew", {path}));
  return std::nullopt;
}

// Complete or not at all, whatever other processes do at the same time.
void write_code(const std::string& path, const std::string& code) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  const std::string draft = detail::concat("{}.{}", {path, getpid()});
  FileDescriptor file(open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.valid()) {
    throw Error(
        detail::concat("\"{}\" could not be opened: {}", {draft, detail::errno_text(errno)}));
  }
  const std::string header = header_of(code);
  write_all(file.get(), draft, header.data(), header.size());
  write_all(file.get(), draft, code.data(), code.size());
  file.reset();
  std::filesystem::rename(draft, path);
}

}  // namespace

KernelCache KernelCache::of_this_user() {
  if (const auto folder = env_string("XDG_CACHE_HOME")) {
    return KernelCache(*folder + "/trireme");
  }
  const auto home = env_string("HOME");
  return KernelCache(home ? *home + "/.cache/trireme" : "");
}

std::string KernelCache::file_of(const std::string& ingredients) const {
  if (folder_.empty()) {
    return {};
  }
  const XXH128_hash_t hash = XXH3_128bits(ingredients.data(), ingredients.size());
  char name[40];
  std::snprintf(name,
                sizeof(name),
                "%016llx%016llx",
                static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return detail::concat("{}/kernels-{}", {folder_, static_cast<const char*>(name)});
}

std::string KernelCache::get(const std::string& ingredients,
                             const std::function<std::string()>& compile) const {
  const std::string path = file_of(ingredients);
  if (path.empty()) {
    return compile();
  }
  if (auto code = read_code(path)) {
    return *std::move(code);
  }
  const std::string code = compile();
  try {
    write_code(path, code);
  } catch (const std::exception& error) {
    log(LogLevel::kInfo,
        detail::concat("GPU kernels are compiled at every start, since they cannot be kept: {}",
                       {error.what()}));
  }
  return code;
}

std::string ingredients_of(const KernelSource& source, const std::string& compiler_version) {
  std::string all = detail::concat("NVRTC {}, sm_{}", {compiler_version, source.architecture});
  for (const char* option : kernel_options()) {
    all += detail::concat("\n", option);
  }
  all += "\n" + source.main;
  for (const SourceText& text : source.texts) {
    all += detail::concat("\n", text.name, "\n", text.text);
  }
  return all;
}

}  // namespace trireme::device::cuda
