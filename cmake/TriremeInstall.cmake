# What `cmake --install` puts where, and the package that find_package(trireme) finds.

include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/trireme")

install(TARGETS ${TRIREME_ROOMS} EXPORT triremeTargets)
install(TARGETS ${TRIREME_MODULES} LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}/trireme")
if(TARGET trireme_program)
  install(TARGETS trireme_program)
endif()
if(TARGET trireme_bench_optim)
  # They find LibTorch where it was when they were built.
  get_filename_component(torch_libraries "${TRIREME_LIB_torch_cpu}" DIRECTORY)
  set(torch_programs trireme_bench_checkpoint trireme_bench_compress trireme_bench_optim trireme_bench_step trireme_bench_sync trireme_worker)
  if(TARGET trireme_bench_gpu)
    list(APPEND torch_programs trireme_bench_gpu)
  endif()
  set_target_properties(${torch_programs} PROPERTIES INSTALL_RPATH "${torch_libraries}")
  install(TARGETS ${torch_programs})
endif()

# What trireme.h and the exchange of weights (docs/checkpoints.md) include, and what those include, and no
# other header: include/ is the wall between the rooms as well, and most of what is behind it is nobody's
# business outside.
set(wanted trireme/trireme.h trireme/archive/torch_archive.h trireme/exchange/gpt2_names.h trireme/exchange/weights_exchange.h
  trireme/train/weights.h)
set(installed_headers)
while(wanted)
  list(POP_FRONT wanted header)
  if(header IN_LIST installed_headers OR header STREQUAL trireme/core/version.h)
    continue()
  endif()
  list(APPEND installed_headers ${header})
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES include/${header} DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/${folder}")
  file(STRINGS include/${header} includes REGEX "^#include \"trireme/")
  list(TRANSFORM includes REPLACE ".*\"(trireme/[^\"]+)\".*" "\\1")
  list(APPEND wanted ${includes})
endwhile()
install(FILES "${PROJECT_BINARY_DIR}/include/trireme/core/version.h"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/trireme/core")
install(EXPORT triremeTargets NAMESPACE trireme:: DESTINATION "${package_dir}")
configure_package_config_file(cmake/triremeConfig.cmake.in triremeConfig.cmake INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file(triremeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  "${PROJECT_BINARY_DIR}/triremeConfig.cmake" "${PROJECT_BINARY_DIR}/triremeConfigVersion.cmake"
  cmake/TriremeDependencies.cmake cmake/TriremeTorch.cmake
  DESTINATION "${package_dir}")
