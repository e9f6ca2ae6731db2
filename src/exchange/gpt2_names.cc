#include "trireme/exchange/gpt2_names.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>

#include <nlohmann/json.hpp>

#include "checkpoint/convert.h"
#include "checkpoint/mapped_tensors.h"
#include "exchange/same_values.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

using OrderedJson = nlohmann::ordered_json;
using Shape = std::vector<std::int64_t>;
using detail::concat;

constexpr const char* kModulePrefix = "transformer.";
constexpr const char* kOurHead = "head.weight";
constexpr const char* kTheirHead = "lm_head.weight";

// One tensor under both names.
struct Pair {
  std::string ours;
  std::string theirs;  // without prefix
  Shape shape;         // ours
  bool transposed = false;
};

// How a gpt is called by one side.
struct Names {
  const char* tokens;
  const char* places;
  const char* layer;  // and a number, and a dot
  const char* head;
};
constexpr Names kOurs = {"tokens.weight", "places.weight", "block", kOurHead};
constexpr Names kTheirs = {"wte.weight", "wpe.weight", "h.", kTheirHead};

void add_norm(std::vector<Pair>& pairs,
              const std::string& ours,
              const std::string& theirs,
              std::int64_t width) {
  for (const char* which : {".weight", ".bias"}) {
    pairs.push_back({ours + which, theirs + which, {width}});
  }
}

void add_layer(std::vector<Pair>& pairs,
               const std::string& ours,
               const std::string& theirs,
               std::int64_t out,
               std::int64_t in) {
  pairs.push_back({ours + ".weight", theirs + ".weight", {out, in}, /*transposed=*/true});
  pairs.push_back({ours + ".bias", theirs + ".bias", {out}});
}

// Everything a gpt of these sizes has.
std::vector<Pair> pairs_of(const GptSizes& sizes) {
  const std::int64_t width = sizes.width;
  std::vector<Pair> pairs = {{kOurs.tokens, kTheirs.tokens, {sizes.vocabulary, width}},
                             {kOurs.places, kTheirs.places, {sizes.sequence, width}}};
  for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
    const std::string ours = concat(kOurs.layer, layer, ".");
    const std::string theirs = concat(kTheirs.layer, layer, ".");
    add_norm(pairs, ours + "norm1", theirs + "ln_1", width);
    add_layer(pairs, ours + "qkv", theirs + "attn.c_attn", 3 * width, width);
    add_layer(pairs, ours + "out", theirs + "attn.c_proj", width, width);
    add_norm(pairs, ours + "norm2", theirs + "ln_2", width);
    add_layer(pairs, ours + "up", theirs + "mlp.c_fc", 4 * width, width);
    add_layer(pairs, ours + "down", theirs + "mlp.c_proj", width, 4 * width);
  }
  add_norm(pairs, "norm", "ln_f", width);
  if (!sizes.tied) {
    pairs.push_back({kOurHead, kTheirHead, {sizes.vocabulary, width}});
  }
  return pairs;
}

std::string without_prefix(const std::string& name) {
  return name.starts_with(kModulePrefix) ? name.substr(std::strlen(kModulePrefix)) : name;
}

// The number N of "block" N ".": nothing where it is none.
std::optional<std::int64_t> layer_in(const std::string& name, const std::string& layer) {
  if (!name.starts_with(layer)) {
    return std::nullopt;
  }
  std::int64_t number = -1;
  const char* end = name.data() + name.size();
  const auto result = std::from_chars(name.data() + layer.size(), end, number);
  const bool good = result.ec == std::errc() && result.ptr != end && *result.ptr == '.' &&
                    name.starts_with(concat(layer, number, "."));
  return good && number >= 0 ? std::optional(number) : std::nullopt;
}

// The causal masks, constants that old files hold.
bool is_mask(const std::string& name) {
  const std::string plain = without_prefix(name);
  const auto layer = layer_in(plain, kTheirs.layer);
  return layer && (plain == concat(kTheirs.layer, *layer, ".attn.bias") ||
                   plain == concat(kTheirs.layer, *layer, ".attn.masked_bias"));
}

std::string text_of(const Shape& shape) {
  return "[" + detail::listed(shape) + "]";
}

