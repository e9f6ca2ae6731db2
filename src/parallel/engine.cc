#include "trireme/parallel/engine.h"

#include <iomanip>
#include <locale>
#include <sstream>

#include "parallel/engine_core.h"
#include "trireme/core/error.h"
#include "trireme/core/log.h"

namespace trireme {

Gathered::Gathered(std::unique_ptr<detail::GatherScope> scope) : scope_(std::move(scope)) {}
Gathered::Gathered(Gathered&&) noexcept = default;

Gathered::~Gathered() {
  if (scope_ && scope_->open()) {
    try {
      scope_->close();
    } catch (const std::exception& error) {
      log(LogLevel::kError, detail::concat("the end of gathered() failed: ", error.what()));
    }
  }
}

void Gathered::close() {
  TRIREME_CHECK(scope_, "close(): this gathered() scope was moved from: close the one it became");
  scope_->close();
}

EngineBase::EngineBase(std::shared_ptr<torch::nn::Module> model,
                       const Optimizer& optimizer,
                       const EngineOptions& options,
                       std::shared_ptr<Communicator> ranks)
    : core_(std::make_unique<detail::EngineCore>(
          std::move(model), optimizer, options, std::move(ranks))) {}
EngineBase::EngineBase(EngineBase&&) noexcept = default;
EngineBase::~EngineBase() = default;

detail::EngineCore& EngineBase::core() const {
  TRIREME_CHECK(core_, "this engine was moved from: use the one that it became");
  return *core_;
}

void EngineBase::backward(const at::Tensor& loss) {
  core().backward(loss);
}
bool EngineBase::step() {
  return core().step();
}
void EngineBase::give_up(const std::string& reason) {
  core().give_up(reason);
}
void EngineBase::deal(const std::vector<std::int64_t>& micro_batches) {
  core().deal(micro_batches);
}
void EngineBase::join() {
  core().join();
}
double EngineBase::clip_grad_norm(double max_norm) {
  return core().clip_grad_norm(max_norm);
}
at::Tensor EngineBase::grad(const std::string& parameter) {
  return core().grad(parameter);
}
at::Tensor EngineBase::average(const std::string& parameter) {
  return core().average(parameter);
}
EngineState EngineBase::state() {
  return core().state();
}
std::string EngineBase::progress() const {
  return core().progress();
}
void EngineBase::restore(const std::function<void(const StateView& into)>& fill,
                         const std::string& progress) {
  core().restore(fill, progress);
}
Gathered EngineBase::gathered(const std::vector<std::string>& parameters) {
  return Gathered(core().gathered(parameters));
}
void EngineBase::unwrap() {
  core().unwrap();
}
std::int64_t EngineBase::local_micro_batches() const {
  return core().local_micro_batches();
}
std::int64_t EngineBase::micro_batch(std::int64_t k) const {
  return core().micro_batch(k);
}
std::int64_t EngineBase::micro_batches() const {
  return core().micro_batches();
}
std::int64_t EngineBase::steps() const {
  return core().steps();
}
double EngineBase::learning_rate() const {
  return core().learning_rate();
}
bool EngineBase::flush() {
  return core().flush();
}
void EngineBase::set_learning_rate(double base) {
  core().set_learning_rate(base);
}
double EngineBase::gradient_norm() const {
  return core().gradient_norm();
}
double EngineBase::loss_scale() const {
  return core().loss_scale();
}
std::int64_t EngineBase::skipped_steps() const {
  return core().skipped_steps();
}
MemoryUse EngineBase::memory() const {
  return core().memory();
}
MemoryReport EngineBase::memory_report() {
  return core().memory_report();
}
Communicator& EngineBase::ranks() const {
  return core().ranks();
}
const EngineOptions& EngineBase::options() const {
  return core().options();
}

std::string MemoryReport::to_string() const {
  const auto mebibytes = [](std::int64_t bytes) {
    std::ostringstream out;
    out.imbue(std::locale::classic());
    out << std::fixed << std::setprecision(2) << static_cast<double>(bytes) / (1 << 20);
    return out.str();
  };
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << "memory, MiB now (peak)\n" << std::left << std::setw(14) << "rank";
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    out << std::right << std::setw(22) << rank;
  }
  out << '\n';
  for (int category = 0; category < kMemoryCategories; ++category) {
    const auto at = static_cast<std::size_t>(category);
    out << std::left << std::setw(14)
        << memory_category_name(static_cast<MemoryCategory>(category));
    for (const MemoryUse& use : ranks) {
      out << std::right << std::setw(22)
          << mebibytes(use.now[at]) + " (" + mebibytes(use.peak[at]) + ")";
    }
    out << '\n';
  }
  out << std::left << std::setw(14) << "model";
  for (const MemoryUse& use : ranks) {
    out << std::right << std::setw(22) << mebibytes(use.model_bytes());
  }
  out << "\nmodel = parameters + gradients + optimizer; the ZeRO formula says "
      << mebibytes(predicted_bytes) << '\n';
  return out.str();
}

}  // namespace trireme
