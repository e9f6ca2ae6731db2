# How everything is compiled: nothing here names a room or a dependency.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
if(PROJECT_IS_TOP_LEVEL)
  find_program(TRIREME_CCACHE ccache)
  if(TRIREME_CCACHE)
    # By the headers that the compiler has named before: a source that is new is then not preprocessed twice.
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND};-E;env;CCACHE_DEPEND=1;${TRIREME_CCACHE}")
    set(CMAKE_C_COMPILER_LAUNCHER "${CMAKE_CXX_COMPILER_LAUNCHER}")
  endif()
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
endif()
set(CMAKE_CXX_EXTENSIONS OFF)

# trireme_compile_options(<target>): warnings, sanitizers, and what the promise of equal bits needs
# (no fused multiply-add that the source does not ask for).
function(trireme_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_compile_options(${target} PRIVATE
    -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wconversion -Wno-sign-conversion -ffp-contract=off)
  # GCC 12 sees overlapping copies in std::string that are not there (GCC bug 105651).
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -Wno-restrict)
  endif()
  if(TRIREME_SANITIZE)
    target_compile_options(${target} PUBLIC $<BUILD_INTERFACE:-fsanitize=${TRIREME_SANITIZE}>
      $<BUILD_INTERFACE:-fno-omit-frame-pointer>)
    target_link_options(${target} PUBLIC $<BUILD_INTERFACE:-fsanitize=${TRIREME_SANITIZE}>)
    # One instruction set instead of five: instrumented vector code takes minutes to compile.
    target_compile_definitions(${target} PRIVATE HWY_COMPILE_ONLY_STATIC)
  endif()
endfunction()

# trireme_unity(<target> [<number>]): several sources per compiler run, 14 or this number, since most of the time
# goes into headers that they share. Groups are small enough to keep some processors busy.
function(trireme_unity target)
  if(TRIREME_UNITY)
    set(number 14 ${ARGN})
    list(GET number -1 number)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${number})
    # What a coroutine keeps of its own file is not visible in another one, although it is included.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# trireme_torch_headers(<target>): LibTorch's headers, compiled once for the rooms and the programs that
# users run: by the first target that calls this, for those that follow. GCC takes a header that was compiled
# with the same options only, so all of them are as the rooms are. Not where sources are compiled one by one:
# most of them include less.
function(trireme_torch_headers target)
  if(NOT TRIREME_UNITY)
    return()
  endif()
  trireme_with_precompiled(${target})
  set_target_properties(${target} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_compile_options(${target} PRIVATE -fPIC)  # also what is not a library
  get_property(first GLOBAL PROPERTY TRIREME_TORCH_HEADERS)
  if(first)
    target_precompile_headers(${target} REUSE_FROM ${first})
    return()
  endif()
  set_property(GLOBAL PROPERTY TRIREME_TORCH_HEADERS ${target})
  target_precompile_headers(${target} PRIVATE <ATen/Parallel.h> <torch/nn/functional/loss.h> <torch/nn/module.h>
    <torch/nn/modules/batchnorm.h> <torch/nn/modules/conv.h> <torch/nn/modules/dropout.h>
    <torch/nn/modules/embedding.h> <torch/nn/modules/linear.h> <torch/nn/modules/normalization.h>
    <torch/nn/pimpl.h> <torch/types.h> <torch/utils.h>)
endfunction()

# trireme_kernels(<file>...): sources with vector code, which Highway compiles for each instruction set.
# Those that would bring nothing over their neighbours are left out: the loops are bound by memory, and
# the bits are the same for all.
function(trireme_kernels)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON
    COMPILE_DEFINITIONS "HWY_DISABLED_TARGETS=(HWY_SSSE3|HWY_SSE4|HWY_AVX3_DL)")
endfunction()

# trireme_precompiled(<name> <header>...): headers that programs share, compiled once, for those that
# call trireme_precompile(<target> <name>). Such programs are tests and examples, compiled with little
# optimisation: they spend their time in the library, or in LibTorch.
function(trireme_precompiled name)
  file(WRITE "${PROJECT_BINARY_DIR}/${name}.cc" "")
  add_library(${name} OBJECT "${PROJECT_BINARY_DIR}/${name}.cc")
  trireme_program_options(${name})
  target_precompile_headers(${name} PRIVATE ${ARGN})
endfunction()

function(trireme_precompile target name)
  trireme_program_options(${target})
  target_precompile_headers(${target} REUSE_FROM ${name})
endfunction()

function(trireme_program_options target)
  trireme_compile_options(${target})
  trireme_with_precompiled(${target})
  # GCC takes a header that was compiled with the same options only.
  target_compile_options(${target} PRIVATE -O1)
endfunction()

function(trireme_with_precompiled target)
  # Not through ccache, which hashes half a gigabyte of precompiled headers each time.
  set_target_properties(${target} PROPERTIES CXX_COMPILER_LAUNCHER "")
  target_compile_options(${target} PRIVATE -Winvalid-pch)
endfunction()
