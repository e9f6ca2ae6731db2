#include <algorithm>
#include <limits>

#include "data/batch_layout.h"
#include "data/class_names.h"
#include "data/data_faults.h"
#include "data/gzip.h"
#include "data/libsvm_like.h"
#include "data/text_lines.h"
#include "trireme/data/preprocessing.h"

namespace trireme {
namespace {

using detail::concat;
using detail::shown;
using detail::throw_text_error;

// Takes the next word off the front of `line`; empty at its end.
std::string_view take_word(std::string_view& line) {
  const char* begin = std::find_if_not(line.begin(), line.end(), detail::is_blank);
  const char* end = std::find_if(begin, line.end(), detail::is_blank);
  const std::string_view word(begin, static_cast<std::size_t>(end - begin));
  line.remove_prefix(static_cast<std::size_t>(end - line.begin()));
  return word;
}

// A line that cannot be used, where that is, and why. Other lines of the file may be no better.
struct BadLine {
  const char* place;
  std::string message;
};

[[noreturn]] void refuse(const char* place, std::string message) {
  throw BadLine{place, std::move(message)};
}

std::string_view without_comment(std::string_view line) {
  return line.substr(0, line.find('#'));
}

class LibsvmDataset final : public Dataset {
 public:
  // `training`: what the file has to be like; null: it is the training file.
  LibsvmDataset(const std::string& path,
                const LibsvmOptions& options,
                const Preprocessing* training,
                NewDataOptions::Targets targets)
      : file_(detail::plain_file(path)),
        regression_(options.regression),
        known_features_(options.features) {
    shape_.kind = SampleKind::kSparse;
    shape_.features = known_features_;
    if (training != nullptr && !regression_) {
      names_ = std::make_shared<const detail::ClassNames>(training->classes);
    }
    ignores_labels_ = targets == NewDataOptions::Targets::kNo;
    labelled_ = targets == NewDataOptions::Targets::kYes ||
                (targets == NewDataOptions::Targets::kAutomatic && begins_with_label());
    try {
      index();
    } catch (const BadLine& bad) {
      name_bad_lines(bad);
    }
    check_pairs(options.check);
    shape_.classes = regression_ ? 0 : names_->size();
    file_.advise_random_reads();
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(offsets_.size()); }
  const SampleShape& shape() const override { return shape_; }

  std::int64_t label(std::int64_t sample) const override {
    TRIREME_CHECK(!regression_, "the samples have numbers to predict, not classes");
    detail::check_sample(sample, size());
    return labelled_ ? labels_[static_cast<std::size_t>(sample)] : 0;
  }

  std::vector<std::string> class_names() const override {
    return names_ == nullptr ? std::vector<std::string>() : names_->words();
  }

  Preprocessing preprocessing() const override {
    Preprocessing all;
    all.format = "libsvm";
    all.shape = shape_;
    all.classes = class_names();
    return all;
  }

  bool has_targets() const { return labelled_; }

  void read(std::span<const std::int64_t> samples, Batch& batch) const override {
    detail::lay_out(batch, shape_, samples, size());
    batch.offsets[0] = 0;
    for (std::size_t row = 0; row < samples.size(); ++row) {
      const auto sample = static_cast<std::size_t>(samples[row]);
      if (regression_) {
        batch.targets[row] = labelled_ ? targets_[sample] : 0;
      } else {
        batch.labels[row] = labelled_ ? labels_[sample] : 0;
      }
      try {
        read_line(detail::line_at(file_, file_.begin() + offsets_[sample]), batch);
      } catch (const BadLine& bad) {
        name_bad_lines(bad);
      }
      batch.offsets[row + 1] = static_cast<std::int64_t>(batch.indices.size());
    }
  }

 private:
  // Whether the first row has a label before its pairs.
  bool begins_with_label() const {
    const char* from = detail::text_begin(file_);
    while (auto line = detail::next_line(file_, from)) {
      std::string_view rest = without_comment(*line);
      if (const std::string_view word = take_word(rest); !word.empty()) {
        return word.find(':') == std::string_view::npos;
      }
    }
    return true;
  }

