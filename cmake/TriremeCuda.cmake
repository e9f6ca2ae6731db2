# TRIREME_CUDA: whether GPUs of NVIDIA's can be used. Neither a toolkit nor a driver is needed to build: both the driver
# and the compiler of kernels (NVRTC, part of LibTorch's CUDA builds) are loaded when a program first uses a GPU.
#   auto  what this LibTorch can do: memory and kernels of our own in any case, tensors on GPUs where it has CUDA
#   on    fails where LibTorch has no CUDA
#   off   a program that says so when it is asked for a GPU

set(TRIREME_CUDA auto CACHE STRING "Use of NVIDIA's GPUs: auto, on, off")
set_property(CACHE TRIREME_CUDA PROPERTY STRINGS auto on off)
if(NOT TRIREME_CUDA MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "TRIREME_CUDA is auto, on or off, found \"${TRIREME_CUDA}\"")
endif()

set(TRIREME_NVRTC_FOLDER "")
if(NOT TRIREME_CUDA STREQUAL off AND TRIREME_WITH_TORCH)
  find_library(TRIREME_LIB_torch_cuda torch_cuda HINTS "${TRIREME_TORCH_ROOT}/lib" NO_CACHE)
  find_library(TRIREME_LIB_c10_cuda c10_cuda HINTS "${TRIREME_TORCH_ROOT}/lib" NO_CACHE)
  if(TRIREME_CUDA STREQUAL on AND NOT (TRIREME_LIB_torch_cuda AND TRIREME_LIB_c10_cuda))
    message(FATAL_ERROR "TRIREME_CUDA=on, but the LibTorch in ${TRIREME_TORCH_ROOT} has no CUDA (no libtorch_cuda.so): "
      "use one that has (pip install torch, from download.pytorch.org/whl/cu130), or TRIREME_CUDA=auto")
  endif()
  # Where pip puts NVRTC: beside torch, in nvidia/cu13/lib or nvidia/cuda_nvrtc/lib; elsewhere among torch's own libraries;
  # and for tests beside a LibTorch without CUDA, where scripts/setup puts it.
  file(GLOB compilers "${TRIREME_TORCH_ROOT}/../nvidia/*/lib/libnvrtc.so.1[0-9]" "${TRIREME_TORCH_ROOT}/lib/libnvrtc.so.1[0-9]"
    "${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/*/lib/libnvrtc.so.1[0-9]")
  if(compilers)
    list(GET compilers 0 compiler)
    get_filename_component(TRIREME_NVRTC_FOLDER "${compiler}" DIRECTORY)
    get_filename_component(TRIREME_NVRTC_FOLDER "${TRIREME_NVRTC_FOLDER}" ABSOLUTE)
  endif()
  if(TRIREME_LIB_torch_cuda)
    message(STATUS "CUDA: ${TRIREME_LIB_torch_cuda}, NVRTC in ${TRIREME_NVRTC_FOLDER}")
  else()
    message(STATUS "CUDA: not in this LibTorch")
  endif()
elseif(TRIREME_CUDA STREQUAL on)
  message(FATAL_ERROR "TRIREME_CUDA=on needs LibTorch, but TRIREME_WITH_TORCH is off")
endif()

if(TRIREME_CUDA STREQUAL off)
  set(TRIREME_CUDA_SOURCES cuda/cuda_absent.cc)
else()
  set(TRIREME_CUDA_SOURCES cuda/cuda_calls.cc cuda/cuda_driver.cc cuda/cuda_mapping.cc cuda/cuda_stream.cc cuda/cuda_sums.cc cuda/gpu.cc
    cuda/kernel_cache.cc cuda/kernel_compiler.cc cuda/kernel_launch.cc cuda/kernels.cc)
  set_source_files_properties("${PROJECT_SOURCE_DIR}/src/device/cuda/kernel_compiler.cc" PROPERTIES
    COMPILE_DEFINITIONS TRIREME_NVRTC_FOLDER="${TRIREME_NVRTC_FOLDER}")
endif()
