# TRIREME_TORCH_PYTHON: a Python that has torch, for the peers of the benchmarks and the tests beside
# PyTorch; empty where there is none. The project's own comes first.

set(TRIREME_TORCH_PYTHON "")
find_program(TRIREME_USER_PYTHON python3)
foreach(python IN ITEMS "${PROJECT_SOURCE_DIR}/.venv/bin/python" "${TRIREME_USER_PYTHON}")
  execute_process(COMMAND "${python}" -c "import importlib.metadata as m; m.version('torch')"
    RESULT_VARIABLE code OUTPUT_QUIET ERROR_QUIET)
  if(code EQUAL 0)
    set(TRIREME_TORCH_PYTHON "${python}")
    break()
  endif()
endforeach()
