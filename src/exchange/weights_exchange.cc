#include "trireme/exchange/weights_exchange.h"

#include <filesystem>
#include <map>
#include <vector>

#include <unistd.h>

#include "exchange/same_values.h"
#include "trireme/checkpoint/checkpoint_writer.h"
#include "trireme/checkpoint/safetensors.h"
#include "trireme/comm/world.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

namespace fs = std::filesystem;
using detail::concat;

std::vector<std::string> buffers_of(const TensorSource& source) {
  std::vector<std::string> names;
  for (const StateTensor& tensor : source.tensors()) {
    if (tensor.kind == kBufferKind) {
      names.push_back(tensor.name);
    }
  }
  return names;
}

// On the way to this one, the innermost first.
std::vector<fs::path> missing_folders(const fs::path& folder) {
  std::vector<fs::path> missing;
  std::error_code error;
  for (fs::path part = folder; !part.empty() && !fs::exists(part, error);
       part = part.parent_path()) {
    missing.push_back(part);
  }
  return missing;
}

}  // namespace

void export_safetensors(const TensorSource& source,
                        const std::string& path,
                        const std::map<std::string, std::string>& metadata) {
  std::vector<TensorEntry> entries;
  for (const StateTensor& tensor : source.tensors()) {
    entries.push_back({tensor.name, tensor.dtype, tensor.shape});
  }
  std::map<std::string, std::string> all = metadata;
  all.emplace("format", "pt");  // what readers of PyTorch expect
  ModelNotes about = source.about();
  about.buffers = buffers_of(source);
  all.merge(about.to_notes());
  SafetensorsWriter writer(path, entries, all);
  std::vector<std::byte> values;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    values.resize(entries[i].size_bytes());
    source.read(i, values.data());
    writer.write({values.data(), entries[i].numel(), entries[i].dtype});
  }
  writer.finish();
}

std::string import_weights(const TensorSource& source,
                           const std::string& folder,
                           std::int64_t step,
                           const Notes& notes) {
  TRIREME_CHECK(step >= 0, "a checkpoint's step must be 0 or more, found ", step);
  // Of the whole, only what is not in memory anyway (a mapped file) is held.
  StateView state;
  std::vector<std::vector<std::byte>> held;
  std::map<std::string, std::size_t> places;
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    places[source.tensors()[i].name] = i;
  }
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    StateTensor tensor = source.tensors()[i];
    const auto alias = source.about().aliases.find(tensor.name);
    if (alias != source.about().aliases.end() && places.contains(alias->second)) {
      TRIREME_CHECK(
          detail::same_values(source, i, places.at(alias->second)),
          "\"{}\": expected the same values for {} and {}, which its metadata (\"aliases\") says "
          "are one tensor, found different ones: write it without that entry if they are two",
          {source.path(), tensor.name, alias->second});
      continue;  // it is there under its first name
    }
    const std::byte* data = source.memory(i);
    if (data == nullptr) {
      held.emplace_back(tensor.size_bytes());
      source.read(i, held.back().data());
      data = held.back().data();
      tensor.strides.clear();
    }
    state.slices.push_back(
        {state.tensors.size(), {0, tensor.numel()}, const_cast<std::byte*>(data)});
    state.tensors.push_back(std::move(tensor));
  }
  Notes all = notes;
  all.emplace("imported_from", source.path());
  ModelNotes about = source.about();
  about.buffers.reset();  // their kind says it
  all.merge(about.to_notes());
  CheckpointOptions options;
  options.wait = true;
  options.snapshot_bytes = std::size_t{64} << 20;
  options.say = [](const std::string&) {};  // that it waits for the disk is no news here
  // A world of its own, whatever launcher's variables this process has inherited.
  InitOptions alone;
  alone.rank = 0;
  alone.size = 1;
  alone.job = concat("import ", getpid());
  const std::vector<fs::path> missing = missing_folders(folder);
  try {
    CheckpointWriter writer(folder, init(alone), options);
    TRIREME_CHECK(!writer.folder().contains(step),
                  "\"{}\" already exists: choose another step (--step) or another folder",
                  {writer.folder().path_of(step)});
    writer.save(step, state, all);
    writer.finish();
    return writer.folder().path_of(step);
  } catch (...) {
    std::error_code error;
    if (!missing.empty()) {
      fs::remove(fs::path(folder) / ".lock", error);
    }
    for (const fs::path& each : missing) {
      fs::remove(each, error);  // if nothing else is in it
    }
    throw;
  }
}

}  // namespace trireme
