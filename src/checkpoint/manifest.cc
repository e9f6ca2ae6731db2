#include "trireme/checkpoint/manifest.h"

#include <cerrno>
#include <locale>
#include <sstream>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "checkpoint/checksum.h"
#include "checkpoint/manifest_checks.h"
#include "checkpoint/safetensors_format.h"
#include "trireme/core/error.h"
#include "trireme/core/file_descriptor.h"
#include "trireme/core/json_depth.h"

namespace trireme {
namespace {

// Written in order; read without, since the library's ordered objects look through all names for
// each.
using OrderedJson = nlohmann::ordered_json;
using Json = nlohmann::json;
using detail::concat;

constexpr const char* kFormat = "trireme checkpoint";
constexpr const char* kMethod = "xxh3-64";  // of the checksums

// Note [the manifest's checksum]
// The text ends with exactly these characters, the digits being the checksum of all before them, so
// that it is one JSON object to everybody and can still vouch for every byte of itself.
constexpr const char* kTailBegin = ",\n\"checksum\": \"";
constexpr const char* kTailEnd = "\"\n}\n";

std::string tail_of(std::uint64_t checksum) {
  return kTailBegin + detail::checksum_text(checksum) + kTailEnd;
}

[[noreturn]] void fail(const std::string& path, std::int64_t offset, const std::string& message) {
  throw CheckpointError(
      path,
      offset,
      concat("\"", path, "\"", offset >= 0 ? concat(", byte ", offset) : "", ": ", message));
}

// All of a file. Not by a stream, which has no word for a folder or a failing disk.
std::string file_text(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  std::string reason;
  if (!file.valid() || fstat(file.get(), &status) != 0) {
    reason = detail::errno_text(errno);
  } else if (!S_ISREG(status.st_mode)) {
    reason = "something that is not a file";
  }
  std::string text(reason.empty() ? static_cast<std::size_t>(status.st_size) : 0, '\0');
  std::size_t done = 0;
  while (reason.empty() && done < text.size()) {
    const ssize_t got = read(file.get(), text.data() + done, text.size() - done);
    if (got == 0) {
      break;
    }
    if (got > 0) {
      done += static_cast<std::size_t>(got);
    } else if (errno != EINTR) {
      reason = detail::errno_text(errno);
    }
  }
  if (!reason.empty()) {
    fail(path,
         -1,
         concat("expected the manifest of a checkpoint, found: ",
                reason,
                "; a checkpoint is a folder like RUN/checkpoints/step-00000100"));
  }
  text.resize(done);
  return text;
}

OrderedJson to_json(const SavedFile& file) {
  OrderedJson checksums = OrderedJson::array();
  for (const std::uint64_t checksum : file.checksums) {
    checksums.push_back(detail::checksum_text(checksum));
  }
  return {{"name", file.name}, {"bytes", file.size_bytes}, {"checksums", std::move(checksums)}};
}

OrderedJson to_json(const SavedTensor& saved) {
  OrderedJson json = {{"kind", saved.tensor.kind},
                      {"name", saved.tensor.name},
                      {"dtype", detail::file_name_of(saved.tensor.dtype)},
                      {"shape", saved.tensor.shape}};
  if (!saved.tensor.strides.empty()) {
    json["strides"] = saved.tensor.strides;
  }
  OrderedJson parts = OrderedJson::array();
  for (const SavedPart& part : saved.parts) {
    parts.push_back({part.range.begin, part.range.end, part.file, part.offset});
  }
  json["parts"] = std::move(parts);
  return json;
}

SavedFile file_from(const Json& json) {
  SavedFile file;
  file.name = json.at("name").get<std::string>();
  file.size_bytes = json.at("bytes").get<std::uint64_t>();
  for (const Json& text : json.at("checksums")) {
    const auto checksum = detail::parse_checksum(text.get<std::string>());
    TRIREME_CHECK(checksum, "expected a checksum of 16 hexadecimal digits, found ", text.dump());
    file.checksums.push_back(*checksum);
  }
  return file;
}

SavedTensor tensor_from(const Json& json) {
  SavedTensor saved;
  saved.tensor.kind = json.at("kind").get<std::string>();
  saved.tensor.name = json.at("name").get<std::string>();
  const auto dtype = detail::dtype_called(json.at("dtype").get<std::string>());
  TRIREME_CHECK(dtype, "unknown dtype ", json.at("dtype").dump());
  saved.tensor.dtype = *dtype;
  saved.tensor.shape = json.at("shape").get<std::vector<std::int64_t>>();
  if (json.contains("strides")) {
    saved.tensor.strides = json.at("strides").get<std::vector<std::int64_t>>();
  }
  for (const Json& part : json.at("parts")) {
    saved.parts.push_back({{part.at(0).get<std::int64_t>(), part.at(1).get<std::int64_t>()},
                           part.at(2).get<std::size_t>(),
                           part.at(3).get<std::uint64_t>()});
  }
  return saved;
}

Manifest manifest_from(const Json& json) {
  TRIREME_CHECK(json.at("checksums") == kMethod,
                "expected checksums by \"{}\", found {}",
                {kMethod, json.at("checksums").dump()});
  Manifest manifest;
  manifest.step = json.at("step").get<std::int64_t>();
  manifest.sequence = json.at("sequence").get<std::int64_t>();
  manifest.saved_at = json.at("saved_at").get<std::int64_t>();
  manifest.ranks = json.at("ranks").get<int>();
  manifest.block_bytes = json.at("block_bytes").get<std::size_t>();
  manifest.notes = json.at("notes").get<Notes>();
  for (const Json& file : json.at("files")) {
    manifest.files.push_back(file_from(file));
  }
  for (const Json& tensor : json.at("tensors")) {
    manifest.tensors.push_back(tensor_from(tensor));
  }
  return manifest;
}

// Checks everything but the content, and returns the text as JSON.
Json parse_whole(const std::string& text, const std::string& path) {
  const std::string pattern = tail_of(0);
  const std::string begin = kTailBegin;
  const std::string end = kTailEnd;
  const std::size_t at = text.size() < pattern.size() ? 0 : text.size() - pattern.size();
  if (text.size() < pattern.size() || text.compare(at, begin.size(), begin) != 0 ||
      text.compare(text.size() - end.size(), end.size(), end) != 0) {
    fail(path,
         static_cast<std::int64_t>(text.size()),
         "expected a manifest that ends with its checksum, found the end of the file: it is "
         "truncated, damaged or not a manifest; use another checkpoint");
  }
  const std::uint64_t checksum = detail::checksum_of(text.data(), at);
  const std::string digits = text.substr(at + begin.size(), 16);
  if (digits != detail::checksum_text(checksum)) {
    fail(path,
         0,
         concat("expected the checksum {} for bytes 0 to {}, found {}: the manifest is damaged; "
                "use another checkpoint",
                {digits, at, detail::checksum_text(checksum)}));
  }
  if (const auto deep = json_too_deep_at(text)) {
    fail(path,
         static_cast<std::int64_t>(*deep),
         concat("expected JSON of at most ",
                kMostJsonLevels,
                " levels, found more: this is not a manifest; use another checkpoint"));
  }
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    fail(path, 0, concat("expected JSON: ", error.what()));
  }
}

}  // namespace