  // One pass over the lines: where each begins, its label, and its last index, the largest.
  void index() {
    file_.advise_one_pass();
    const bool find_names = !regression_ && names_ == nullptr;
    auto names = std::make_shared<detail::ClassNames>();
    std::int64_t largest = 0;
    const char* from = detail::text_begin(file_);
    while (auto line = detail::next_line(file_, from)) {
      std::string_view rest = without_comment(*line);
      std::string_view after = rest;
      const std::string_view label = take_word(after);
      if (label.empty()) {
        continue;  // a comment alone
      }
      offsets_.push_back(file_.offset_of(line->data()));
      if (labelled_) {
        rest = after;
        add_target(label, find_names ? names.get() : nullptr);
      }
      const std::size_t colon = rest.rfind(':');
      if (colon != std::string_view::npos) {
        const std::size_t blank = rest.find_last_of(" \t", colon);
        largest = std::max(largest, index_in(rest.substr(blank + 1, colon - blank - 1)));
      }
    }
    if (offsets_.empty()) {
      throw_text_error(
          file_, file_.begin(), "expected lines \"label index:value ...\", found none");
    }
    if (shape_.features == 0 && largest == 0) {
      throw_text_error(
          file_, file_.begin(), "expected at least one index:value in the file, found none");
    }
    shape_.features = std::max(shape_.features, largest);
    if (find_names) {
      const std::vector<std::int32_t> classes = names->classes_in_order();
      for (std::int32_t& label : labels_) {
        label = classes[static_cast<std::size_t>(label)];
      }
      names_ = std::move(names);
    }
  }

  // All pairs of the file, of which this is one of the parts that look at them.
  void check_pairs(const SharedCheck& check) const {
    const auto count = static_cast<std::int64_t>(offsets_.size());
    const auto at = [&](std::int64_t row) {
      return row < count ? file_.begin() + offsets_[static_cast<std::size_t>(row)] : file_.end();
    };
    detail::DataFaults faults =
        faults_in(at(count * check.part / check.parts), at(count * (check.part + 1) / check.parts));
    if (check.parts > 1) {
      detail::DataFaults all;
      for (const std::string& text : check.exchange(faults.empty() ? "" : faults.text())) {
        all.append(detail::DataFaults::of_text(text));
      }
      faults = std::move(all);
    }
    if (!faults.empty()) {
      faults.throw_error(file_);
    }
  }

  // All that is wrong with the file: it has been read only as far as `first`, and not every pair of
  // the lines before it.
  [[noreturn]] void name_bad_lines(const BadLine& first) const {
    const detail::DataFaults faults = faults_in(detail::text_begin(file_), file_.end());
    TRIREME_ASSERT(!faults.empty(), first.message);
    faults.throw_error(file_);
  }

  // Of the lines that begin in a stretch of the file.
  detail::DataFaults faults_in(const char* from, const char* end) const {
    detail::DataFaults faults;
    Batch scratch;
    while (from < end) {
      const auto line = detail::next_line(file_, from);
      if (!line) {
        break;
      }
      try {
        std::string_view rest = without_comment(*line);
        const std::string_view label = take_word(rest);
        if (!label.empty() && labelled_) {
          number_in(label);
          if (!regression_ && names_ != nullptr) {
            known_class(label);
          }
        }
        scratch.indices.clear();
        scratch.values.clear();
        read_line(*line, scratch);
      } catch (const BadLine& bad) {
        faults.add([&] { return detail::DataFault{file_.offset_of(bad.place), bad.message, ""}; });
      }
    }
    return faults;
  }

  // `found`: where new classes are counted; null: they are known.
  void add_target(std::string_view label, detail::ClassNames* found) {
    const double number = number_in(label);
    if (regression_) {
      targets_.push_back(static_cast<float>(number));
    } else {
      labels_.push_back(found != nullptr ? found->add(label) : known_class(label));
    }
  }

