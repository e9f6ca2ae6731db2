#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>

#include "checkpoint_place.h"
#include "ckpt.h"
#include "number_text.h"
#include "trireme/checkpoint/checkpoint_folder.h"
#include "trireme/checkpoint/manifest.h"
#include "trireme/core/counted.h"
#include "trireme/core/error.h"
#include "trireme/core/table.h"
#include "trireme/launch/launcher.h"
#include "trireme/observe/progress_line.h"

namespace trireme::tools {
namespace {

using detail::concat;
using detail::counted;

std::string time_text(std::int64_t seconds) {
  const auto when = static_cast<std::time_t>(seconds);
  std::tm parts{};
  localtime_r(&when, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

std::string size_text(std::uint64_t bytes) {
  return megabytes_text(static_cast<std::int64_t>(bytes));
}

std::string list_text(const std::vector<std::int64_t>& numbers) {
  std::string text = "[";
  for (const std::int64_t number : numbers) {
    text += concat(text.size() > 1 ? ", " : "", number);
  }
  return text + "]";
}

// A table's lines, without the spaces that end them.
std::string lines_of(const Table& table, const std::string& indent = "") {
  std::string result;
  std::string line = indent;
  for (const char letter : table.text()) {
    if (letter == '\n') {
      line.resize(line.find_last_not_of(' ') + 1);
      result += line + '\n';
      line = indent;
    } else {
      line += letter;
    }
  }
  return result;
}

// The beginning of a note, on one line.
std::string summary_of(const std::string& note) {
  constexpr std::size_t kMost = 60;
  std::string text = note.substr(0, kMost);
  std::replace_if(
      text.begin(), text.end(), [](unsigned char letter) { return letter < ' '; }, ' ');
  return note.size() > kMost ? concat(text, "... (", note.size(), " characters)") : text;
}

void print_notes(const Manifest& manifest) {
  std::size_t width = 0;
  for (const auto& [name, note] : manifest.notes) {
    width = std::max(width, name.size());
  }
  std::printf("\nnotes\n");
  for (const auto& [name, note] : manifest.notes) {
    std::printf("  %-*s  %s\n", static_cast<int>(width), name.c_str(), summary_of(note).c_str());
  }
}

void print_kinds(const Manifest& manifest) {
  struct Sum {
    std::size_t tensors = 0;
    std::size_t elements = 0;
    std::size_t bytes = 0;
  };
  std::map<std::string, Sum> kinds;
  for (const SavedTensor& each : manifest.tensors) {
    Sum& sum = kinds[each.tensor.kind];
    ++sum.tensors;
    sum.elements += static_cast<std::size_t>(each.tensor.numel());
    sum.bytes += each.tensor.size_bytes();
  }
  Table table({"kind", "tensors", "elements", "size"});
  for (const auto& [kind, sum] : kinds) {
    table.add({kind,
               std::to_string(sum.tensors),
               count_text(static_cast<double>(sum.elements)),
               size_text(sum.bytes)});
  }
  std::printf("\n%s", lines_of(table).c_str());
}

void print_tensors(const Manifest& manifest) {
  Table table({"tensor", "type", "shape", "parts", ""});
  for (const SavedTensor& each : manifest.tensors) {
    const StateTensor& tensor = each.tensor;
    const bool rows = tensor.strides.empty() || tensor.strides == row_strides(tensor.shape);
    table.add({tensor.title(),
               std::string(dtype_name(tensor.dtype)),
               list_text(tensor.shape),
               std::to_string(each.parts.size()),
               rows ? "" : "strides " + list_text(tensor.strides)});
  }
  std::printf("\n%s", lines_of(table).c_str());
}

void print_files(const Manifest& manifest) {
  Table table({"file", "size", "blocks"});
  for (const SavedFile& file : manifest.files) {
    table.add({file.name, size_text(file.size_bytes), std::to_string(file.checksums.size())});
  }
  std::printf("\n%s", lines_of(table).c_str());
}

}  // namespace

int list_checkpoints(const std::string& place) {
  Table table({"step", "saved", "ranks", "size", "tensors", ""});
  std::string broken;
  const auto add = [&](const std::string& path, const std::string& step, const char* mark) {
    try {
      const Manifest manifest = Manifest::read(path);
      table.add({std::to_string(manifest.step),
                 time_text(manifest.saved_at),
                 std::to_string(manifest.ranks),
                 size_text(manifest.size_bytes()),
                 std::to_string(manifest.tensors.size()),
                 mark});
    } catch (const CheckpointError& error) {
      table.add({step, "broken", "", "", "", mark});
      broken += concat(error.what(), "\n");
    }
  };
  const bool alone = is_checkpoint(place);
  const CheckpointFolder folder(alone ? checkpoint_at(place, std::nullopt) : checkpoints_of(place));
  if (alone) {
    add(folder.path(), "?", "");
  }
  const auto newest = folder.newest();
  for (const std::int64_t step : folder.steps()) {
    add(folder.path_of(step), std::to_string(step), step == newest ? "newest" : "");
  }
  std::printf("%s\n%s", folder.path().c_str(), lines_of(table).c_str());
  if (const auto unfinished = folder.unfinished(); !unfinished.empty()) {
    std::printf("unfinished (being written now, or left behind by a run that was killed):");
    for (const std::string& name : unfinished) {
      std::printf(" %s", name.c_str());
    }
    std::printf("\n");
  }
  std::fputs(broken.c_str(), stderr);
  return broken.empty() ? kExitOk : 1;
}

int show_checkpoint(const ShowOptions& options) {
  const std::string path = checkpoint_at(options.place, options.step);
  const Manifest manifest = Manifest::read(path);
  if (options.json) {
    std::fputs(manifest.to_json().c_str(), stdout);
    return kExitOk;
  }
  std::printf("%s\nstep %lld, saved %s by %s, %s in %s\n",
              path.c_str(),
              static_cast<long long>(manifest.step),
              time_text(manifest.saved_at).c_str(),
              counted(static_cast<std::size_t>(manifest.ranks), "rank").c_str(),
              size_text(manifest.size_bytes()).c_str(),
              counted(manifest.files.size(), "file").c_str());
  print_kinds(manifest);
  print_notes(manifest);
  print_tensors(manifest);
  print_files(manifest);
  return kExitOk;
}

}  // namespace trireme::tools
