# Finds LibTorch and imports it as the target trireme_torch.
#
# Looked for in this order: Torch_DIR or CMAKE_PREFIX_PATH (variables of CMake or of the
# environment), the torch of the user's python3, the torch of .venv in the project.
#
# Not through find_package(Torch): its configuration of a CUDA build stops where the CUDA toolkit is
# not installed, although the CPU libraries need nothing of it. So the libraries are imported here.

set(TRIREME_TORCH_MINIMUM 2.11)

if(NOT TARGET trireme_torch)
  set(candidates "")
  foreach(source IN ITEMS "${Torch_DIR}" "$ENV{Torch_DIR}")
    if(source)
      get_filename_component(root "${source}/../../.." ABSOLUTE)
      list(APPEND candidates "${root}")
    endif()
  endforeach()
  string(REPLACE ":" ";" environment_prefixes "$ENV{CMAKE_PREFIX_PATH}")
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH environment_prefixes)
    # torch.utils.cmake_prefix_path is <root>/share/cmake; others give <root> itself.
    list(APPEND candidates "${prefix}" "${prefix}/../..")
  endforeach()
  foreach(python IN ITEMS python3 "${CMAKE_CURRENT_LIST_DIR}/../.venv/bin/python")
    execute_process(
      COMMAND ${python} -c "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
      OUTPUT_VARIABLE root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(root)
      list(APPEND candidates "${root}")
    endif()
  endforeach()
  list(APPEND candidates "${TRIREME_TORCH_ROOT_HINT}")

  # The version of the LibTorch in `root`, empty where there is none.
  function(trireme_torch_version root result)
    set(${result} "" PARENT_SCOPE)
    foreach(header IN ITEMS torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
      if(EXISTS "${root}/include/${header}")
        file(STRINGS "${root}/include/${header}" lines
          REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
        if(lines)
          string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*PATCH ([0-9]+).*" "\\1.\\2.\\3"
            version "${lines}")
          set(${result} "${version}" PARENT_SCOPE)
          return()
        endif()
      endif()
    endforeach()
  endfunction()

  unset(TRIREME_TORCH_ROOT)
  set(too_old "")
  foreach(root IN LISTS candidates)
    if(NOT root)
      continue()
    endif()
    trireme_torch_version("${root}" TRIREME_TORCH_VERSION)
    if(TRIREME_TORCH_VERSION AND TRIREME_TORCH_VERSION VERSION_LESS TRIREME_TORCH_MINIMUM)
      string(APPEND too_old " ${TRIREME_TORCH_VERSION} in ${root} is older than ${TRIREME_TORCH_MINIMUM};")
    elseif(TRIREME_TORCH_VERSION)
      get_filename_component(TRIREME_TORCH_ROOT "${root}" ABSOLUTE)
      break()
    endif()
  endforeach()
  if(NOT TRIREME_TORCH_ROOT)
    message(FATAL_ERROR "LibTorch was not found:${too_old} run scripts/setup, or set Torch_DIR to the "
      "folder of its TorchConfig.cmake (below python3 -c 'import torch; print(torch.utils.cmake_prefix_path)')")
  endif()
  message(STATUS "LibTorch ${TRIREME_TORCH_VERSION}: ${TRIREME_TORCH_ROOT}")

  set(include "${TRIREME_TORCH_ROOT}/include")
  # find_library, not fixed paths: distributions put libraries elsewhere than the wheels do.
  foreach(name IN ITEMS c10 torch_cpu torch)
    find_library(TRIREME_LIB_${name} ${name} HINTS "${TRIREME_TORCH_ROOT}/lib" NO_CACHE REQUIRED)
  endforeach()
  add_library(trireme_torch INTERFACE IMPORTED GLOBAL)
  target_include_directories(trireme_torch SYSTEM INTERFACE
    "${include}" "${include}/torch/csrc/api/include")
  target_link_libraries(trireme_torch INTERFACE
    "${TRIREME_LIB_torch_cpu}" "${TRIREME_LIB_c10}" Threads::Threads)
  # A CUDA build's libraries need others that are found at run time, next to them, and may not be
  # there at all on the machine that builds.
  target_link_options(trireme_torch INTERFACE -Wl,--allow-shlib-undefined)
endif()
