#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "device/cuda/kernel_arguments.h"

// The calls of NVIDIA's driver (libcuda.so.1) that are used here, declared by hand and found when
// the program runs: the same program then works where there is neither a driver nor a toolkit.
// Names, numbers and layouts are those of cuda.h and do not change between versions.

namespace trireme::device::cuda {

using Result = int;
using DeviceHandle = int;
using Context = struct ContextTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
using NativeStream = struct StreamTag*;
using NativeEvent = struct EventTag*;
using Handle = unsigned long long;  // of memory that can be mapped

inline constexpr Result kSuccess = 0;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotReady = 600;

// Attributes of a device.
inline constexpr int kProcessors = 16;
inline constexpr int kMajor = 75;
inline constexpr int kMinor = 76;
inline constexpr int kHasDescriptors = 103;  // memory handles that are POSIX descriptors
inline constexpr int kHasPools = 115;        // memory in the order of a stream

inline constexpr unsigned kEventWithoutTime = 2;
inline constexpr unsigned kStreamOnItsOwn = 1;  // does not wait for the default stream
inline constexpr unsigned kHostPortable = 1;
inline constexpr unsigned kHostMapped = 2;
inline constexpr int kDescriptor = 1;   // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
inline constexpr int kPinned = 1;       // CU_MEM_ALLOCATION_TYPE_PINNED
inline constexpr int kOnDevice = 1;     // CU_MEM_LOCATION_TYPE_DEVICE
inline constexpr int kReadOnly = 1;     // CU_MEM_ACCESS_FLAGS_PROT_READ
inline constexpr int kReadWrite = 3;    // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
inline constexpr int kRecommended = 1;  // CU_MEM_ALLOC_GRANULARITY_RECOMMENDED

struct Location {
  int type;
  int id;
};
struct AllocationProperties {
  int type;
  int handle_types;
  Location location;
  void* unused;
  std::uint8_t flags[8];
};
struct AccessDescription {
  Location location;
  int access;
};
static_assert(sizeof(AllocationProperties) == 32 && sizeof(AccessDescription) == 12);

// clang-format off: a table
#define TRIREME_CUDA_CALLS(CALL)                                                                   \
  CALL(init, "cuInit", (unsigned flags))                                                           \
  CALL(driver_version, "cuDriverGetVersion", (int* version))                                       \
  CALL(error_name, "cuGetErrorName", (Result error, const char** name))                            \
  CALL(error_text, "cuGetErrorString", (Result error, const char** text))                          \
  CALL(device_count, "cuDeviceGetCount", (int* count))                                             \
  CALL(device_get, "cuDeviceGet", (DeviceHandle * device, int index))                              \
  CALL(device_name, "cuDeviceGetName", (char* name, int length, DeviceHandle device))              \
  CALL(device_uuid, "cuDeviceGetUuid", (unsigned char* sixteen, DeviceHandle device))              \
  CALL(device_attribute, "cuDeviceGetAttribute", (int* value, int attribute, DeviceHandle device)) \
  CALL(device_memory, "cuDeviceTotalMem_v2", (std::size_t * bytes, DeviceHandle device))           \
  CALL(context_retain, "cuDevicePrimaryCtxRetain", (Context * context, DeviceHandle device))       \
  CALL(context_push, "cuCtxPushCurrent_v2", (Context context))                                     \
  CALL(context_pop, "cuCtxPopCurrent_v2", (Context * context))                                     \
  CALL(context_synchronize, "cuCtxSynchronize", ())                                                \
  CALL(memory_info, "cuMemGetInfo_v2", (std::size_t * free, std::size_t * total))                  \
  CALL(allocate, "cuMemAlloc_v2", (Address * address, std::size_t bytes))                          \
  CALL(free, "cuMemFree_v2", (Address address))                                                    \
  CALL(host_allocate, "cuMemHostAlloc", (void** data, std::size_t bytes, unsigned flags))          \
  CALL(host_free, "cuMemFreeHost", (void* data))                                                   \
  CALL(allocate_async,                                                                             \
       "cuMemAllocAsync",                                                                          \
       (Address * address, std::size_t bytes, NativeStream stream))                                \
  CALL(free_async, "cuMemFreeAsync", (Address address, NativeStream stream))                       \
  CALL(set_async,                                                                                  \
       "cuMemsetD8Async",                                                                          \
       (Address address, unsigned char value, std::size_t bytes, NativeStream stream))             \
  CALL(copy_async,                                                                                 \
       "cuMemcpyAsync",                                                                            \
       (Address to, Address from, std::size_t bytes, NativeStream stream))                         \
  CALL(create_handle,                                                                              \
       "cuMemCreate",                                                                              \
       (Handle * handle,                                                                           \
        std::size_t bytes,                                                                         \
        const AllocationProperties* properties,                                                    \
        unsigned long long flags))                                                                 \
  CALL(release_handle, "cuMemRelease", (Handle handle))                                            \
  CALL(export_handle,                                                                              \
       "cuMemExportToShareableHandle",                                                             \
       (void* shareable, Handle handle, int type, unsigned long long flags))                       \
  CALL(import_handle,                                                                              \
       "cuMemImportFromShareableHandle",                                                           \
       (Handle * handle, void* shareable, int type))                                               \
  CALL(granularity,                                                                                \
       "cuMemGetAllocationGranularity",                                                            \
       (std::size_t * bytes, const AllocationProperties* properties, int which))                   \
  CALL(reserve_addresses,                                                                          \
       "cuMemAddressReserve",                                                                      \
       (Address * address,                                                                         \
        std::size_t bytes,                                                                         \
        std::size_t alignment,                                                                     \
        Address at,                                                                                \
        unsigned long long flags))                                                                 \
  CALL(free_addresses, "cuMemAddressFree", (Address address, std::size_t bytes))                   \
  CALL(map,                                                                                        \
       "cuMemMap",                                                                                 \
       (Address address,                                                                           \
        std::size_t bytes,                                                                         \
        std::size_t offset,                                                                        \
        Handle handle,                                                                             \
        unsigned long long flags))                                                                 \
  CALL(unmap, "cuMemUnmap", (Address address, std::size_t bytes))                                  \
  CALL(set_access,                                                                                 \
       "cuMemSetAccess",                                                                           \
       (Address address, std::size_t bytes, const AccessDescription* access, std::size_t count))   \
  CALL(stream_create, "cuStreamCreate", (NativeStream * stream, unsigned flags))                   \
  CALL(stream_destroy, "cuStreamDestroy_v2", (NativeStream stream))                                \
  CALL(stream_synchronize, "cuStreamSynchronize", (NativeStream stream))                           \
  CALL(stream_wait, "cuStreamWaitEvent", (NativeStream stream, NativeEvent event, unsigned flags)) \
  CALL(event_create, "cuEventCreate", (NativeEvent * event, unsigned flags))                       \
  CALL(event_destroy, "cuEventDestroy_v2", (NativeEvent event))                                    \
  CALL(event_record, "cuEventRecord", (NativeEvent event, NativeStream stream))                    \
  CALL(event_query, "cuEventQuery", (NativeEvent event))                                           \
  CALL(module_load, "cuModuleLoadData", (Module * module, const void* image))                      \
  CALL(module_function,                                                                            \
       "cuModuleGetFunction",                                                                      \
       (Function * function, Module module, const char* name))                                     \
  CALL(launch,                                                                                     \
       "cuLaunchKernel",                                                                           \
       (Function function,                                                                         \
        unsigned grid_x,                                                                           \
        unsigned grid_y,                                                                           \
        unsigned grid_z,                                                                           \
        unsigned block_x,                                                                          \
        unsigned block_y,                                                                          \
        unsigned block_z,                                                                          \
        unsigned shared_bytes,                                                                     \
        NativeStream stream,                                                                       \
        void** parameters,                                                                         \
        void** extra))
// clang-format on

struct CudaCalls {
// NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration
#define TRIREME_CUDA_MEMBER(member, symbol, parameters) Result(*member) parameters = nullptr;
  TRIREME_CUDA_CALLS(TRIREME_CUDA_MEMBER)
#undef TRIREME_CUDA_MEMBER
};

// Whether there is one, whatever can be done with it.
bool has_driver();

// Loads the driver the first time. Throws ConfigError where there is none, it is too old, or it
// finds no GPU.
const CudaCalls& cuda_calls();

// "cudaErrorName: what it means", as the driver spells it.
std::string text_of(Result result);

// Addresses of the GPU are numbers to the driver, and pointers that nobody here follows elsewhere.
inline std::byte* pointer_to(Address address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

// Throws MemoryError where the GPU's memory is exhausted, else DeviceError. `what` was being done.
void check(Result result, const char* what);

}  // namespace trireme::device::cuda
