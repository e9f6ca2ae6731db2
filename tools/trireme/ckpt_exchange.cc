#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "checkpoint_place.h"
#include "ckpt.h"
#include "sibling.h"
#include "trireme/core/error.h"
#include "trireme/core/output_file.h"
#include "trireme/exchange/gpt2_names.h"
#include "trireme/exchange/weights_exchange.h"
#include "trireme/launch/launcher.h"
#include "trireme/observe/progress_line.h"
#include "trireme/settings/model_kinds.h"
#include "trireme/settings/settings_table.h"

namespace trireme::tools {
namespace {

namespace fs = std::filesystem;
using detail::concat;
using Source = std::unique_ptr<TensorSource>;

Dtype dtype_called(const std::string& name) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kFloat16, Dtype::kBFloat16}) {
    if (name == dtype_name(dtype)) {
      return dtype;
    }
  }
  throw ConfigError(
      concat("--dtype: expected float32, float64, float16 or bfloat16, found \"", name, "\""));
}

// The settings of the training that made a checkpoint or a file of weights; nothing where neither
// it nor the folder around it tells.
std::optional<TrainSettings> settings_behind(const std::string& path) {
  std::string text;
  std::string from = path;
  if (!is_weights_file(path)) {
    const Notes notes = Manifest::read(path).notes;
    const auto note = notes.find("settings");
    text = note == notes.end() ? "" : note->second;
  }
  if (const std::string run = run_around(path); text.empty() && !run.empty()) {
    from = run + "/config.json";
    std::ifstream file(from);
    std::ostringstream content;
    content << file.rdbuf();
    text = content.str();
  }
  if (text.empty()) {
    return std::nullopt;
  }
  return recorded_settings(text, from);
}

// The heads of a gpt, which its tensors do not tell; nothing where nobody says it.
std::optional<std::int64_t> heads_behind(const std::string& path) {
  auto settings = settings_behind(path);
  if (!settings || settings->model != "gpt") {
    return std::nullopt;
  }
  fill_in_size(*settings);
  return settings->heads;
}

std::string format_of(const ExportOptions& options) {
  if (options.format != "auto") {
    return options.format;
  }
  const std::string ending = fs::path(options.out).extension().string();
  if (ending == ".pt" || ending == ".pth") {
    return "torch";
  }
  TRIREME_CHECK(ending.empty() || ending == ".safetensors",
                "expected a file of safetensors (.safetensors, or no ending) or of torch (.pt, "
                ".pth), found \"{}\": change the name, or say which it is to be with --format",
                {options.out});
  return "safetensors";
}

// Else it is a folder, which is made.
bool is_one_file(const ExportOptions& options, const std::string& format) {
  return format != "gpt2" || fs::path(options.out).extension() == ".safetensors";
}

void refuse_to_replace(const ExportOptions& options, const std::string& format) {
  TRIREME_CHECK(!is_standard_output(options.out),
                "expected the file or folder to write, found \"{}\": weights are not text, and "
                "are not written to standard output",
                {options.out});
  std::error_code error;
  TRIREME_CHECK(
      !is_one_file(options, format) || !fs::is_directory(options.out, error),
      "expected the name of a file, which is what the format {} is, found the folder "
      "\"{}\": name a file in it, such as \"{}\"",
      {format,
       options.out,
       (fs::path(options.out) / (format == "torch" ? "model.pt" : "model.safetensors")).string()});
  TRIREME_CHECK(options.force || !fs::exists(options.out, error),
                "\"{}\" already exists: choose another name, or replace it with --force",
                {options.out});
}

Source weights_at(const ExportOptions& options, const std::string& path) {
  Source source;
  if (is_weights_file(path)) {
    TRIREME_CHECK(!options.average,
                  "--average: a file of weights has no moving averages, found \"",
                  path,
                  "\": name a checkpoint, or the run's average.safetensors");
    source = weights_of_safetensors(path);
  } else {
    source = weights_of_checkpoint(path, options.average);
  }
  return options.dtype.empty() ? std::move(source)
                               : converted(std::move(source), dtype_called(options.dtype));
}

std::string summary_of(const TensorSource& source) {
  std::size_t bytes = 0;
  for (const StateTensor& tensor : source.tensors()) {
    bytes += tensor.size_bytes();
  }
  return concat(source.tensors().size(),
                source.tensors().size() == 1 ? " tensor, " : " tensors, ",
                megabytes_text(static_cast<std::int64_t>(bytes)),
                ", from ",
                source.path());
}

// Throws ConfigError where no file can be made at this path, before much is done in vain.
void check_output(const std::string& path) {
  std::string probe = path + ".XXXXXX";
  const FileDescriptor made(mkstemp(probe.data()));
  TRIREME_CHECK(made.valid(),
                "expected a place for the output, where a file can be made, found \"{}\": {}",
                {path, detail::errno_text(errno)});
  unlink(probe.c_str());
}

