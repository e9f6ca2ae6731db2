#include <algorithm>
#include <cstdio>
#include <iostream>
#include <sstream>

#include <CLI/CLI.hpp>

#include <torch/types.h>
#include <torch/utils.h>

#include "arguments.h"
#include "trained_run.h"
#include "trireme/core/error.h"
#include "trireme/launch/launcher.h"
#include "trireme/models/task.h"
#include "trireme/settings/model_kinds.h"
#include "trireme/settings/run_folder.h"
#include "worker.h"

namespace trireme::worker {
namespace {

struct SampleOptions {
  std::string run;
  std::string weights = "auto";
  std::string prompt;
  std::int64_t length = 300;
  double temperature = 0.8;
  std::int64_t top = 40;
  std::uint64_t seed = 1;
  std::string device = "auto";
};

TrainSettings settings_of_gpt(const std::string& run) {
  TRIREME_CHECK(is_run_folder(run), "RUN: \"", run, "\": ", expected_run_folder(run));
  TrainSettings settings = settings_to_use(run);
  TRIREME_CHECK(model_kind(settings.model).command == std::string("sample"),
                "RUN: only a gpt can generate text, found the model {} in {}/config.json: {}",
                {settings.model, run, what_answers(run, settings)});
  return settings;
}

// The shape that the weights were trained with: tables have a row for each token and each place.
SampleShape shape_of(const TensorSource& weights) {
  SampleShape shape;
  shape.kind = SampleKind::kTokens;
  for (const StateTensor& tensor : weights.tensors()) {
    if (tensor.name == "tokens.weight") {
      shape.classes = tensor.shape.at(0);
    } else if (tensor.name == "places.weight") {
      shape.length = tensor.shape.at(0) + 1;
    }
  }
  TRIREME_CHECK(shape.classes > 0 && shape.length > 1,
                "the weights have no tokens.weight and places.weight: they are not those of a gpt");
  return shape;
}

std::int64_t next_token(const torch::Tensor& scores, const SampleOptions& options) {
  if (!scores.isfinite().all().item<bool>()) {
    throw Error(
        "the model's scores are not finite: its weights are damaged, or its training failed");
  }
  torch::Tensor logits = scores / options.temperature;
  // At 0, and so near to it that float cannot tell: the most likely token, to which it all tends.
  if (options.temperature == 0 || !logits.isfinite().all().item<bool>()) {
    return scores.argmax().item<std::int64_t>();
  }
  if (options.top > 0 && options.top < logits.numel()) {
    const torch::Tensor least = std::get<0>(logits.topk(options.top))[-1];
    logits = logits.masked_fill(logits.lt(least), -INFINITY);
  }
  return torch::multinomial(torch::softmax(logits, 0), 1).item<std::int64_t>();
}

int write_text(const SampleOptions& options) {
  const TrainSettings settings = settings_of_gpt(options.run);
  const RunWeights weights = weights_in(options.run, options.weights);
  const SampleShape shape = shape_of(*weights.tensors());
  const at::Device device = device_to_use(settings, options.device);
  const Trainable model = make_model(settings, shape);
  weights.load(*model.module);
  model.module->to(device);
  if (!weights.note.empty()) {
    std::fprintf(stderr, "trireme: %s\n", weights.note.c_str());
  }
  model.module->eval();
  torch::manual_seed(options.seed);
  const torch::NoGradGuard no_grad;
  const bool bytes = shape.classes == 256;
  std::vector<std::int64_t> tokens;
  if (bytes) {
    for (const char letter : options.prompt) {
      tokens.push_back(static_cast<unsigned char>(letter));
    }
    std::cout << options.prompt << std::flush;
  } else {
    // A vocabulary of its own: the prompt and the result are numbers.
    std::istringstream words(options.prompt);
    for (std::string word; words >> word;) {
      const auto number = std::strtoll(word.c_str(), nullptr, 10);
      TRIREME_CHECK(number >= 0 && number < shape.classes && std::to_string(number) == word,
                    "--prompt: this gpt was trained on token numbers below {}, found \"{}\"",
                    {shape.classes, word});
      tokens.push_back(number);
    }
    std::cout << options.prompt;
  }
  if (tokens.empty()) {
    tokens.push_back(bytes ? '\n' : 0);
  }
  for (std::int64_t i = 0; i < options.length; ++i) {
    const auto seen = static_cast<std::ptrdiff_t>(
        std::min<std::size_t>(tokens.size(), static_cast<std::size_t>(shape.length - 1)));
    std::vector<std::int64_t> window(tokens.end() - seen, tokens.end());
    window.push_back(0);  // where a target would be
    TensorBatch batch;
    batch.samples = 1;
    batch.tokens = torch::tensor(window).unsqueeze(0).to(device);
    const torch::Tensor scores = model.scores(batch)[0][-1].to(torch::kCPU, torch::kFloat);
    tokens.push_back(next_token(scores, options));
    if (bytes) {
      std::cout << static_cast<char>(tokens.back()) << std::flush;
    } else {
      std::cout << ' ' << tokens.back() << std::flush;
    }
    if (!std::cout.good()) {
      break;
    }
  }
  std::cout << "\n" << std::flush;
  if (!std::cout.good()) {
    std::fprintf(stderr, "trireme: standard output could not be written\n");
    return 1;
  }
  return kExitOk;
}

// A prompt may begin with a dash, or be "--", which would be taken for options: it is written
// behind an equals sign then. A flag of ours in its place is a prompt that was forgotten.
std::vector<std::string> with_prompt_attached(const CLI::App& app,
                                              const std::vector<std::string>& arguments) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool dashed =
        arguments[i] == "--prompt" && i + 1 < arguments.size() && arguments[i + 1].starts_with('-');
    if (dashed) {
      TRIREME_CHECK(
          app.get_option_no_throw(arguments[i + 1]) == nullptr,
          "--prompt: expected text, found the option {}; if it is meant as the prompt: --prompt={}",
          {arguments[i + 1], arguments[i + 1]});
      words.push_back("--prompt=" + arguments[++i]);
    } else {
      words.push_back(arguments[i]);
    }
  }
  return words;
}

}  // namespace