// A source's tensors by the names that a side calls them.
using Index = std::map<std::string, std::size_t>;

Index index_of(const TensorSource& source, bool theirs) {
  Index index;
  for (std::size_t i = 0; i < source.tensors().size(); ++i) {
    const std::string& name = source.tensors()[i].name;
    const std::string plain = theirs ? without_prefix(name) : name;
    if (theirs && is_mask(name)) {
      continue;
    }
    TRIREME_CHECK(index.emplace(plain, i).second,
                  "\"{}\" has the tensor {} twice, with and without \"{}\" in front",
                  {source.path(), plain, kModulePrefix});
  }
  return index;
}

GptSizes sizes_of(const TensorSource& source, const Index& index, const Names& names) {
  GptSizes sizes;
  const auto table = [&](const char* name) -> Shape {
    const auto found = index.find(name);
    Shape shape = found == index.end() ? Shape{} : source.tensors()[found->second].shape;
    TRIREME_CHECK(
        shape.size() == 2,
        "\"{}\": expected the weights of a gpt, with a table {}, found {}; its first tensor is {}",
        {source.path(),
         name,
         found == index.end() ? "none" : concat("one of shape ", text_of(shape)),
         source.tensors().empty() ? "(it has none)" : source.tensors()[0].name});
    return shape;
  };
  const Shape tokens = table(names.tokens);
  sizes.vocabulary = tokens[0];
  sizes.width = tokens[1];
  sizes.sequence = table(names.places)[0];
  for (const auto& [name, tensor] : index) {
    if (const auto layer = layer_in(name, names.layer)) {
      sizes.layers = std::max(sizes.layers, *layer + 1);
    }
  }
  sizes.tied = !index.contains(names.head);
  return sizes;
}

// A gpt under the names of the other side.
class RenamedGpt final : public TensorSource {
 public:
  RenamedGpt(std::unique_ptr<TensorSource> source, bool from_theirs, bool untied)
      : TensorSource(source->path()), source_(std::move(source)), from_theirs_(from_theirs) {
    Index index = index_of(*source_, from_theirs);
    const Names& names = from_theirs ? kTheirs : kOurs;
    GptSizes sizes = sizes_of(*source_, index, names);
    // More layers than tensors: one of them has an absurd number.
    sizes.layers = std::min(sizes.layers, static_cast<std::int64_t>(index.size()));
    if (from_theirs && untied && sizes.tied) {
      index[kTheirHead] = index.at(kTheirs.tokens);
      sizes.tied = false;
    } else if (from_theirs && !untied && !sizes.tied &&
               detail::same_values(*source_, index.at(kTheirHead), index.at(kTheirs.tokens))) {
      index.erase(kTheirHead);
      sizes.tied = true;
    }
    take(pairs_of(sizes), index);
    if (from_theirs) {
      about_.empty_modules = {"drop"};  // of models::Gpt
      for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
        about_.empty_modules->push_back(concat(kOurs.layer, layer, ".drop"));
      }
    }
  }

  void read(std::size_t tensor, std::byte* out) const override {
    const Taken& taken = taken_.at(tensor);
    if (!taken.transposed) {
      source_->read(taken.from, out);
      return;
    }
    const StateTensor& to = tensors_[tensor];
    std::vector<std::byte> values(to.size_bytes());
    source_->read(taken.from, values.data());
    detail::reorder(to.shape,
                    dtype_bytes(to.dtype),
                    /*from=*/{1, to.shape[0]},
                    values.data(),
                    /*to=*/{},
                    {0, to.numel()},
                    out);
  }

  const std::byte* memory(std::size_t tensor) const override {
    return source_->memory(taken_.at(tensor).from);
  }

 private:
  struct Taken {
    std::size_t from;
    bool transposed;
  };

  // Everything that is wrong with the tensors, not the first alone.
  void take(const std::vector<Pair>& pairs, Index index) {
    std::string wrong;
    for (const Pair& pair : pairs) {
      const std::string& name = from_theirs_ ? pair.theirs : pair.ours;
      const auto found = index.find(name);
      if (found == index.end()) {
        wrong += concat("\n  missing: ", name);
        continue;
      }
      const StateTensor& from = source_->tensors()[found->second];
      Shape flipped(pair.shape.rbegin(), pair.shape.rend());
      const Shape& there = pair.transposed ? flipped : pair.shape;
      const Shape& expected = from_theirs_ ? there : pair.shape;
      if (from.shape != expected) {
        wrong += concat("\n  {}: expected shape {}, found {}",
                        {from.name, text_of(expected), text_of(from.shape)});
      } else {
        add(pair, found->second, from_theirs_ ? pair.shape : there);
      }
      index.erase(found);
    }
    for (const auto& [name, tensor] : index) {
      wrong += concat("\n  not part of a gpt: ", source_->tensors()[tensor].name);
    }
    TRIREME_CHECK(wrong.empty(),
                  "\"{}\": expected the tensors of {}, found others:{}",
                  {path_, from_theirs_ ? "Hugging Face's GPT-2" : "a gpt", wrong});
  }

  void add(const Pair& pair, std::size_t from, const Shape& shape) {
    StateTensor tensor = source_->tensors()[from];
    tensor.kind = kWeightKind;
    if (pair.transposed) {
      // The memory stays as it is: read by columns, it is the other side's matrix.
      std::vector<std::int64_t> strides =
          tensor.strides.empty() ? row_strides(tensor.shape) : tensor.strides;
      tensor.strides.assign(strides.rbegin(), strides.rend());
    }
    tensor.shape = shape;
    const bool head = pair.theirs == kTheirHead;
    tensor.name = from_theirs_ ? pair.ours : (head ? "" : kModulePrefix) + pair.theirs;
    tensors_.push_back(std::move(tensor));
    taken_.push_back({from, pair.transposed});
  }

  std::unique_ptr<TensorSource> source_;
  bool from_theirs_;
  std::vector<Taken> taken_;
};

}  // namespace

