#pragma once

#include <cstdint>
#include <string>

namespace trireme {

enum class DeviceType : std::uint8_t { kHost = 0, kCuda = 1 };

// Where memory is, and what works on it: the host, or one of the GPUs that this process sees.
struct Device {
  DeviceType type = DeviceType::kHost;
  std::int16_t index = 0;  // among those of its type

  constexpr bool is_host() const { return type == DeviceType::kHost; }
  bool operator==(const Device&) const = default;
};

// As LibTorch spells it: "cpu", "cuda:1".
inline std::string device_name(Device device) {
  return device.is_host() ? "cpu" : "cuda:" + std::to_string(device.index);
}

}  // namespace trireme