  double number_in(std::string_view label) const {
    if (label.find(':') != std::string_view::npos) {
      refuse(label.data(),
             concat("expected a label at the start of the line, found {}: it is missing",
                    {shown(label)}));
    }
    const auto number = detail::parse_number(label);
    if (!number || (regression_ && std::abs(*number) > std::numeric_limits<float>::max())) {
      refuse(label.data(),
             concat("expected a {}, found {}",
                    {regression_ ? "finite number to predict" : "number as label", shown(label)}));
    }
    return *number;
  }

  std::int32_t known_class(std::string_view label) const {
    const auto known = names_->class_of(label);
    if (!known) {
      refuse(label.data(),
             concat("expected a label of the training file ({}), found {}",
                    {names_->list(), shown(label)}));
    }
    return *known;
  }

  std::int64_t index_in(std::string_view text) const {
    std::int64_t index = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
    if (text.empty() || error != std::errc() || end != text.data() + text.size() || index < 1) {
      refuse(text.data(),
             concat("expected an index, a whole number from 1, found ",
                    shown(text),
                    text == "0" ? ": libsvm counts from 1, add 1 to all indices" : ""));
    }
    // Where the number is that of this file itself, only indices that do not ascend exceed it.
    if (known_features_ > 0 && index > known_features_) {
      refuse(text.data(),
             concat("expected an index of at most {} (the number of features), found {}",
                    {known_features_, index}));
    }
    return index;
  }

  void read_line(std::string_view line, Batch& batch) const {
    std::string_view rest = without_comment(line);
    std::string_view after = rest;
    const std::string_view first = take_word(after);
    if (labelled_ || (ignores_labels_ && first.find(':') == std::string_view::npos)) {
      rest = after;
    }
    std::int64_t before = 0;
    for (std::string_view word = take_word(rest); !word.empty(); word = take_word(rest)) {
      const std::size_t colon = word.find(':');
      if (colon == std::string_view::npos) {
        refuse(word.data(), concat("expected index:value, found ", shown(word)));
      }
      const std::int64_t index = index_in(word.substr(0, colon));
      if (index <= before) {
        refuse(word.data(),
               concat("expected an index above ", before, ", the one before it, found ", index));
      }
      before = index;
      const auto value = detail::parse_number(word.substr(colon + 1));
      if (!value || std::abs(*value) > std::numeric_limits<float>::max()) {
        refuse(word.data() + colon + 1,
               concat("expected a finite number as value, found ", shown(word.substr(colon + 1))));
      }
      batch.indices.push_back(index - 1);
      batch.values.push_back(static_cast<float>(*value));
    }
  }

  detail::MappedFile file_;
  SampleShape shape_{};
  std::vector<std::int64_t> offsets_;  // of lines
  bool regression_;
  std::int64_t known_features_;  // 0: as many as this file has
  bool labelled_ = true;
  bool ignores_labels_ = false;       // whatever is there
  std::vector<std::int32_t> labels_;  // of classes
  std::vector<float> targets_;        // of numbers to predict
  std::shared_ptr<const detail::ClassNames> names_;
};

}  // namespace

std::shared_ptr<Dataset> open_libsvm(const std::string& file, const LibsvmOptions& options) {
  TRIREME_CHECK(options.features >= 0, "features cannot be negative, found ", options.features);
  return std::make_shared<LibsvmDataset>(file, options, nullptr, NewDataOptions::Targets::kYes);
}

NewData detail::open_libsvm_like(const Preprocessing& training,
                                 const std::string& file,
                                 NewDataOptions::Targets targets,
                                 const SharedCheck& check) {
  const LibsvmOptions options{training.shape.features, training.shape.classes == 0, check};
  const auto data = std::make_shared<LibsvmDataset>(file, options, &training, targets);
  NewData opened{data, data->has_targets()};
  if (!opened.has_targets && targets == NewDataOptions::Targets::kAutomatic) {
    opened.notes.push_back(file + " has no labels: its lines begin with index:value");
  }
  return opened;
}

}  // namespace trireme
