#include <algorithm>
#include <charconv>
#include <cmath>

#include "settings/batch_choice.h"
#include "settings/offload_place.h"
#include "settings/sync_settings.h"
#include "trireme/compress/compressor.h"
#include "trireme/core/error.h"
#include "trireme/optim/optimizer.h"
#include "trireme/settings/model_kinds.h"
#include "trireme/settings/settings_table.h"
#include "trireme/settings/values.h"

namespace trireme {
namespace {

// "512MB", "1.5GiB"; nothing for "auto". `words`: what else may be said.
std::optional<std::uint64_t> bytes_of(const char* setting,
                                      const std::string& text,
                                      const char* words = "auto") {
  if (text == "auto") {
    return std::nullopt;
  }
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  static const std::pair<const char*, double> units[] = {{"", 1},
                                                         {"B", 1},
                                                         {"kB", 1e3},
                                                         {"KB", 1e3},
                                                         {"MB", 1e6},
                                                         {"GB", 1e9},
                                                         {"TB", 1e12},
                                                         {"KiB", 0x1p10},
                                                         {"MiB", 0x1p20},
                                                         {"GiB", 0x1p30},
                                                         {"TiB", 0x1p40}};
  for (const auto& [name, factor] : units) {
    const bool sensible = number * factor >= 1 && number * factor < 0x1p62;
    if (error == std::errc() && sensible && unit == name) {
      return static_cast<std::uint64_t>(number * factor);
    }
  }
  throw ConfigError(detail::concat(
      setting, ": expected bytes like 512MB or 4GiB, or ", words, ", found \"", text, "\""));
}

// Whether a setting is to be chosen (-1). Any other negative number is a mistake, and not for us to
// put right.
template <class T>
bool is_automatic(const char* name, T value) {
  TRIREME_CHECK(value >= 0 || value == -1,
                "{}: expected a number of at least 0, or -1 for the default, found {}",
                {name, value});
  return value == -1;
}

void choose_model(TrainSettings& s, const ModelKind& kind) {
  using S = TrainSettings;
  is_automatic("dropout", s.dropout);
  is_automatic("clip_norm", s.clip_norm);
  fill_in(s, kind.defaults, &S::hidden, &S::stages, &S::dropout, &S::initialisation, &S::data);
  fill_in(s, kind.defaults, &S::schedule, &S::clip_norm);
  // Runs record them for every model.
  fill_in(s, model_kinds().back().defaults, &S::hidden, &S::stages);
  if (s.steps == 0 && s.epochs == 0) {
    fill_in(s, kind.defaults, &S::steps, &S::epochs);
  }
  fill_in_size(s);
  if (kind.check != nullptr) {
    kind.check(s);
  }
  if (s.eval_batch == 0) {
    s.eval_batch =
        kind.samples != SampleKind::kTokens
            ? 256
            : std::max<std::int64_t>(1, text_model_size(s.size).evaluated_tokens / s.sequence);
  }
}

void check_compress(const TrainSettings& s) {
  TRIREME_CHECK(s.round_weights == "none" || s.precision == TrainPrecision::kFloat32 ||
                    s.precision == TrainPrecision::kAutocast,
                "round_weights: expected none where parameters have 16 bits already (precision = "
                "{}), found {}: use float32 or autocast",
                {value_text("precision", s), s.round_weights});
  TRIREME_CHECK(s.prune_end == 0 || s.prune_end >= s.prune_begin,
                "prune_end: expected 0 or a step that is not before prune_begin ({}), found {}",
                {s.prune_begin, s.prune_end});
  TRIREME_CHECK(s.compress_check == 0 || s.compress != "none",
                "compress_check: expected 0 where nothing is compressed (compress = none), found ",
                s.compress_check);
  if (s.compress == "none" || s.compress == "auto") {
    return;
  }
  const auto compressor = make_compressor(s.compress);
  const Compressor::Format& format = compressor->format();
  if (!format.feedback) {
    return;
  }
  const auto refuse = [&](bool asked, const char* what, const char* instead) {
    TRIREME_CHECK(
        !asked,
        "compress: {} keeps what it leaves out by the number of a micro-batch, which does "
        "not go with {}: {}, or use a compressor without feedback (bf16, fp16, int8, "
        "randk)",
        {s.compress, what, instead});
  };
  refuse(s.precision == TrainPrecision::kFloat16,
         "a loss scale (precision = float16)",
         "use bfloat16");
  refuse(s.balance != Balance::kEqual, "balance", "leave it at equal");
  refuse(!s.batch_schedule.empty(), "batch_schedule", "leave it out");
  refuse(s.micro_batch == "auto", "micro_batch = auto", "give a number");
  TRIREME_CHECK(
      format.momentum == 0 || (s.optimizer == "sgd" && s.momentum == 0),
      "compress: {} already applies momentum, so the optimizer must not: use --optimizer sgd "
      "--momentum 0, or leave the momentum of {} out",
      {s.compress, s.compress});
}

// Throws where they make no sense: "beta1: adamw: beta1 must be from 0 to below 1, found 1".
void check_rule(const TrainSettings& s) {
  try {
    make_optimizer(s.optimizer, optimizer_settings(s));
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    const std::size_t begin = s.optimizer.size() + 2;
    const std::string name = text.starts_with(s.optimizer + ": ")
                                 ? text.substr(begin, text.find(' ', begin) - begin)
                                 : "";
    const auto& table = settings_table();
    const bool known = std::ranges::find(table, name, &Setting::name) != table.end();
    throw ConfigError(known ? detail::concat(name, ": ", text) : text);
  }
}

void choose_optimizer(TrainSettings& s, const ModelKind& kind) {
  const RuleInfo& rule = optimizer_rule(s.optimizer);
  if (s.lr == 0) {
    const double usual = rule.usual("lr").value_or(0);
    s.lr =
        usual == AdamWOptions().lr ? kind.defaults.lr : usual;  // models know best what adamw needs
  }
  if (is_automatic("momentum", s.momentum)) {
    s.momentum = rule.usual("momentum").value_or(0.9);
  }
  if (is_automatic("weight_decay", s.weight_decay)) {
    s.weight_decay = rule.usual("weight_decay").value_or(0);
  }
  s.decay_all = s.decay_all || kind.samples != SampleKind::kTokens;
  check_rule(s);
  TRIREME_CHECK(s.sparse_update == SparseUpdate::kExact ||
                    make_optimizer(s.optimizer, optimizer_settings(s))->updates_rows(),
                "sparse_update: expected exact with the optimizer {}, whose steps depend on more "
                "than the row, found lazy: choose sgd, adam, adamw, adagrad, rmsprop or lion",
                {s.optimizer});
  const bool warms_up = kind.samples == SampleKind::kTokens && s.schedule == ScheduleKind::kCosine;
  if (is_automatic("warm_up", s.warm_up) && !warms_up) {
    s.warm_up = 0;  // else it follows from their number, once that is known
  }
  TRIREME_CHECK(
      s.schedule != ScheduleKind::kMultiStep || !s.milestones.empty(),
      "milestones: expected the steps at which multi_step reduces the learning rate, found none");
  const auto unsorted = std::is_sorted_until(s.milestones.begin(), s.milestones.end());
  TRIREME_CHECK(unsorted == s.milestones.end(),
                "milestones: expected increasing steps, found {} after {}",
                {*unsorted, *(unsorted - 1)});
}

void check_ranks(const TrainSettings& s) {
  TRIREME_CHECK(s.threads > 0, "threads: expected a number of at least 1, found ", s.threads);
  const bool by_speeds = s.balance == Balance::kSpeeds;
  check_placement("placement", s.placement, s.zero);
  check_compress(s);
  detail::check_offload(s);
  TRIREME_CHECK(!by_speeds || static_cast<std::int64_t>(s.speeds.size()) == s.ranks,
                "speeds: expected one for each of the {} ranks, found {}",
                {s.ranks, s.speeds.size()});
  TRIREME_CHECK(
      !by_speeds ||
          std::any_of(s.speeds.begin(), s.speeds.end(), [](double speed) { return speed > 0; }),
      "speeds: expected at least one above 0, found none");
  TRIREME_CHECK(by_speeds || s.speeds.empty(),
                "speeds: they are only used with balance = speeds, found balance = ",
                value_text("balance", s));
  TRIREME_CHECK(s.folds != 1, "folds: expected 0 (none) or at least 2, found 1");
  TRIREME_CHECK(s.folds == 0 || s.eval_data.empty(),
                "eval_data, folds: expected one of them, found both: each fold is evaluated on the "
                "part of the data that it holds out; leave out --eval-data, or leave out --folds "
                "to train one model and evaluate it on \"{}\"",
                {s.eval_data});
  TRIREME_CHECK(
      s.sampling == Sampling::kWeighted || s.class_weights.empty(),
      "class_weights: they are only used with sampling = weighted (--sampling weighted), found "
      "sampling = ",
      value_text("sampling", s));
  TRIREME_CHECK(
      s.loss_weights.empty() ||
          std::ranges::any_of(s.loss_weights, [](double weight) { return weight > 0; }),
      "loss_weights: expected one above 0 at least, found only 0: nothing would be learned");
  memory_limit_bytes(s.memory_limit);
  goal_of(s);
  separator_of(s);
}

void check_checkpoints(const TrainSettings& s) {
  TRIREME_CHECK(!s.weights_partial || !s.weights_from.empty(),
                "weights_partial: it needs weights_from, which is not set");
  snapshot_limit_bytes(s.snapshot_limit);
}

}  // namespace

std::optional<std::uint64_t> memory_limit_bytes(const std::string& text) {
  return text == "none" ? 0 : bytes_of("memory_limit", text, "auto or none");
}

std::optional<std::uint64_t> snapshot_limit_bytes(const std::string& text) {
  return bytes_of("snapshot_limit", text);
}

char separator_of(const TrainSettings& settings) {
  static const std::pair<const char*, char> names[] = {
      {"auto", '\0'}, {"tab", '\t'}, {"comma", ','}, {"semicolon", ';'}, {"space", ' '}};
  for (const auto& [name, character] : names) {
    if (settings.separator == name) {
      return character;
    }
  }
  const bool one = settings.separator.size() == 1;
  const char character = one ? settings.separator[0] : '\0';
  const bool usable = static_cast<unsigned char>(character) > 0x20 && character != '"';
  TRIREME_CHECK(usable || character == '\t' || character == ' ',
                "separator: expected one character (not a quote), tab, comma, semicolon, space or "
                "auto, found \"{}\"",
                {settings.separator});
  return character;
}

std::int64_t warm_up_steps(const TrainSettings& settings, std::int64_t steps) {
  // One that was given is not cut to a shorter run, whose rates would then not be those of the run
  // that it is the beginning of.
  return settings.warm_up >= 0 ? settings.warm_up : steps / 20;
}

std::map<std::string, double> optimizer_settings(const TrainSettings& s) {
  const std::map<std::string, double> given = {{"lr", s.lr},
                                               {"momentum", s.momentum},
                                               {"nesterov", s.nesterov ? 1 : 0},
                                               {"beta1", s.beta1},
                                               {"beta2", s.beta2},
                                               {"eps", s.eps},
                                               {"weight_decay", s.weight_decay},
                                               {"l1", s.l1}};
  std::map<std::string, double> all;
  std::map<std::string, double> options;
  std::string known;
  const RuleInfo& rule = optimizer_rule(s.optimizer);
  for (const auto& [name, usual] : rule.settings) {
    if (const auto value = given.find(name); value != given.end()) {
      all.insert(*value);
    } else {
      options[name] = usual;
      known += (known.empty() ? "" : ", ") + name;
    }
  }
  for (const std::string& option : s.optimizer_options) {
    const auto sign = option.find('=');
    const std::string name = option.substr(0, sign);
    const std::string text = sign == std::string::npos ? "true" : option.substr(sign + 1);
    double value = text == "true" ? 1 : 0;
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, value);
    const bool good = (parsed.ec == std::errc() && parsed.ptr == end) ||
                      (rule.switches.count(name) > 0 && (text == "true" || text == "false"));
    TRIREME_CHECK(
        good && options.count(name) > 0,
        "optimizer_options: expected NAME=VALUE, and of {}{}{}, found \"{}\"",
        {s.optimizer, known.empty() ? "" : " with ", known.empty() ? " none" : known, option});
    options[name] = value;
  }
  all.merge(options);
  return all;
}

