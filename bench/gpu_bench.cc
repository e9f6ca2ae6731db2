// trireme bench gpu: what a GPU's stream moves, next to a copy, whole steps (gpu_steps.h), and
// layers (gpu_layers.h).
//
// Each row is one call over buffers of N MiB of float32 (16-bit ones half of that), 20 times in a
// row; the table shows the median of R such runs. Bytes are those that must be read and written
// once. The first call, which may compile kernels, is not timed.

#include <chrono>
#include <cstdio>
#include <functional>
#include <random>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <nlohmann/json.hpp>

#include <torch/version.h>

#include "arguments.h"
#include "device/buffer.h"
#include "device/cuda/cuda_driver.h"
#include "gpu_layers.h"
#include "gpu_ranks.h"
#include "gpu_steps.h"
#include "host_text.h"
#include "json_file.h"
#include "number_text.h"
#include "samples.h"
#include "trireme/core/deadline.h"
#include "trireme/core/error.h"
#include "trireme/core/table.h"
#include "trireme/core/version.h"
#include "trireme/optim/optimizer.h"

namespace trireme::bench {
namespace {

constexpr Device kBenchGpu{DeviceType::kCuda, 0};
constexpr int kCalls = 20;

device::Stream& gpu() {
  return device::driver(kBenchGpu).stream();
}

void finish_gpu() {
  TRIREME_CHECK(gpu().record().wait(Deadline(std::chrono::minutes(2))),
                "the GPU has not done its work in two minutes");
}

// Random numbers: zeros would be faster than what users have.
device::Buffer filled(std::int64_t numel, Dtype dtype) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> some(std::size_t{1} << 16);
  for (float& value : some) {
    value = std::abs(normal(random)) * 0.01F;
  }
  device::Buffer memory(static_cast<std::size_t>(numel) * dtype_bytes(dtype), kBenchGpu);
  const Span all = memory.span(dtype, numel);
  const auto step = static_cast<std::int64_t>(some.size());
  for (std::int64_t at = 0; at < numel; at += step) {
    const std::int64_t count = std::min(step, numel - at);
    gpu().copy(all.part(at, count), ConstSpan(some.data(), count, Dtype::kFloat32));
  }
  finish_gpu();
  return memory;
}

struct Row {
  std::string name;
  std::int64_t bytes;  // that a call reads and writes
  std::function<void()> call;
};

double seconds_of(const Row& row, int rounds) {
  row.call();
  finish_gpu();
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    const auto start = Clock::now();
    for (int i = 0; i < kCalls; ++i) {
      row.call();
    }
    finish_gpu();
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count() / kCalls);
  }
  return median(times);
}

void reduce_two(const device::Buffer& a,
                const device::Buffer& b,
                const device::Buffer& to,
                Dtype in,
                Dtype out,
                std::int64_t numel) {
  const device::Term terms[] = {{a.data()}, {b.data()}};
  std::byte* const output = to.data();
  gpu().reduce({.dtype = in,
                .output_dtype = out,
                .range = {0, numel},
                .terms = terms,
                .outputs = std::span(&output, 1)});
}

nlohmann::json measure(std::int64_t mebibytes, int rounds, Table& table) {
  const std::int64_t numel = (mebibytes << 20) / 4;
  const device::Buffer a = filled(numel, Dtype::kFloat32);
  const device::Buffer b = filled(numel, Dtype::kFloat32);
  const device::Buffer c = filled(numel, Dtype::kFloat32);
  const device::Buffer d = filled(numel, Dtype::kFloat32);
  const device::Buffer brain = filled(numel, Dtype::kBFloat16);
  const device::Buffer brain2 = filled(numel, Dtype::kBFloat16);
  const auto results = device::Buffer::visible_to(kBenchGpu, 64);
  auto* sum = reinterpret_cast<SquareSum*>(results.data());
  auto* flag = reinterpret_cast<device::NotFinite*>(results.data() + 32);
  const auto wide = [&](const device::Buffer& memory) {
    return memory.span(Dtype::kFloat32, numel);
  };
  ParameterSlice slice;
  slice.device = kBenchGpu;
  slice.master = a.data();
  slice.gradient = b.data();
  slice.states = {c.data(), d.data()};
  slice.numel = numel;
  slice.step = 10;
  ParameterSlice low = slice;
  low.low = brain.data();
  const AdamW adamw;
  const Sgd sgd({.lr = 1e-3, .momentum = 0.9});
  const std::vector<Row> rows = {
      {"copy (the driver's)", 8 * numel, [&] { gpu().copy(wide(a), wide(b)); }},
      {"copy with a look for infinities", 8 * numel, [&] { gpu().copy(wide(a), wide(b), flag); }},
      {"sum of two float32 terms",
       12 * numel,
       [&] { reduce_two(a, b, c, Dtype::kFloat32, Dtype::kFloat32, numel); }},
      {"sum of two bfloat16 terms in float32",
       8 * numel,
       [&] { reduce_two(brain, brain2, c, Dtype::kBFloat16, Dtype::kFloat32, numel); }},
      {"sum of two bfloat16 terms",
       6 * numel,
       [&] { reduce_two(brain, brain2, brain, Dtype::kBFloat16, Dtype::kBFloat16, numel); }},
      {"squares", 4 * numel, [&] { gpu().squares(wide(b), SquareQuanta::of(1, numel), {}, sum); }},
      {"AdamW", 28 * numel, [&] { adamw.update(slice, {}, 1e-3); }},
      {"AdamW with bfloat16 parameters", 30 * numel, [&] { adamw.update(low, {}, 1e-3); }},
      {"SGD with momentum", 20 * numel, [&] { sgd.update(slice, {}, 1e-3); }}};
  nlohmann::json lines = nlohmann::json::array();
  double copy_rate = 0;
  for (const Row& row : rows) {
    const double seconds = seconds_of(row, rounds);
    const double rate = static_cast<double>(row.bytes) / seconds;
    copy_rate = copy_rate == 0 ? rate : copy_rate;
    lines.push_back({{"call", row.name},
                     {"numel", numel},
                     {"ms", seconds * 1e3},
                     {"bytes_per_second", rate},
                     {"share_of_copy", rate / copy_rate}});
    table.add({row.name,
               number_text(seconds * 1e3),
               number_text(rate / 1e12),
               number_text(rate / copy_rate)});
  }
  return lines;
}