// The folders that are missing on the way to this one; where it fails to be filled, they go again.
class MadeFolders {
 public:
  explicit MadeFolders(const fs::path& folder) {
    std::error_code error;
    for (fs::path part = folder; !part.empty() && !fs::exists(part, error);
         part = part.parent_path()) {
      made_.push_back(part);
    }
  }
  MadeFolders(const MadeFolders&) = delete;
  MadeFolders& operator=(const MadeFolders&) = delete;
  ~MadeFolders() {
    std::error_code error;
    for (const fs::path& each : made_) {
      fs::remove(each / "model.safetensors", error);  // of which the config.json is missing
      fs::remove(each, error);                        // if nothing else is in it
    }
  }
  void keep() { made_.clear(); }

 private:
  std::vector<fs::path> made_;
};

// A file, or a folder as Hugging Face's from_pretrained takes it.
void export_gpt2(const ExportOptions& options, Source ours, const std::string& path) {
  const GptSizes sizes = gpt_sizes(*ours);
  const auto heads = options.heads ? options.heads : heads_behind(path);
  const Source theirs = as_gpt2(std::move(ours));
  std::string out = options.out;
  std::string config;
  const bool is_folder = fs::path(out).extension() != ".safetensors";
  MadeFolders made(is_folder ? out : "");
  if (is_folder) {
    TRIREME_CHECK(heads,
                  "a Hugging Face folder has a config.json, which says how many heads the gpt has, "
                  "but \"{}\" is not in the folder of a run that says so: give --heads N",
                  {path});
    config = gpt2_config(sizes, *heads);
    std::error_code error;
    fs::create_directories(out, error);
    TRIREME_CHECK(!error, "the folder \"", out, "\" could not be created: ", error.message());
    out += "/model.safetensors";
  }
  std::map<std::string, std::string> metadata;
  if (heads) {
    gpt2_config(sizes, *heads);  // refuses a wrong number
    metadata["n_head"] = std::to_string(*heads);
  }
  export_safetensors(*theirs, out, metadata);
  if (!config.empty()) {
    write_output(options.out + "/config.json", config, "ckpt export");
  }
  made.keep();
  std::printf("%s: %s\n", out.c_str(), summary_of(*theirs).c_str());
}

bool is_zip(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char begin[4] = {};
  file.read(begin, sizeof(begin));
  return std::string(begin, sizeof(begin)) == std::string("PK\3\4");
}

Source open_import(const ImportOptions& options) {
  if (options.format != "safetensors") {
    Source theirs = weights_of_gpt2_file(options.file);
    if (options.format == "gpt2" || has_gpt2_names(*theirs)) {
      return from_gpt2(std::move(theirs), options.untied);
    }
  }
  return weights_of_safetensors(options.file);
}

// Weights are no state that a run can go on from: among its checkpoints, they would be what the
// next resume takes and fails with.
void refuse_run(const std::string& folder) {
  const std::string run = run_around(folder);
  TRIREME_CHECK(run.empty(),
                "expected a folder of its own for the imported weights, found \"{}\" of the run "
                "\"{}\", which could not resume from weights alone: import them elsewhere, and "
                "train with --weights-from",
                {folder, run});
}

}  // namespace

int export_weights(const ExportOptions& options) {
  const std::string path = is_weights_file(options.source)
                               ? options.source
                               : checkpoint_at(options.source, options.step);
  const std::string format = format_of(options);
  refuse_to_replace(options, format);
  TRIREME_CHECK(!options.heads || format == "gpt2", "--heads: it applies to --format gpt2 only");
  Source source = weights_at(options, path);
  if (is_one_file(options, format)) {
    check_output(options.out);
  }
  if (format == "torch") {
    std::vector<std::string> words = {"export-archive", path, options.out};
    if (options.average) {
      words.emplace_back("--average");
    }
    if (!options.dtype.empty()) {
      words.insert(words.end(), {"--dtype", options.dtype});
    }
    return run_worker(words);
  }
  if (format == "gpt2") {
    export_gpt2(options, std::move(source), path);
    return kExitOk;
  }
  export_safetensors(*source, options.out);
  std::printf("%s: %s\n", options.out.c_str(), summary_of(*source).c_str());
  return kExitOk;
}

int import_file(const ImportOptions& given) {
  ImportOptions options = given;
  std::error_code error;
  if (fs::is_directory(options.file,
                       error)) {  // as `export --format gpt2` and Hugging Face make it
    options.file = (fs::path(options.file) / "model.safetensors").string();
  }
  TRIREME_CHECK(is_weights_file(options.file),
                "expected a file of weights, or a folder with model.safetensors in it, found "
                "nothing at \"{}\"",
                {options.file});
  const fs::path inside = fs::path(options.folder) / "checkpoints";
  const std::string folder = fs::is_directory(inside) ? inside.string() : options.folder;
  refuse_run(folder);
  if (options.format == "torch" || (options.format == "auto" && is_zip(options.file))) {
    TRIREME_CHECK(!options.untied, "--untied: it applies to GPT-2's names only");
    return run_worker({"import-archive", options.file, folder, std::to_string(options.step)});
  }
  const Source source = open_import(options);
  const std::string made = import_weights(*source, folder, options.step);
  std::printf("%s: %s\n", made.c_str(), summary_of(*source).c_str());
  return kExitOk;
}

}  // namespace trireme::tools
