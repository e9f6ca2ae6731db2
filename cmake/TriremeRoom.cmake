# trireme_room(<name> [TORCH] [SOURCES <file>...] [KERNELS <file>...] [LINKS <target>...] USES <room>...)
#
# Declares the library of one room, trireme_<name> (alias trireme::<name>), from src/<name>/ and the
# folders declared before. USES is the whole list of rooms it may include and link, and of folders of
# other rooms (<room>/<folder>) whose private headers it may include; LINKS are libraries of others,
# never visible in public headers. KERNELS are sources with vector code, compiled once per instruction set. A room with
# TORCH is left out where LibTorch is.

set(TRIREME_ROOMS "" CACHE INTERNAL "")

# trireme_folder(<room> <name> [SOURCES <file>...] [KERNELS <file>...] USES <folder>...)
#
# Declares a folder src/<room>/<name>/ of a room that follows, and the folders of the same room that it
# may include. What is built as a module of its own has no SOURCES here.
function(trireme_folder room name)
  cmake_parse_arguments(FOLDER "" "" "SOURCES;KERNELS;USES" ${ARGN})
  list(TRANSFORM FOLDER_SOURCES PREPEND "${name}/")
  list(TRANSFORM FOLDER_KERNELS PREPEND "${name}/")
  set_property(GLOBAL APPEND PROPERTY TRIREME_SOURCES_${room} ${FOLDER_SOURCES})
  set_property(GLOBAL APPEND PROPERTY TRIREME_KERNELS_${room} ${FOLDER_KERNELS})
endfunction()

function(trireme_room name)
  cmake_parse_arguments(ROOM "TORCH" "" "SOURCES;KERNELS;LINKS;USES" ${ARGN})
  if(ROOM_TORCH AND NOT TRIREME_WITH_TORCH)
    return()
  endif()
  set(target trireme_${name})
  get_property(sources GLOBAL PROPERTY TRIREME_SOURCES_${name})
  get_property(kernels GLOBAL PROPERTY TRIREME_KERNELS_${name})
  list(APPEND ROOM_SOURCES ${sources})
  list(APPEND ROOM_KERNELS ${kernels})
  if(ROOM_USES)
    list(FILTER ROOM_USES EXCLUDE REGEX "/")
  endif()
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
    trireme_torch_headers(${target})
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

# trireme_texts(<room> <header> <namespace>::<function> <file>...): makes the function that the room's private header
# declares, which returns these files of src/ as they are written: for devices that compile them (device/update.h).
function(trireme_texts room header function)
  string(REGEX MATCH "^(.*)::([a-z_]+)$" matched "${function}")
  set(namespace "${CMAKE_MATCH_1}")
  set(function "${CMAKE_MATCH_2}")
  set(output "${PROJECT_BINARY_DIR}/texts/${room}_${function}.cc")
  set(root "${PROJECT_SOURCE_DIR}/src")
  list(TRANSFORM ARGN PREPEND "${root}/" OUTPUT_VARIABLE paths)
  string(REPLACE ";" "|" files "${ARGN}")
  add_custom_command(OUTPUT "${output}"
    COMMAND ${CMAKE_COMMAND} "-DOUTPUT=${output}" "-DHEADER=${room}/${header}" "-DNAMESPACE=${namespace}"
      "-DFUNCTION=${function}" "-DROOT=${root}" "-DFILES=${files}" -P "${PROJECT_SOURCE_DIR}/cmake/EmbedTexts.cmake"
    DEPENDS ${paths} "${PROJECT_SOURCE_DIR}/cmake/EmbedTexts.cmake" VERBATIM)
  target_sources(trireme_${room} PRIVATE "${output}")
  set_source_files_properties("${output}" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()
