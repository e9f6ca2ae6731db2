#include "device/gpu_meter.h"

#include <algorithm>

#include <dlfcn.h>

#include "trireme/core/error.h"

namespace trireme::device {
namespace {

constexpr char kLibrary[] = "libnvidia-ml.so.1";
constexpr unsigned kOfTheChip = 0;  // NVML_TEMPERATURE_GPU
constexpr int kNotSupported = 3;    // NVML_ERROR_NOT_SUPPORTED: by GPUs that are parts of others

// nvmlUtilization_t and nvmlMemory_t.
struct Utilisation {
  unsigned gpu;
  unsigned memory;
};
struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

// As the library spells what the driver gives as 16 bytes: GPU-8-4-4-4-12 digits.
std::string spelled(const std::string& identity) {
  std::string text = "GPU-";
  for (std::size_t i = 0; i < identity.size(); ++i) {
    if (i == 8 || i == 12 || i == 16 || i == 20) {
      text += '-';
    }
    text += identity[i];
  }
  return text;
}

}  // namespace

struct GpuMeter::Calls {
  int (*init)();
  const char* (*error_text)(int result);
  int (*by_uuid)(const char* uuid, NvmlDevice** gpu);
  int (*utilisation)(NvmlDevice* gpu, Utilisation* use);
  int (*memory)(NvmlDevice* gpu, Memory* use);
  int (*temperature)(NvmlDevice* gpu, unsigned sensor, unsigned* degrees);
  int (*power)(NvmlDevice* gpu, unsigned* milliwatts);
};

const GpuMeter::Calls& GpuMeter::calls() {
  static const Calls all = [] {
    void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    TRIREME_CHECK(library != nullptr, "{} cannot be loaded: {}", {kLibrary, dlerror()});
    Calls loaded{};
    const auto load = [&](auto& member, const char* symbol) {
      member = reinterpret_cast<std::remove_reference_t<decltype(member)>>(dlsym(library, symbol));
      TRIREME_CHECK(member != nullptr, "{} on this machine has no {}", {kLibrary, symbol});
    };
    load(loaded.init, "nvmlInit_v2");
    load(loaded.error_text, "nvmlErrorString");
    load(loaded.by_uuid, "nvmlDeviceGetHandleByUUID");
    load(loaded.utilisation, "nvmlDeviceGetUtilizationRates");
    load(loaded.memory, "nvmlDeviceGetMemoryInfo");
    load(loaded.temperature, "nvmlDeviceGetTemperature");
    load(loaded.power, "nvmlDeviceGetPowerUsage");
    const int result = loaded.init();
    TRIREME_CHECK(result == 0, "{} does not start: {}", {kLibrary, loaded.error_text(result)});
    return loaded;  // never ended: others of this process may use it, too
  }();
  return all;
}

GpuMeter::GpuMeter(const std::vector<std::string>& identities) {
  for (const std::string& identity : identities) {
    NvmlDevice* gpu = nullptr;
    const int result = calls().by_uuid(spelled(identity).c_str(), &gpu);
    TRIREME_CHECK(result == 0,
                  "{} does not find {}: {}",
                  {kLibrary, spelled(identity), calls().error_text(result)});
    gpus_.push_back(gpu);
  }
}

GpuUse GpuMeter::read() const {
  const auto ask = [](int result) {
    if (result != 0 && result != kNotSupported) {
      throw DeviceError(
          detail::concat("{} does not answer: {}", {kLibrary, calls().error_text(result)}));
    }
  };
  GpuUse all;
  for (NvmlDevice* const gpu : gpus_) {
    Utilisation use{};
    Memory memory{};
    unsigned degrees = 0;
    unsigned milliwatts = 0;
    ask(calls().utilisation(gpu, &use));
    ask(calls().memory(gpu, &memory));
    ask(calls().temperature(gpu, kOfTheChip, &degrees));
    ask(calls().power(gpu, &milliwatts));
    all.busy_percent += static_cast<double>(use.gpu) / static_cast<double>(gpus_.size());
    all.memory_bytes = std::max(all.memory_bytes, static_cast<std::int64_t>(memory.used));
    all.temperature = std::max(all.temperature, static_cast<double>(degrees));
    all.watts += milliwatts / 1000.0;
  }
  return all;
}

}  // namespace trireme::device