int sample(const std::vector<std::string>& arguments) {
  SampleOptions options;
  CLI::App app(detail::concat("Generate text with a trained ", models_for("sample"), "."),
               "trireme sample");
  app.add_option("RUN,--run", options.run, "The folder of the run")->required()->type_name("RUN");
  app.add_option("--prompt",
                 options.prompt,
                 "The beginning of the text; token numbers for a gpt that was trained on tokens")
      ->type_name("TEXT");
  app.add_option("--length", options.length, "Tokens to generate (default: 300)")
      ->check(CLI::Range(1, 1 << 30))
      ->type_name("N");
  app.add_option("--temperature",
                 options.temperature,
                 "0: always the most likely token; 1: as predicted (default: 0.8)")
      ->check(CLI::Range(0.0, 100.0))
      ->check([](const std::string& text) {  // which takes what is no number for one in between
        return text.find_first_of("nN") == std::string::npos
                   ? std::string()
                   : "expected a number from 0 to 100, found " + text;
      })
      ->type_name("T");
  app.add_option("--top",
                 options.top,
                 "Choose among this many of the most likely tokens; 0: among all (default: 40)")
      ->check(CLI::Range(0, 1 << 30))
      ->type_name("K");
  app.add_option("--weights",
                 options.weights,
                 "model (the last ones), best, average or checkpoint (the newest); default: model; "
                 "for an unfinished run, checkpoint")
      ->check(CLI::IsMember(names_of_weights()))
      ->type_name("WHICH");
  app.add_option("--seed", options.seed, "Seed of the choices (default: 1)")->type_name("N");
  app.add_option("--device", options.device, kDeviceHelp)
      ->check(CLI::IsMember(names_of_devices()))
      ->type_name("WHERE");
  const auto exit_code = exit_after(app, with_prompt_attached(app, arguments));
  return exit_code ? *exit_code : write_text(options);
}

}  // namespace trireme::worker
