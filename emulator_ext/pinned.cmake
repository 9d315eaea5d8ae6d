# The pinned scalar functions, reductions and operators: a core without Python, the module
# _bitwitness_pinned over it, and the core's tests.

# On the source, because these must come after -fno-fast-math, which would undo them:
# * sqrtf must not set errno, or no loop with a square root is vectorised; no value changes;
# * selections may be evaluated on both sides: only exception flags differ, and none is read.
set_source_files_properties(src/pinned_rows.cpp PROPERTIES
  COMPILE_OPTIONS "-fno-math-errno;-fno-trapping-math")

function(bitwitness_pinned_rows target table name)
  add_library(${target} OBJECT src/pinned_rows.cpp)
  target_link_libraries(${target} PRIVATE bitwitness_options)
  target_compile_options(${target} PRIVATE ${ARGN})
  target_compile_definitions(${target} PRIVATE BW_ROWS=${table} BW_ROWS_NAME="${name}")
endfunction()

bitwitness_pinned_rows(bitwitness_pinned_rows_base kRowsBase base)
# Vector instructions for one source file only; which table runs is chosen at run time.
bitwitness_pinned_rows(bitwitness_pinned_rows_avx2 kRowsAvx2 avx2 -mavx2 -mfma)

add_library(bitwitness_pinned_core STATIC
  src/pinned_int16.cpp
  src/pinned_operators.cpp
  src/pinned_rows_choice.cpp
  src/pinned_vectors.cpp
  $<TARGET_OBJECTS:bitwitness_pinned_rows_base>
  $<TARGET_OBJECTS:bitwitness_pinned_rows_avx2>)
target_link_libraries(bitwitness_pinned_core PUBLIC bitwitness_options)

if(BITWITNESS_PYTHON)
  if(NOT COMMAND nanobind_add_module)
    find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
    execute_process(
      COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
      OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE nanobind_ROOT COMMAND_ERROR_IS_FATAL ANY)
    find_package(nanobind CONFIG REQUIRED)
  endif()
  nanobind_add_module(_bitwitness_pinned NB_STATIC
    src/pinned_module.cpp src/pinned_int16_module.cpp)
  target_link_libraries(_bitwitness_pinned PRIVATE bitwitness_pinned_core)
  install(TARGETS _bitwitness_pinned LIBRARY DESTINATION .)
endif()

if(BITWITNESS_TESTS)
  enable_testing()
  foreach(name pinned_scalar_test pinned_operators_test pinned_int16_test)
    add_executable(${name} tests/${name}.cpp)
    target_link_libraries(${name} PRIVATE bitwitness_pinned_core)
    add_test(NAME ${name} COMMAND ${name})
  endforeach()
endif()
