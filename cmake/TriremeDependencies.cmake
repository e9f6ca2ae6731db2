# What Trireme is built on; docs/dependencies.md says why each. Nothing is downloaded here:
# scripts/setup installs what is missing. The installed package includes this file too.

include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(hwy)
find_dependency(nlohmann_json)

if(NOT TARGET trireme_zlib)
  find_dependency(ZLIB)
  add_library(trireme_zlib INTERFACE IMPORTED GLOBAL)
  target_link_libraries(trireme_zlib INTERFACE ZLIB::ZLIB)
endif()

if(NOT TARGET trireme_sodium)
  find_path(TRIREME_SODIUM_INCLUDE sodium.h)
  find_library(TRIREME_SODIUM_LIBRARY sodium)
  if(NOT TRIREME_SODIUM_INCLUDE OR NOT TRIREME_SODIUM_LIBRARY)
    message(FATAL_ERROR "libsodium was not found: run scripts/setup, or install libsodium-dev")
  endif()
  add_library(trireme_sodium UNKNOWN IMPORTED GLOBAL)
  set_target_properties(trireme_sodium PROPERTIES
    IMPORTED_LOCATION "${TRIREME_SODIUM_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${TRIREME_SODIUM_INCLUDE}")
endif()

if(NOT TARGET trireme_xxhash)
  find_path(TRIREME_XXHASH_INCLUDE xxhash.h)
  find_library(TRIREME_XXHASH_LIBRARY xxhash)
  if(NOT TRIREME_XXHASH_INCLUDE OR NOT TRIREME_XXHASH_LIBRARY)
    message(FATAL_ERROR "xxHash was not found: run scripts/setup, or install libxxhash-dev")
  endif()
  add_library(trireme_xxhash UNKNOWN IMPORTED GLOBAL)
  set_target_properties(trireme_xxhash PROPERTIES
    IMPORTED_LOCATION "${TRIREME_XXHASH_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${TRIREME_XXHASH_INCLUDE}")
endif()

if(TRIREME_WITH_TORCH)
  include("${CMAKE_CURRENT_LIST_DIR}/TriremeTorch.cmake")
endif()
