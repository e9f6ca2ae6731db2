#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "trireme/checkpoint/model_notes.h"
#include "trireme/shard/state_view.h"

namespace trireme {

// Tensors by name, wherever they are: in a checkpoint, in a safetensors file, in an archive of
// LibTorch. They are read one at a time, so that nobody has to hold all of them.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  TensorSource(const TensorSource&) = delete;
  TensorSource& operator=(const TensorSource&) = delete;

  // Where they are from, for messages.
  const std::string& path() const { return path_; }
  const std::vector<StateTensor>& tensors() const { return tensors_; }
  // Aliases are among the tensors.
  const ModelNotes& about() const { return about_; }

  // All elements of one, row by row. `out` has its bytes.
  virtual void read(std::size_t tensor, std::byte* out) const = 0;
  // Where the elements of one already are, in the order of its strides, as long as this lives;
  // null: only read() has them.
  virtual const std::byte* memory(std::size_t /*tensor*/) const { return nullptr; }

 protected:
  explicit TensorSource(std::string path) : path_(std::move(path)) {}

  std::string path_;
  std::vector<StateTensor> tensors_;
  ModelNotes about_;
};

// The weights and buffers of a checkpoint. `averages`: moving averages in the place of the weights
// that have one; throws ConfigError where none has.
std::unique_ptr<TensorSource> weights_of_checkpoint(const std::string& checkpoint,
                                                    bool averages = false);

// Everything that a checkpoint holds: optimizer states and so on, too.
std::unique_ptr<TensorSource> state_of_checkpoint(const std::string& checkpoint);

// The tensors of a file. Which are buffers, its metadata says (ModelNotes); without it, those
// that are called as the buffers of LibTorch's modules are. Throws DataError.
std::unique_ptr<TensorSource> weights_of_safetensors(const std::string& file);

// The same in another floating-point type; integers stay as they are.
std::unique_ptr<TensorSource> converted(std::unique_ptr<TensorSource> source, Dtype dtype);

}  // namespace trireme
