#include "train/gpu_watch.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "device/cuda/cuda_driver.h"
#include "device/gpu_meter.h"
#include "trireme/core/error.h"

namespace trireme::detail {
namespace {

constexpr auto kBetweenLooks = std::chrono::milliseconds(500);

std::vector<std::string> identities(at::Device first, int count) {
  const std::vector<device::GpuFacts> gpus = device::examine_gpus().gpus;
  std::vector<std::string> found;
  for (std::size_t k = 0; k < std::min(gpus.size(), static_cast<std::size_t>(count)); ++k) {
    found.push_back(gpus[(static_cast<std::size_t>(first.index()) + k) % gpus.size()].identity);
  }
  return found;
}

}  // namespace

GpuWatch::GpuWatch(at::Device first, int count, Say say) : say_(std::move(say)) {
  try {
    meter_ = std::make_unique<device::GpuMeter>(identities(first, count));
  } catch (const Error& error) {
    say_(concat("the use of GPUs is not recorded: ", error.what()));
  }
}

GpuWatch::~GpuWatch() = default;

std::optional<GpuUse> GpuWatch::look() {
  const auto now = std::chrono::steady_clock::now();
  if (!meter_ || now - looked_ < kBetweenLooks) {
    return std::nullopt;
  }
  looked_ = now;
  try {
    return meter_->read();
  } catch (const Error& error) {
    say_(concat("the use of GPUs is not recorded any more: ", error.what()));
    meter_.reset();
    return std::nullopt;
  }
}

}  // namespace trireme::detail
