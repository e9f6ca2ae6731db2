#include "trireme/archive/torch_archive.h"

#include <algorithm>
#include <cstring>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/serialize/output-archive.h>

#include "archive/zip_check.h"
#include "checkpoint/durable.h"
#include "trireme/core/error.h"
#include "trireme/core/file_write.h"
#include "trireme/core/partial_file.h"
#include "trireme/tensor/span.h"

namespace trireme {
namespace {

using detail::concat;
using torch::serialize::OutputArchive;

// Modules and their tensors, as the dots in the names say.
struct Tree {
  std::map<std::string, std::size_t> tensors;
  std::map<std::string, Tree> children;
};

class TreeBuilder {
 public:
  explicit TreeBuilder(const std::string& path) : path_(path) {}

  void add_module(const std::string& name) { place_of(name + ".x", name); }

  void add_tensor(const std::string& name, std::size_t tensor) {
    Tree& tree = place_of(name, name);
    const std::string last = name.substr(name.rfind('.') + 1);
    check(!last.empty() && !tree.children.contains(last) && is_plain(last), name);
    tree.tensors[last] = tensor;
  }

  const Tree& tree() const { return root_; }

 private:
  // Names become identifiers and quoted texts of a program in the archive.
  static bool is_plain(const std::string& part) {
    return std::none_of(part.begin(), part.end(), [](char letter) {
      return letter == '"' || letter == '\\' || static_cast<unsigned char>(letter) < ' ';
    });
  }

  void check(bool good, const std::string& name) const {
    TRIREME_CHECK(good,
                  "\"{}\": a tensor called \"{}\" has no place in an archive of modules; export it "
                  "as safetensors",
                  {path_, name});
  }

  // The module that holds what is called `name`.
  Tree& place_of(const std::string& name, const std::string& whole) {
    Tree* tree = &root_;
    std::size_t begin = 0;
    for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', begin)) {
      const std::string part = name.substr(begin, dot - begin);
      check(!part.empty() && !tree->tensors.contains(part) && is_plain(part), whole);
      tree = &tree->children[part];
      begin = dot + 1;
    }
    return *tree;
  }

  std::string path_;
  Tree root_;
};

void write_tree(const Tree& tree, const TensorSource& source, OutputArchive& archive) {
  for (const auto& [name, index] : tree.tensors) {
    const StateTensor& about = source.tensors()[index];
    at::Tensor values =
        at::empty(about.shape, at::TensorOptions().dtype(scalar_type_of(about.dtype)));
    source.read(index, static_cast<std::byte*>(values.mutable_data_ptr()));
    if (about.dtype == Dtype::kBool) {
      values = values.view(at::kByte).ne(0);  // as load_weights takes it
    }
    const bool buffer = about.kind == kBufferKind;
    if (!buffer && values.is_floating_point()) {
      values.requires_grad_(true);  // as those of a module
    }
    archive.write(name, values, buffer);
  }
  for (const auto& [name, child] : tree.children) {
    OutputArchive nested(archive.compilation_unit());
    write_tree(child, source, nested);
    archive.write(name, nested);
  }
}

// The first line says what happened; what follows is for whoever works on LibTorch.
std::string first_line(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(" \n");
  return begin == std::string::npos ? "" : text.substr(begin, text.find('\n', begin) - begin);
}

class ArchiveTensors final : public TensorSource {
 public:
  explicit ArchiveTensors(const std::string& path) : TensorSource(path) {
    detail::check_zip_file(path);
    try {
      module_ = torch::jit::load(path, at::Device(at::kCPU));
    } catch (const c10::Error& error) {
      fail(first_line(error.what_without_backtrace()));
    } catch (const std::exception& error) {
      fail(first_line(error.what()));
    }
    TRIREME_CHECK(!(module_.hasattr("param_groups") && module_.hasattr("state")),
                  "\"{}\": expected the archive of a module, found that of an optimizer",
                  {path});
    about_.empty_modules.emplace();
    walk(module_, "");
    TRIREME_CHECK(
        problems_.empty(), "\"", path, "\" holds types that Trireme does not have:", problems_);
    TRIREME_CHECK(!tensors_.empty(), "\"", path, "\" holds no tensors");
  }

