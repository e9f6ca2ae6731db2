// A driver (libcuda.so.1) of one GPU that is not there, for tests of what a driver answers when
// something is wrong. Its memory is the host's, and shared by descriptors as a GPU's is; its copies
// are done when they are issued; its kernels do nothing.
//
//   TRIREME_STUB_CUDA=cuMemCreate=2,cuEventQuery@3=719   what calls return: always, or from the
//                                                        third on

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include <sys/mman.h>
#include <unistd.h>

namespace {

constexpr int kSuccess = 0;
constexpr int kInvalid = 1;
constexpr std::size_t kPage = std::size_t{2} << 20;
constexpr std::size_t kMemory = std::size_t{1} << 34;

// What `call` is to return now; kSuccess where nothing was asked for. Asked once for each call.
int planted(std::string_view call) {
  static std::mutex mutex;
  static std::map<std::string, int, std::less<>> calls;
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = calls.try_emplace(std::string(call), 0);
  const int number = ++entry->second;
  const char* text = std::getenv("TRIREME_STUB_CUDA");
  std::string_view rest = text == nullptr ? "" : text;
  while (!rest.empty()) {
    const std::string each(rest.substr(0, rest.find(',')));
    rest.remove_prefix(std::min(rest.size(), each.size() + 1));
    const std::size_t equals = each.find('=');
    const std::size_t at = std::min(each.find('@'), equals);
    const int first = at == equals ? 1 : std::atoi(each.c_str() + at + 1);
    if (each.substr(0, at) == call && number >= first) {
      return std::atoi(each.c_str() + equals + 1);
    }
  }
  return kSuccess;
}

std::byte* pointer(unsigned long long address) {
  return reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
}

unsigned long long address_of(void* data) {
  return reinterpret_cast<unsigned long long>(data);
}

void* unique() {  // what stands for a stream, an event, a module
  static std::atomic<std::uintptr_t> last{0};
  return reinterpret_cast<void*>(++last);  // NOLINT(performance-no-int-to-ptr)
}

struct Access {
  int type;
  int id;
  int flags;
};

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): the driver's names
#define CALL(name, parameters, ...)          \
  extern "C" int name parameters;            \
  extern "C" int name parameters {           \
    if (const int result = planted(#name)) { \
      return result;                         \
    }                                        \
    __VA_ARGS__                              \
    return kSuccess;                         \
  }

CALL(cuInit, (unsigned), )
CALL(cuDriverGetVersion, (int* version), *version = 13'000;)
CALL(cuDeviceGetCount, (int* count), *count = 1;)
CALL(cuDeviceGet, (int* device, int index), *device = index;)
CALL(cuDeviceGetName,
     (char* name, int length, int),
     std::strncpy(name, "a GPU of tests", static_cast<std::size_t>(length));)
CALL(cuDeviceGetUuid, (unsigned char* sixteen, int), std::memset(sixteen, 7, 16);)
CALL(
    cuDeviceGetAttribute, (int* value, int attribute, int), switch (attribute) {
      case 75:
        *value = 9;
        break;
      case 76:
        *value = 0;
        break;
      case 16:
        *value = 8;
        break;
      default:
        *value = 1;
    })
CALL(cuDeviceTotalMem_v2, (std::size_t * bytes, int), *bytes = kMemory;)
CALL(cuDevicePrimaryCtxRetain, (void** context, int), *context = unique();)
CALL(cuCtxPushCurrent_v2, (void*), )
CALL(cuCtxPopCurrent_v2, (void** context), *context = nullptr;)
CALL(cuCtxSynchronize, (), )
CALL(cuMemGetInfo_v2, (std::size_t * free, std::size_t* total), *free = kMemory; *total = kMemory;)
CALL(cuMemAlloc_v2, (unsigned long long* address, std::size_t bytes), {
  *address = address_of(std::malloc(bytes));
})
CALL(cuMemFree_v2, (unsigned long long address), std::free(pointer(address));)
CALL(cuMemHostAlloc, (void** data, std::size_t bytes, unsigned), *data = std::malloc(bytes);)
CALL(cuMemFreeHost, (void* data), std::free(data);)
#ifndef TRIREME_STUB_OLD  // drivers before CUDA 11.2
CALL(cuMemAllocAsync, (unsigned long long* address, std::size_t bytes, void*), {
  *address = address_of(std::malloc(bytes));
})
CALL(cuMemFreeAsync, (unsigned long long address, void*), std::free(pointer(address));)
#endif
CALL(cuMemsetD8Async,
     (unsigned long long address, unsigned char value, std::size_t bytes, void*),
     std::memset(pointer(address), value, bytes);)
CALL(cuMemcpyAsync,
     (unsigned long long to, unsigned long long from, std::size_t bytes, void*),
     std::memmove(pointer(to), pointer(from), bytes);)
CALL(cuMemCreate,
     (unsigned long long* handle, std::size_t bytes, const void*, unsigned long long),
     {
       const int fd = memfd_create("a GPU of tests", MFD_CLOEXEC);
       if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
         return kInvalid;
       }
       *handle = static_cast<unsigned long long>(fd) + 1;
     })
CALL(cuMemRelease, (unsigned long long handle), close(static_cast<int>(handle) - 1);)
CALL(cuMemExportToShareableHandle,
     (void* shareable, unsigned long long handle, int, unsigned long long),
     *static_cast<int*>(shareable) = dup(static_cast<int>(handle) - 1);)
CALL(cuMemImportFromShareableHandle, (unsigned long long* handle, void* shareable, int), {
  const int fd = dup(static_cast<int>(reinterpret_cast<std::intptr_t>(shareable)));
  if (fd < 0) {
    return kInvalid;
  }
  *handle = static_cast<unsigned long long>(fd) + 1;
})
CALL(cuMemGetAllocationGranularity, (std::size_t * bytes, const void*, int), *bytes = kPage;)
CALL(cuMemAddressReserve,
     (unsigned long long* address,
      std::size_t bytes,
      std::size_t,
      unsigned long long,
      unsigned long long),
     {
       void* data = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
       if (data == MAP_FAILED) {
         return kInvalid;
       }
       *address = address_of(data);
     })
CALL(cuMemAddressFree, (unsigned long long address, std::size_t bytes), {
  munmap(pointer(address), bytes);
})
CALL(cuMemMap,
     (unsigned long long address,
      std::size_t bytes,
      std::size_t offset,
      unsigned long long handle,
      unsigned long long),
     {
       if (mmap(pointer(address),
                bytes,
                PROT_NONE,
                MAP_SHARED | MAP_FIXED,
                static_cast<int>(handle) - 1,
                static_cast<off_t>(offset)) == MAP_FAILED) {
         return kInvalid;
       }
     })
CALL(cuMemUnmap, (unsigned long long address, std::size_t bytes), {
  mmap(pointer(address), bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
})
CALL(cuMemSetAccess,
     (unsigned long long address, std::size_t bytes, const Access* access, std::size_t),
     {
       constexpr int kReadWrite = 3;
       mprotect(pointer(address),
                bytes,
                access->flags == kReadWrite ? PROT_READ | PROT_WRITE : PROT_READ);
     })
CALL(cuStreamCreate, (void** stream, unsigned), *stream = unique();)
CALL(cuStreamDestroy_v2, (void*), )
CALL(cuStreamSynchronize, (void*), )
CALL(cuStreamWaitEvent, (void*, void*, unsigned), )
CALL(cuEventCreate, (void** event, unsigned), *event = unique();)
CALL(cuEventDestroy_v2, (void*), )
CALL(cuEventRecord, (void*, void*), )
CALL(cuEventQuery, (void*), )
CALL(cuModuleLoadData, (void** module, const void*), *module = unique();)
CALL(cuModuleGetFunction, (void** function, void*, const char*), *function = unique();)
CALL(cuLaunchKernel,
     (void*,
      unsigned,
      unsigned,
      unsigned,
      unsigned,
      unsigned,
      unsigned,
      unsigned,
      void*,
      void**,
      void**), )

extern "C" int cuGetErrorName(int error, const char** name);
extern "C" int cuGetErrorName(int error, const char** name) {
  static const std::map<int, const char*> kNames = {{2, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
                                                    {100, "CUDA_ERROR_NO_DEVICE"},
                                                    {214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
                                                    {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                                                    {719, "CUDA_ERROR_LAUNCH_FAILED"},
                                                    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"},
                                                    {805, "CUDA_ERROR_MPS_CONNECTION_FAILED"}};
  const auto found = kNames.find(error);
  *name = found == kNames.end() ? nullptr : found->second;
  return found == kNames.end() ? kInvalid : kSuccess;
}

extern "C" int cuGetErrorString(int error, const char** text);
extern "C" int cuGetErrorString(int error, const char** text) {
  *text = "as it was told to";
  return error == kSuccess ? kInvalid : kSuccess;
}
// NOLINTEND(readability-identifier-naming)