std::unique_ptr<TensorSource> as_gpt2(std::unique_ptr<TensorSource> ours) {
  return std::make_unique<RenamedGpt>(std::move(ours), /*from_theirs=*/false, /*untied=*/false);
}

std::unique_ptr<TensorSource> from_gpt2(std::unique_ptr<TensorSource> theirs, bool untied) {
  return std::make_unique<RenamedGpt>(std::move(theirs), /*from_theirs=*/true, untied);
}

GptSizes gpt_sizes(const TensorSource& ours) {
  return sizes_of(ours, index_of(ours, /*theirs=*/false), kOurs);
}

std::unique_ptr<TensorSource> weights_of_gpt2_file(const std::string& file) {
  return std::make_unique<detail::MappedTensors>(file, is_mask);
}

bool has_gpt2_names(const TensorSource& source) {
  return std::ranges::any_of(source.tensors(), [](const StateTensor& tensor) {
    return without_prefix(tensor.name) == kTheirs.tokens;
  });
}

std::string gpt2_config(const GptSizes& sizes, std::int64_t heads) {
  TRIREME_CHECK(heads > 0 && sizes.width % heads == 0,
                "a gpt's width must be a multiple of its heads, found {} and {}",
                {sizes.width, heads});
  constexpr std::int64_t kGpt2Vocabulary = 50257;
  const OrderedJson end_token =
      sizes.vocabulary == kGpt2Vocabulary ? OrderedJson(kGpt2Vocabulary - 1) : OrderedJson(nullptr);
  const OrderedJson config = {{"model_type", "gpt2"},
                              {"architectures", {"GPT2LMHeadModel"}},
                              {"vocab_size", sizes.vocabulary},
                              {"n_positions", sizes.sequence},
                              {"n_ctx", sizes.sequence},
                              {"n_embd", sizes.width},
                              {"n_layer", sizes.layers},
                              {"n_head", heads},
                              {"activation_function", "gelu_new"},
                              {"layer_norm_epsilon", 1e-5},
                              {"tie_word_embeddings", sizes.tied},
                              // Another vocabulary has no token of GPT-2's for the end.
                              {"bos_token_id", end_token},
                              {"eos_token_id", end_token}};
  return config.dump(2) + "\n";
}

}  // namespace trireme
