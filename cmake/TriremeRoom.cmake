# trireme_room(<name> [TORCH] SOURCES <file>... [KERNELS <file>...] [LINKS <target>...] USES <room>...)
#
# Declares the library of one room, trireme_<name> (alias trireme::<name>), from src/<name>/. USES is
# the whole list of rooms it may include and link; LINKS are libraries of others, never visible in
# public headers. KERNELS are sources with vector code, compiled once per instruction set. A room with
# TORCH is left out where LibTorch is.

set(TRIREME_ROOMS "" CACHE INTERNAL "")

function(trireme_room name)
  cmake_parse_arguments(ROOM "TORCH" "" "SOURCES;KERNELS;LINKS;USES" ${ARGN})
  if(ROOM_TORCH AND NOT TRIREME_WITH_TORCH)
    return()
  endif()
  set(target trireme_${name})
  list(TRANSFORM ROOM_SOURCES PREPEND "src/${name}/")
  list(TRANSFORM ROOM_KERNELS PREPEND "src/${name}/")
  add_library(${target} STATIC ${ROOM_SOURCES} ${ROOM_KERNELS})
  add_library(trireme::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES
    EXPORT_NAME ${name} POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  trireme_compile_options(${target})
  trireme_unity(${target})
  trireme_kernels(${ROOM_KERNELS})
  target_include_directories(${target}
    PUBLIC
      $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
      $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>
      $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  foreach(used IN LISTS ROOM_USES)
    target_link_libraries(${target} PUBLIC trireme_${used})
  endforeach()
  target_link_libraries(${target} PUBLIC Threads::Threads PRIVATE ${ROOM_LINKS})
  if(ROOM_TORCH)
    target_link_libraries(${target} PUBLIC trireme_torch)
  endif()
  set(TRIREME_ROOMS ${TRIREME_ROOMS} ${target} CACHE INTERNAL "")
endfunction()

# trireme_umbrella(<name>): the one target a user links, all rooms together.
function(trireme_umbrella name)
  configure_file("${PROJECT_SOURCE_DIR}/include/trireme/core/version.h.in"
    "${PROJECT_BINARY_DIR}/include/trireme/core/version.h" @ONLY)
  add_library(${name} INTERFACE)
  add_library(trireme::${name} ALIAS ${name})
  target_link_libraries(${name} INTERFACE ${TRIREME_ROOMS})
  set(TRIREME_ROOMS ${TRIREME_ROOMS} ${name} CACHE INTERNAL "")
endfunction()
