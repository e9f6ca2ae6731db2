#include "device/driver.h"

#include <map>
#include <mutex>
#include <utility>

#include "device/cuda/cuda_driver.h"
#include "device/host/host_driver.h"
#include "trireme/core/error.h"

namespace trireme::device {
namespace {

using Key = std::pair<DeviceType, std::int16_t>;

Key key_of(Device device) {
  return {device.type, device.index};
}

struct Installed {
  std::mutex mutex;
  std::map<Key, std::shared_ptr<Driver>> others;  // guarded by mutex
};

Installed& installed() {
  static auto* drivers = new Installed;  // never destroyed: memory may outlive every static object
  return *drivers;
}

}  // namespace

Driver* find_driver(Device device) {
  if (device.is_host()) {
    return &host_driver();
  }
  Installed& drivers = installed();
  const std::lock_guard lock(drivers.mutex);
  const auto found = drivers.others.find(key_of(device));
  return found != drivers.others.end() ? found->second.get() : nullptr;
}

Driver& driver(Device device) {
  Driver* const found = find_driver(device);
  TRIREME_CHECK(found != nullptr,
                "memory of ",
                device_name(device),
                " was asked for, but this program has no driver for it: use the host's (cpu)");
  return *found;
}

Driver& open(Device device) {
  if (find_driver(device) == nullptr && device.type == DeviceType::kCuda) {
    use_cuda(device);
  }
  return driver(device);
}

void install(Device device, std::shared_ptr<Driver> driver) {
  TRIREME_ASSERT(!device.is_host(), "the host has its driver");
  Installed& drivers = installed();
  const std::lock_guard lock(drivers.mutex);
  if (driver == nullptr) {
    drivers.others.erase(key_of(device));
  } else {
    drivers.others[key_of(device)] = std::move(driver);
  }
}

}  // namespace trireme::device
