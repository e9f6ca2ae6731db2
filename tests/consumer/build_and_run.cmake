# cmake -DBUILD=... -DWORK=... -DSOURCE=... -DEXAMPLE=... -P build_and_run.cmake
# Installs Trireme into a scratch folder, builds the example against it as a user would, runs it.
file(REMOVE_RECURSE "${WORK}")
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "failed with ${code}: ${ARGN}")
  endif()
endfunction()
run(${CMAKE_COMMAND} --install "${BUILD}" --prefix "${WORK}/prefix")
run(${CMAKE_COMMAND} -G Ninja -S "${SOURCE}" -B "${WORK}/build" -DCMAKE_PREFIX_PATH=${WORK}/prefix
  -DCMAKE_BUILD_TYPE=Release -DEXAMPLE=${EXAMPLE} -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
run(${CMAKE_COMMAND} --build "${WORK}/build")
run("${WORK}/prefix/bin/trireme" run -n 2 -- "${WORK}/build/consumer")
