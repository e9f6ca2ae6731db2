# How everything is compiled: nothing here names a room or a dependency.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
if(PROJECT_IS_TOP_LEVEL)
  find_program(TRIREME_CCACHE ccache)
  if(TRIREME_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER "${TRIREME_CCACHE}")
    set(CMAKE_C_COMPILER_LAUNCHER "${TRIREME_CCACHE}")
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
