#include "trireme/checkpoint/tensor_source.h"

#include <cstring>
#include <map>
#include <unordered_set>

#include "checkpoint/convert.h"
#include "checkpoint/mapped_tensors.h"
#include "trireme/checkpoint/checkpoint_reader.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

class CheckpointTensors final : public TensorSource {
 public:
  enum class Choice { kWeights, kAverages, kAll };

  CheckpointTensors(const std::string& checkpoint, Choice choice)
      : TensorSource(checkpoint), reader_(checkpoint) {
    const Manifest& manifest = reader_.manifest();
    std::map<std::string, const SavedTensor*> averages;
    for (const SavedTensor& each : manifest.tensors) {
      if (choice == Choice::kAverages && each.tensor.kind == kAverageKind) {
        averages[each.tensor.name] = &each;
      }
    }
    TRIREME_CHECK(choice != Choice::kAverages || !averages.empty(),
                  "\"{}\" has no moving averages: the run kept none (trireme train --ema-decay)",
                  {checkpoint});
    for (const SavedTensor& each : manifest.tensors) {
      const bool weight = each.tensor.kind == kWeightKind;
      if (!weight && each.tensor.kind != kBufferKind && choice != Choice::kAll) {
        continue;
      }
      const auto average = averages.find(each.tensor.name);
      add(each, weight && average != averages.end() ? *average->second : each);
    }
    TRIREME_CHECK(!tensors_.empty(), "\"", checkpoint, "\" has no weights");
    about_ = ModelNotes::from(manifest.notes, checkpoint);
    if (choice != Choice::kAll) {
      add_aliases();
    }
  }

  void read(std::size_t tensor, std::byte* out) const override {
    reader_.read(*saved_.at(tensor), out);
  }

 private:
  // `values` under the name of `named`.
  void add(const SavedTensor& named, const SavedTensor& values) {
    StateTensor tensor = values.tensor;
    tensor.kind = named.tensor.kind;
    tensor.strides.clear();  // as read() gives it
    tensors_.push_back(std::move(tensor));
    saved_.push_back(&values);
  }

  void add_aliases() {
    std::map<std::string, std::size_t> places;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      places[tensors_[i].name] = i;
    }
    for (const auto& [alias, name] : about_.aliases) {
      if (places.contains(name) && !places.contains(alias)) {
        tensors_.push_back(tensors_[places[name]]);
        tensors_.back().name = alias;
        saved_.push_back(saved_[places[name]]);
      }
    }
  }

  CheckpointReader reader_;
  std::vector<const SavedTensor*> saved_;
};

class ConvertedTensors final : public TensorSource {
 public:
  ConvertedTensors(std::unique_ptr<TensorSource> source, Dtype dtype)
      : TensorSource(source->path()), source_(std::move(source)) {
    tensors_ = source_->tensors();
    about_ = source_->about();
    for (StateTensor& tensor : tensors_) {
      tensor.strides.clear();
      tensor.dtype = detail::can_convert(tensor.dtype, dtype) ? dtype : tensor.dtype;
    }
  }

  void read(std::size_t tensor, std::byte* out) const override {
    const StateTensor& from = source_->tensors().at(tensor);
    const StateTensor& to = tensors_[tensor];
    if (from.dtype == to.dtype) {
      source_->read(tensor, out);
      return;
    }
    std::vector<std::byte> values(from.size_bytes());
    source_->read(tensor, values.data());
    detail::convert(from.dtype, values.data(), to.dtype, out, from.numel());
  }

 private:
  std::unique_ptr<TensorSource> source_;
};

// What LibTorch calls the buffers of its own modules: batch norms and instance norms.
bool is_called_like_a_buffer(const std::string& name) {
  const std::string last = name.substr(name.rfind('.') + 1);
  return last == "running_mean" || last == "running_var" || last == "num_batches_tracked";
}

}  // namespace

namespace detail {

MappedTensors::MappedTensors(const std::string& path,
                             const std::function<bool(const std::string& name)>& skipped)
    : TensorSource(path), file_(path, skipped) {
  about_ = ModelNotes::from(file_.metadata(), path);
  const bool listed = about_.buffers.has_value();
  const auto names = about_.buffers.value_or(std::vector<std::string>{});
  const std::unordered_set<std::string> buffers(names.begin(), names.end());
  for (const TensorEntry& entry : file_.entries()) {
    const bool buffer = listed ? buffers.contains(entry.name) : is_called_like_a_buffer(entry.name);
    tensors_.push_back(
        {buffer ? kBufferKind : kWeightKind, entry.name, entry.dtype, entry.shape, {}});
    places_.push_back(file_.tensor(entry.name).bytes());
  }
}

void MappedTensors::read(std::size_t tensor, std::byte* out) const {
  std::memcpy(out, places_.at(tensor), tensors_[tensor].size_bytes());
}

}  // namespace detail

std::unique_ptr<TensorSource> weights_of_checkpoint(const std::string& checkpoint, bool averages) {
  using Choice = CheckpointTensors::Choice;
  return std::make_unique<CheckpointTensors>(checkpoint,
                                             averages ? Choice::kAverages : Choice::kWeights);
}

std::unique_ptr<TensorSource> state_of_checkpoint(const std::string& checkpoint) {
  return std::make_unique<CheckpointTensors>(checkpoint, CheckpointTensors::Choice::kAll);
}

std::unique_ptr<TensorSource> weights_of_safetensors(const std::string& file) {
  return std::make_unique<detail::MappedTensors>(file);
}

std::unique_ptr<TensorSource> converted(std::unique_ptr<TensorSource> source, Dtype dtype) {
  TRIREME_CHECK(detail::can_convert(Dtype::kFloat32, dtype),
                "expected float32, float64, float16 or bfloat16, found ",
                dtype_name(dtype));
  return std::make_unique<ConvertedTensors>(std::move(source), dtype);
}

}  // namespace trireme