int run(int argc, char** argv) {
  std::int64_t mebibytes = 1024;
  int rounds = 9;
  std::string json_path;
  GpuStepOptions steps;
  std::string worker;
  std::string setting;
  std::string output;
  bool only_steps = false;
  GpuRanksOptions ranks;
  ranks.ranks = 0;
  bool only_layers = false;
  CLI::App program(
      "Measure what a GPU's stream moves, next to a copy, layers next to LibTorch's, and training "
      "steps, next to plain LibTorch and PyTorch",
      "trireme bench gpu");
  program.add_option("--mib", mebibytes, "Size of a float32 buffer in MiB (default: 1024)")
      ->check(CLI::Range(1, 1 << 15));
  program.add_option("--rounds", rounds, "Number of runs of 20 calls (default: 9)")
      ->check(CLI::Range(1, 1000));
  program
      .add_option("--step-rounds",
                  steps.rounds,
                  "Rounds of steps in which the systems take turns (default: 3)")
      ->check(CLI::Range(1, 100));
  program.add_option("--steps", steps.steps, "Steps of each system in a round (default: 20)")
      ->check(CLI::Range(5, 10000));
  program
      .add_option(
          "--ranks", ranks.ranks, "Measure nothing but steps of so many ranks, at every ZeRO stage")
      ->check(CLI::Range(1, 64));
  program
      .add_option("--tokens", ranks.tokens, "Tokens in a step of one of these ranks (default: 256)")
      ->check(CLI::Range(1, 1024));
  program.add_option("--bucket-bytes", ranks.bucket_bytes, "EngineOptions::bucket_bytes of these");
  program.add_option("--bucket-count", ranks.bucket_count, "EngineOptions::bucket_count of these");
  auto* steps_flag =
      program.add_flag("--only-steps", only_steps, "Leave out layers and the stream");
  program.add_flag("--only-layers", only_layers, "Leave out steps and the stream")
      ->excludes(steps_flag);
  program.add_flag(
      "--peers", steps.peers, "Also measure PyTorch, eager and compiled, in turns in the same run");
  program.add_option("--worker", worker)->group("");
  program.add_option("--setting", setting)->group("");
  program.add_option("--output", output)->group("");
  program.add_option("--json", json_path, "Also write the table as JSON")->type_name("FILE");
  if (const auto code = take_arguments(program, argc, argv)) {
    return *code;
  }
  ranks.rounds = steps.rounds;
  ranks.steps = steps.steps;
  if (worker == "rank") {
    return run_gpu_rank(ranks, output);
  }
  if (!worker.empty()) {
    return run_gpu_steps(worker, setting, steps.steps, output);
  }
  JsonFile file(json_path);
  const device::GpuReport report = device::examine_gpus();
  TRIREME_CHECK(!report.gpus.empty(), "there is no GPU to measure: ", report.why_none);
  std::printf("Trireme %s, LibTorch %s, %s, driver for CUDA %s, NVRTC %s\n%s",
              TRIREME_VERSION,
              TORCH_VERSION,
              report.gpus.front().name.c_str(),
              report.driver.c_str(),
              report.compiler.c_str(),
              host_text(command_line(argc, argv)).c_str());
  nlohmann::json all;
  if (ranks.ranks > 0) {
    all["ranks"] = measure_gpu_ranks(ranks);
    file.write(all.dump(1));
    return 0;
  }
  // First: afterwards this process, too, has memory there.
  if (!only_layers) {
    all["steps"] = measure_gpu_steps(steps);
  }
  if (!only_steps) {
    all["layers"] = measure_gpu_layers(rounds);
  }
  if (!only_steps && !only_layers) {
    device::use_cuda(kBenchGpu);
    Table table({"call", "ms", "TB/s", "of a copy"});
    all["calls"] = measure(mebibytes, rounds, table);
    std::printf("%lld MiB of float32, median of %d\n%s",
                static_cast<long long>(mebibytes),
                rounds,
                table.text().c_str());
  }
  file.write(all.dump(1));
  return 0;
}

}  // namespace
}  // namespace trireme::bench

int main(int argc, char** argv) {
  return trireme::bench::exit_code_of([&] { return trireme::bench::run(argc, argv); });
}