std::uint64_t Manifest::size_bytes() const {
  std::uint64_t bytes = 0;
  for (const SavedFile& file : files) {
    bytes += file.size_bytes;
  }
  return bytes;
}

const SavedTensor* Manifest::find(const std::string& kind, const std::string& name) const {
  for (const SavedTensor& saved : tensors) {
    if (saved.tensor.kind == kind && saved.tensor.name == name) {
      return &saved;
    }
  }
  return nullptr;
}

std::string Manifest::to_json() const {
  std::ostringstream out;
  out.imbue(std::locale::classic());  // whatever the program has chosen, this is JSON
  // The sequence number stands near the beginning: it can be read without the rest.
  out << "{\n\"format\": \"" << kFormat << "\",\n\"version\": " << kVersion
      << ",\n\"sequence\": " << sequence << ",\n\"step\": " << step
      << ",\n\"saved_at\": " << saved_at << ",\n\"ranks\": " << ranks
      << ",\n\"block_bytes\": " << block_bytes << ",\n\"checksums\": \"" << kMethod
      << "\",\n\"notes\": " << OrderedJson(notes).dump() << ",\n\"files\": [";
  const char* separator = "\n";
  for (const SavedFile& file : files) {
    out << separator << trireme::to_json(file).dump();
    separator = ",\n";
  }
  out << "\n],\n\"tensors\": [";
  separator = "\n";
  for (const SavedTensor& tensor : tensors) {
    out << separator << trireme::to_json(tensor).dump();
    separator = ",\n";
  }
  out << "\n]";
  const std::string text = out.str();
  return text + tail_of(detail::checksum_of(text.data(), text.size()));
}

Manifest Manifest::parse(const std::string& text, const std::string& path) {
  const Json json = parse_whole(text, path);
  if (!json.is_object() || !json.contains("format") || json["format"] != kFormat) {
    fail(
        path,
        0,
        concat("expected \"format\": \"", kFormat, "\": this is not the manifest of a checkpoint"));
  }
  if (!json.contains("version") || json["version"] != kVersion) {
    fail(path,
         0,
         concat("expected version {} of the format, found {}: read it with the Trireme that wrote "
                "it, or a newer one",
                {kVersion, json.contains("version") ? json["version"].dump() : "none"}));
  }
  Manifest manifest;
  try {
    manifest = manifest_from(json);
  } catch (const Json::exception& error) {
    fail(path, -1, concat("unexpected content: ", error.what()));
  } catch (const ConfigError& error) {
    fail(path, -1, error.what());
  }
  detail::check_manifest(manifest, path);
  return manifest;
}

Manifest Manifest::read(const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + kFileName;
  const std::string text = file_text(path);
  return parse(text, path);
}

}  // namespace trireme