std::optional<Goal> goal_of(const TrainSettings& settings) {
  if (settings.goal.empty()) {
    return std::nullopt;
  }
  const auto colon = settings.goal.find(':');
  Goal goal{settings.goal.substr(0, colon)};
  const char* end = settings.goal.data() + settings.goal.size();
  const auto parsed = std::from_chars(
      colon == std::string::npos ? end : settings.goal.data() + colon + 1, end, goal.value);
  bool known = false;
  for (const char* metric : {"loss", "accuracy", "f1", "perplexity", "rmse", "mae"}) {
    known = known || goal.metric == metric;
  }
  TRIREME_CHECK(known && parsed.ec == std::errc() && parsed.ptr == end,
                "goal: expected METRIC:VALUE with loss, accuracy, f1, perplexity, rmse or mae, "
                "like accuracy:0.9, found \"{}\"",
                {settings.goal});
  const bool share = goal.metric == "accuracy" || goal.metric == "f1";
  const double least = goal.metric == "perplexity" ? 1 : 0;
  TRIREME_CHECK(std::isfinite(goal.value) && goal.value >= least && (!share || goal.value <= 1),
                "goal: expected a value of {}{}, found \"{}\"",
                {goal.metric,
                 share ? " from 0 to 1" : detail::concat(" of at least ", least),
                 settings.goal});
  return goal;
}

TrainSettings resolve(TrainSettings settings) {
  const ModelKind& kind = model_kind(settings.model);
  choose_model(settings, kind);
  choose_optimizer(settings, kind);
  detail::choose_batch(settings, kind);
  detail::choose_sync(settings);
  check_ranks(settings);
  check_checkpoints(settings);
  return settings;
}

}  // namespace trireme
