// A management library (libnvidia-ml.so.1) of two GPUs that are not there, for tests of what is
// recorded of GPUs. TRIREME_STUB_NVML: how many looks at utilisation it answers before it fails.

#include <cstdlib>
#include <cstring>

struct NvmlDevice {
  const char* uuid;
  unsigned busy;
  unsigned long long used;
  unsigned degrees;
  unsigned milliwatts;
};

namespace {

NvmlDevice gpus[] = {{"GPU-07070707-0707-0707-0707-070707070707", 90, 5'000'000'000, 61, 300'500},
                     {"GPU-00112233-4455-6677-8899-aabbccddeeff", 50, 7'000'000'000, 55, 200'000}};
constexpr int kNotFound = 6;
constexpr int kLost = 15;
int looks = 0;

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the library's names
extern "C" {

int nvmlInit_v2();
int nvmlInit_v2() {
  return 0;
}

const char* nvmlErrorString(int result);
const char* nvmlErrorString(int result) {
  return result == kNotFound ? "Not Found" : result == kLost ? "GPU is lost" : "Unknown Error";
}

int nvmlDeviceGetHandleByUUID(const char* uuid, NvmlDevice** gpu);
int nvmlDeviceGetHandleByUUID(const char* uuid, NvmlDevice** gpu) {
  for (NvmlDevice& each : gpus) {
    if (std::strcmp(each.uuid, uuid) == 0) {
      *gpu = &each;
      return 0;
    }
  }
  return kNotFound;
}

int nvmlDeviceGetUtilizationRates(NvmlDevice* gpu, unsigned* gpu_and_memory);
int nvmlDeviceGetUtilizationRates(NvmlDevice* gpu, unsigned* gpu_and_memory) {
  const char* most = std::getenv("TRIREME_STUB_NVML");
  if (most != nullptr && looks++ >= std::atoi(most)) {
    return kLost;
  }
  gpu_and_memory[0] = gpu->busy;
  gpu_and_memory[1] = 1;
  return 0;
}

int nvmlDeviceGetMemoryInfo(NvmlDevice* gpu, unsigned long long* total_free_used);
int nvmlDeviceGetMemoryInfo(NvmlDevice* gpu, unsigned long long* total_free_used) {
  total_free_used[0] = 10'000'000'000;
  total_free_used[1] = 10'000'000'000 - gpu->used;
  total_free_used[2] = gpu->used;
  return 0;
}

int nvmlDeviceGetTemperature(NvmlDevice* gpu, int sensor, unsigned* degrees);
int nvmlDeviceGetTemperature(NvmlDevice* gpu, int sensor, unsigned* degrees) {
  *degrees = sensor == 0 ? gpu->degrees : 0;
  return 0;
}

int nvmlDeviceGetPowerUsage(NvmlDevice* gpu, unsigned* milliwatts);
int nvmlDeviceGetPowerUsage(NvmlDevice* gpu, unsigned* milliwatts) {
  *milliwatts = gpu->milliwatts;
  return 0;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
