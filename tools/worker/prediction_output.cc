#include "prediction_output.h"

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <utility>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "trireme/core/error.h"

namespace trireme::worker {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using detail::concat;

// The links there are files that are open (/dev/stdout leads there), which have no other name that
// could be trusted.
bool in_proc(const std::string& path) {
  return path.starts_with("/proc/");
}

// What a path is once links are followed, also where the last one leads to nothing yet.
std::string followed(const std::string& path) {
  constexpr int kMostLinks = 40;  // as the system's
  fs::path at = path;
  for (int links = 0; links < kMostLinks; ++links) {
    std::error_code error;
    const fs::path folder = fs::canonical(at.has_parent_path() ? at.parent_path() : ".", error);
    if (!error) {
      at = folder / at.filename();
    }
    const fs::path next = in_proc(at.string()) ? fs::path() : fs::read_symlink(at, error);
    if (next.empty()) {
      break;
    }
    at = at.parent_path() / next;  // `next` alone where it is absolute
  }
  return at.string();
}

std::string cell(const std::string& text) {
  if (text.find_first_of(",\"\n\r") == std::string::npos && !text.starts_with(' ') &&
      !text.ends_with(' ')) {
    return text;
  }
  std::string quoted = "\"";
  for (const char letter : text) {
    quoted += letter == '"' ? "\"\"" : std::string(1, letter);
  }
  return quoted + '"';
}

class CsvFormat final : public PredictionFormat {
 public:
  explicit CsvFormat(const PredictionFacts& facts) : facts_(facts) {}

  std::string begin() override {
    std::string text = facts_.has_targets ? "row,target,prediction" : "row,prediction";
    for (const std::string& name : facts_.classes) {
      text += ',' + cell("probability_" + name);
    }
    return text + '\n';
  }
  std::string sample(const PredictedSample& sample) override {
    std::string text = std::to_string(sample.row);
    if (facts_.has_targets) {
      text += ',' + cell(sample.target);
    }
    text += ',' + cell(sample.prediction);
    for (const float probability : sample.probabilities) {
      text += ',' + number_text(probability);
    }
    return text + '\n';
  }
  std::string end(const std::optional<std::map<std::string, double>>& /*metrics*/) override {
    return {};
  }

 private:
  PredictionFacts facts_;
};

// A path may be any bytes; JSON has characters only.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The same of names, which have to stay different: one that is not UTF-8 is the list of its bytes,
// as in preprocessing.json.
Json name_json(const std::string& name) {
  try {
    Json(name).dump();
    return name;
  } catch (const Json::type_error&) {
    return Json(std::vector<unsigned char>(name.begin(), name.end()));
  }
}

// JSON has no numbers that are not finite.
std::string json_number(const std::string& text) {
  return text.find_first_of("nN") == std::string::npos ? text : "null";
}

// One object, written as it comes: a line for each sample.
class JsonFormat final : public PredictionFormat {
 public:
  explicit JsonFormat(const PredictionFacts& facts) : facts_(facts) {}

  std::string begin() override {
    Json head = {{"run", facts_.run}, {"weights", facts_.weights}, {"data", facts_.data}};
    for (const std::string& name : facts_.classes) {
      head["classes"].push_back(name_json(name));
    }
    std::string text = dump(head);
    text.pop_back();
    return text + ",\n\"predictions\":[";
  }
  std::string sample(const PredictedSample& sample) override {
    std::string text = concat(first_ ? "\n" : ",\n", "{\"row\":", sample.row);
    first_ = false;
    if (facts_.has_targets) {
      text += ",\"target\":" + value(sample.target);
    }
    text += ",\"prediction\":" + value(sample.prediction);
    if (!sample.probabilities.empty()) {
      text += ",\"probabilities\":[";
      for (std::size_t i = 0; i < sample.probabilities.size(); ++i) {
        text += (i == 0 ? "" : ",") + json_number(number_text(sample.probabilities[i]));
      }
      text += ']';
    }
    return text + '}';
  }
  std::string end(const std::optional<std::map<std::string, double>>& metrics) override {
    return concat("\n]", metrics ? ",\n\"metrics\":" + dump(Json(*metrics)) : "", "}\n");
  }

 private:
  // A class by its name, or a number as it is.
  std::string value(const std::string& text) const {
    return facts_.classes.empty() ? json_number(text) : dump(name_json(text));
  }

  PredictionFacts facts_;
  bool first_ = true;
};

}  // namespace

Output::Output(const std::string& path) : path_(path == "-" ? "" : path), file_(stdout) {
  if (path_.empty()) {
    return;
  }
  struct stat there {};
  const bool exists = stat(path.c_str(), &there) == 0;
  if (!exists && errno != ENOENT) {
    refuse();
  }
  target_ = followed(path);
  if (exists && (!S_ISREG(there.st_mode) || in_proc(target_))) {
    target_.clear();
    open_in_place();
    return;
  }
  partial_ = concat(target_, ".partial-", getpid());
  file_ = std::fopen(partial_.c_str(), "wb");
  if (file_ == nullptr) {
    refuse();
  }
  if (exists) {
    fchmod(fileno(file_), there.st_mode & 07777U);  // who may read it stays; no harm where it fails
  }
}

Output::~Output() {
  if (!path_.empty() && file_ != nullptr) {
    std::fclose(file_);
    if (!partial_.empty()) {
      unlink(partial_.c_str());
    }
  }
}

// Appended: what the shell has put into a file behind /dev/stdout stays.
void Output::open_in_place() {
  const int opened = open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  file_ = opened < 0 ? nullptr : fdopen(opened, "ab");
  if (file_ == nullptr) {
    refuse();
  }
}

void Output::refuse() const {
  const int error = errno;
  throw ConfigError(concat(
      "--output: expected a file that can be written, found \"{}\", which could not be opened: {}",
      {path_, detail::errno_text(error)}));
}

void Output::fail() const {
  const int error = errno;
  throw Error(concat(path_.empty() ? "standard output" : '"' + path_ + '"',
                     " could not be written: ",
                     detail::errno_text(error)));
}

void Output::write(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size()) {
    fail();
  }
}

void Output::finish() {
  if (std::fflush(file_) != 0) {
    fail();
  }
  if (path_.empty()) {
    return;
  }
  const bool kept = partial_.empty() || fsync(fileno(file_)) == 0;
  const bool closed = std::fclose(std::exchange(file_, nullptr)) == 0;
  if (kept && closed && (partial_.empty() || std::rename(partial_.c_str(), target_.c_str()) == 0)) {
    return;
  }
  const int error = errno;
  if (!partial_.empty()) {
    unlink(partial_.c_str());
  }
  errno = error;
  fail();
}

std::unique_ptr<PredictionFormat> prediction_format(const std::string& name,
                                                    const PredictionFacts& facts) {
  if (name == "json") {
    return std::make_unique<JsonFormat>(facts);
  }
  return std::make_unique<CsvFormat>(facts);
}

std::string number_text(float value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

}  // namespace trireme::worker