  void read(std::size_t tensor, std::byte* out) const override {
    const at::Tensor values = values_.at(tensor).contiguous();
    std::memcpy(out, values.const_data_ptr(), values.nbytes());
  }
  const std::byte* memory(std::size_t tensor) const override {
    return static_cast<const std::byte*>(values_.at(tensor).const_data_ptr());
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw DataError(path_,
                    -1,
                    concat("\"{}\": expected an archive of a module, written by torch::save in "
                           "C++, found something else ({}); files of Python's torch.save are "
                           "different: write those with safetensors.torch.save_file",
                           {path_, reason}));
  }

  void walk(const torch::jit::Module& module, const std::string& prefix) {
    const auto type = module.type();
    bool empty = true;
    for (std::size_t i = 0; i < type->numAttributes(); ++i) {
      const std::string& name = type->getAttributeName(i);
      const c10::IValue value = module.attr(name);
      if (value.isModule()) {
        empty = false;
        walk(value.toModule(), prefix + name + ".");
      } else if (value.isTensor() && value.toTensor().defined()) {
        empty = false;
        add(prefix + name, value.toTensor().detach(), type->is_parameter(i));
      }
    }
    if (empty && !prefix.empty()) {
      about_.empty_modules->push_back(prefix.substr(0, prefix.size() - 1));
    }
  }

  void add(const std::string& name, at::Tensor values, bool parameter) {
    try {
      TRIREME_CHECK(values.layout() == at::kStrided && !values.is_quantized(), "not dense");
      const Dtype dtype = dtype_of(values.scalar_type());
      if (!values.is_non_overlapping_and_dense()) {
        values = values.contiguous();
      }
      std::vector<std::int64_t> strides;
      if (!values.is_contiguous()) {
        strides = values.strides().vec();
      }
      tensors_.push_back(
          {parameter ? kWeightKind : kBufferKind, name, dtype, values.sizes().vec(), strides});
      note_alias(name, values);
      values_.push_back(values);
    } catch (const ConfigError& error) {
      problems_ += concat("\n  ", name, ": ", error.what());
    }
  }

  // Parameters that modules shared have one memory in an archive, too.
  void note_alias(const std::string& name, const at::Tensor& values) {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (values.numel() > 0 && values_[i].const_data_ptr() == values.const_data_ptr() &&
          values_[i].sizes() == values.sizes() && values_[i].strides() == values.strides()) {
        about_.aliases.emplace(name, tensors_[i].name);
        return;
      }
    }
  }

  torch::jit::Module module_;
  std::vector<at::Tensor> values_;
  std::string problems_;
};

}  // namespace

void export_torch_archive(const TensorSource& source, const std::string& path) {
  TreeBuilder builder(source.path());
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    builder.add_tensor(source.tensors()[i].name, i);
  }
  for (const std::string& name :
       source.about().empty_modules.value_or(std::vector<std::string>{})) {
    builder.add_module(name);
  }
  PartialFile file(path);
  file.check_created();
  OutputArchive archive;
  write_tree(builder.tree(), source, archive);
  // LibTorch's writer cannot be stopped by an exception: it ends the program.
  std::exception_ptr failure;
  archive.save_to([&](const void* data, std::size_t bytes) {
    try {
      if (!failure) {
        write_all(file.get(), path, data, bytes);
      }
    } catch (...) {
      failure = std::current_exception();
    }
    return bytes;
  });
  if (failure) {
    std::rethrow_exception(failure);
  }
  file.finish();
  const std::size_t slash = path.rfind('/');
  detail::sync_folder(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

std::unique_ptr<TensorSource> open_torch_archive(const std::string& path) {
  return std::make_unique<ArchiveTensors>(path);
}

Notes module_notes(const torch::nn::Module& module) {
  ModelNotes about;
  about.empty_modules.emplace();
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    const torch::nn::Module& each = *item.value();
    const bool holds = !each.named_parameters(/*recurse=*/false).is_empty() ||
                       !each.named_buffers(/*recurse=*/false).is_empty() ||
                       !each.children().empty();
    if (!holds && each.is_serializable()) {
      about.empty_modules->push_back(item.key());
    }
  }
  about.buffers.emplace();
  for (const auto& item : module.named_buffers()) {
    about.buffers->push_back(item.key());
  }
  std::map<const c10::TensorImpl*, std::string> names;
  for (const auto& item : module.named_parameters()) {
    const auto [first, is_new] = names.emplace(item.value().unsafeGetTensorImpl(), item.key());
    if (!is_new) {
      about.aliases.emplace(item.key(), first->second);
    }
  }
  return about.to_notes();
}

}  // namespace trireme
