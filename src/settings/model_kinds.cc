#include "trireme/settings/model_kinds.h"

#include "trireme/core/counted.h"
#include "trireme/core/error.h"

namespace trireme {
namespace {

// In the order of the documentation. What a model leaves out is as in the last one, or it has none.
std::vector<ModelKind> kinds_by_what_is_their_own() {
  using Kind = SampleKind;
  const TrainSettings transformer{.initialisation = Initialisation::kGpt2,
                                  .data = "licenses",
                                  .steps = 500,
                                  .batch = 32,
                                  .schedule = ScheduleKind::kCosine,
                                  .clip_norm = 1};
  const std::vector<std::string> of_transformers = {"size",
                                                    "layers",
                                                    "width",
                                                    "heads",
                                                    "dropout",
                                                    "recompute",
                                                    "sequence",
                                                    "stride",
                                                    "vocabulary"};
  const auto divides_width = [](const TrainSettings& settings) {
    TRIREME_CHECK(settings.width % settings.heads == 0,
                  "heads: expected a divisor of the width of {}, found {}",
                  {settings.width, settings.heads});
  };
  const auto one_hidden_layer = [](const TrainSettings& settings) {
    TRIREME_CHECK(settings.hidden.size() == 1,
                  "hidden: a convnet has one hidden layer, found ",
                  settings.hidden.size());
  };
  const auto names_data = [](const TrainSettings& settings) {
    TRIREME_CHECK(
        !settings.data.empty(),
        "data: expected a CSV file or one in libsvm's format for the model wide, found none");
  };
  return {
      {"gpt",
       "a transformer that predicts the next token",
       "sample",
       Kind::kTokens,
       4,
       of_transformers,
       transformer,
       /*needs_images=*/false,
       divides_width},
      {"bert",
       "a transformer that fills in what is masked",
       "",
       Kind::kTokens,
       4,
       of_transformers,
       transformer,
       /*needs_images=*/false,
       divides_width},
      {"mlp",
       "a multi-layer perceptron",
       "predict",
       Kind::kDense,
       32,
       {"hidden", "dropout", "recompute", "normalise", "noise", "shift", "flip"},
       {.hidden = {256, 128}, .data = "fashion-mnist", .epochs = 10}},
      {"convnet",
       "a convolutional net with batch normalisation",
       "predict",
       Kind::kDense,
       16,
       {"hidden", "stages", "dropout", "recompute", "normalise", "noise", "shift", "flip"},
       {.hidden = {128},
        .stages = {32, 64},
        .dropout = 0.25,
        .data = "fashion-mnist",
        .epochs = 6,
        .lr = 4e-3},
       /*needs_images=*/true,
       one_hidden_layer},
      {"wide",
       "a sparse linear model",
       "predict",
       Kind::kSparse,
       32,
       {"width", "sparse_update"},
       {.width = 16, .initialisation = Initialisation::kXavier},
       /*needs_images=*/false,
       names_data},
      {"",
       "a model of your own",
       "",
       Kind::kDense,
       32,
       {},
       {.hidden = {256, 128},
        .stages = {32, 64},
        .dropout = 0,
        .initialisation = Initialisation::kHe,
        .data = "fashion-mnist",
        .epochs = 5,
        .batch = 128,
        .lr = 1e-3,
        .schedule = ScheduleKind::kOneCycle,
        .clip_norm = 0}},
  };
}

}  // namespace

const std::vector<ModelKind>& model_kinds() {
  static const std::vector<ModelKind> kinds = [] {
    using S = TrainSettings;
    std::vector<ModelKind> all = kinds_by_what_is_their_own();
    for (ModelKind& kind : all) {
      S& own = kind.defaults;
      const S& rest = all.back().defaults;
      fill_in(own, rest, &S::dropout, &S::initialisation, &S::batch);
      fill_in(own, rest, &S::lr, &S::schedule, &S::clip_norm);
      if (own.steps == 0) {
        fill_in(own, rest, &S::epochs);
      }
    }
    return all;
  }();
  return kinds;
}

const ModelKind& model_kind(const std::string& name) {
  for (const ModelKind& kind : model_kinds()) {
    if (name == kind.name) {
      return kind;
    }
  }
  return model_kinds().back();
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const ModelKind& kind : model_kinds()) {
    names.emplace_back(kind.name);
  }
  names.pop_back();  // one's own
  return names;
}

namespace {

template <class Holds>
std::string names_of_those(const Holds& holds) {
  std::vector<std::string> names = model_names();
  std::erase_if(names, [&](const std::string& name) { return !holds(model_kind(name)); });
  return detail::enumerated(names, " or ");
}

}  // namespace

std::string models_on(SampleKind samples, bool images) {
  return names_of_those([=](const ModelKind& kind) {
    return kind.samples == samples && (images || !kind.needs_images);
  });
}

std::string models_for(const std::string& command) {
  return names_of_those([&](const ModelKind& kind) { return kind.command == command; });
}

const TextModelSize& text_model_size(TextSize size) {
  static const TextModelSize sizes[] = {
      {4, 128, 4, 64, 16384}, {6, 384, 6, 256, 16384}, {12, 768, 12, 1024, 2048}};
  return sizes[static_cast<std::size_t>(size)];
}

namespace {

// The settings that a size stands for; empty for other models.
std::vector<std::pair<std::int64_t TrainSettings::*, std::int64_t>> settings_of_size(
    const TrainSettings& settings) {
  using S = TrainSettings;
  if (model_kind(settings.model).samples != SampleKind::kTokens) {
    return {};
  }
  const TextModelSize& size = text_model_size(settings.size);
  return {{&S::layers, size.layers},
          {&S::width, size.width},
          {&S::heads, size.heads},
          {&S::sequence, size.sequence}};
}

}  // namespace

void fill_in_size(TrainSettings& settings) {
  for (const auto& [member, value] : settings_of_size(settings)) {
    settings.*member = settings.*member == 0 ? value : settings.*member;
  }
  using S = TrainSettings;
  fill_in(settings, model_kind(settings.model).defaults, &S::layers, &S::width, &S::heads);
}

void leave_out_size(TrainSettings& settings) {
  for (const auto& [member, value] : settings_of_size(settings)) {
    settings.*member = settings.*member == value ? 0 : settings.*member;
  }
}

}  // namespace trireme
