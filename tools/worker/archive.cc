#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "trireme/archive/torch_archive.h"
#include "trireme/core/error.h"
#include "trireme/exchange/weights_exchange.h"
#include "trireme/launch/launcher.h"
#include "trireme/observe/progress_line.h"
#include "worker.h"

namespace trireme::worker {
namespace {

Dtype dtype_called(const std::string& name) {
  for (int i = 0; i < kDtypeCount; ++i) {
    if (dtype_name(static_cast<Dtype>(i)) == name) {
      return static_cast<Dtype>(i);
    }
  }
  throw ConfigError(detail::concat("--dtype: expected a type like float32, found ", name));
}

void report(const std::string& made, const TensorSource& source) {
  std::size_t bytes = 0;
  for (const StateTensor& tensor : source.tensors()) {
    bytes += tensor.size_bytes();
  }
  std::printf("%s: %zu tensors, %s, from %s\n",
              made.c_str(),
              source.tensors().size(),
              megabytes_text(static_cast<std::int64_t>(bytes)).c_str(),
              source.path().c_str());
}

}  // namespace

int export_archive(const std::vector<std::string>& arguments) {
  TRIREME_CHECK(arguments.size() >= 2, "export-archive: expected SOURCE OUT");
  bool averages = false;
  std::string dtype;
  for (std::size_t i = 2; i < arguments.size(); ++i) {
    if (arguments[i] == "--average") {
      averages = true;
    } else if (arguments[i] == "--dtype" && i + 1 < arguments.size()) {
      dtype = arguments[++i];
    } else {
      throw ConfigError("export-archive: found " + arguments[i]);
    }
  }
  const std::string& from = arguments[0];
  std::unique_ptr<TensorSource> source = std::filesystem::is_directory(from)
                                             ? weights_of_checkpoint(from, averages)
                                             : weights_of_safetensors(from);
  if (!dtype.empty()) {
    source = converted(std::move(source), dtype_called(dtype));
  }
  if (!source->about().empty_modules) {
    std::fprintf(
        stderr,
        "trireme: warning: \"%s\" does not say which modules of the model have no tensors (such as "
        "a Dropout): torch::load into a model that has such modules will fail to find them\n",
        from.c_str());
  }
  export_torch_archive(*source, arguments[1]);
  report(arguments[1], *source);
  return kExitOk;
}

int import_archive(const std::vector<std::string>& arguments) {
  TRIREME_CHECK(arguments.size() == 3, "import-archive: expected FILE FOLDER STEP");
  const auto source = open_torch_archive(arguments[0]);
  const std::string made =
      import_weights(*source, arguments[1], std::strtoll(arguments[2].c_str(), nullptr, 10));
  report(made, *source);
  return kExitOk;
}

}  // namespace trireme::worker
