# The tensor-core emulator: a static core, and the module _bitwitness_mma over it.

add_library(bitwitness_mma STATIC
  src/mma_cpu.cpp
  src/mma_dense.cpp
  src/mma_dispatch.cpp
  src/mma_domains.cpp
  src/mma_fold.cpp
  src/mma_fp8_through_f16.cpp
  src/mma_gemm.cpp
  src/mma_heal.cpp
  src/mma_heal_fast.cpp
  src/mma_kernels_avx2.cpp
  src/mma_kernels_avx512.cpp
  src/mma_matmul.cpp
  src/mma_pack.cpp
  src/mma_reference.cpp
  src/mma_step.cpp)
target_link_libraries(bitwitness_mma PUBLIC bitwitness_options)
# Only these two files may hold wide instructions; they are entered after a cpuid check.
# Exception flags are never read, and without -fno-trapping-math no loop with a float
# operation under a condition is vectorised; no value depends on it.
set(mma_avx2_options -mavx2 -mfma -mf16c -fno-trapping-math)
# GCC 12 takes the deliberately undefined operand inside its own AVX-512 header for a bug.
set(mma_avx512_options -mavx512f -mavx512bw -mavx512vl -mavx512dq ${mma_avx2_options}
  -Wno-uninitialized -Wno-maybe-uninitialized)
if(BITWITNESS_SANITIZE)
  # Instrumenting the unrolled kernels at -O3 takes many minutes.
  list(APPEND mma_avx2_options -O1)
  list(APPEND mma_avx512_options -O1)
endif()
set_source_files_properties(src/mma_kernels_avx2.cpp PROPERTIES
  COMPILE_OPTIONS "${mma_avx2_options}")
set_source_files_properties(src/mma_kernels_avx512.cpp PROPERTIES
  COMPILE_OPTIONS "${mma_avx512_options}")

if(BITWITNESS_PYTHON)
  find_package(Python 3.11 COMPONENTS Interpreter Development.Module REQUIRED)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
    OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE nanobind_ROOT COMMAND_ERROR_IS_FATAL ANY)
  find_package(nanobind CONFIG REQUIRED)
  nanobind_add_module(_bitwitness_mma NB_STATIC src/mma_module.cpp)
  target_link_libraries(_bitwitness_mma PRIVATE bitwitness_mma)
  install(TARGETS _bitwitness_mma LIBRARY DESTINATION .)
endif()

if(BITWITNESS_TESTS)
  enable_testing()
  add_executable(mma_step_test tests/mma_step_test.cpp)
  add_executable(mma_paths_test tests/mma_paths_test.cpp)
  add_executable(mma_parallel_test tests/mma_parallel_test.cpp)
  # The AVX-512 kernels on any processor with AVX2. An archive's member is linked only for
  # symbols that are still missing, so the emulated table displaces the real one.
  add_executable(mma_avx512_emulated_test
    tests/mma_paths_test.cpp tests/mma_kernels_avx512_emulated.cpp)
  target_compile_definitions(mma_avx512_emulated_test PRIVATE BITWITNESS_EMULATED_AVX512)
  set_source_files_properties(tests/mma_kernels_avx512_emulated.cpp PROPERTIES
    COMPILE_OPTIONS "${mma_avx2_options}")
  foreach(name mma_step_test mma_paths_test mma_parallel_test mma_avx512_emulated_test)
    target_include_directories(${name} PRIVATE src)
    target_link_libraries(${name} PRIVATE bitwitness_mma)
    add_test(NAME ${name} COMMAND ${name})
  endforeach()
  # No inline function of a shared header may be left behind in a wide translation unit,
  # where the linker could choose it for code that runs on any processor.
  if(NOT BITWITNESS_SANITIZE)
    add_test(NAME mma_isolation_test COMMAND sh -c
      "symbols=$(\"$1\" -A \"$2\" | grep mma_kernels_avx) && ! echo \"$symbols\" | grep -E ' [WVu] '" sh
      "${CMAKE_NM}" "$<TARGET_FILE:bitwitness_mma>")
  endif()
endif()
