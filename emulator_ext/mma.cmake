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
set_source_files_properties(src/mma_kernels_avx2.cpp PROPERTIES COMPILE_OPTIONS
  "-mavx2;-mfma;-mf16c;-fno-trapping-math")
# GCC 12 takes the deliberately undefined operand inside its own AVX-512 header for a bug.
set_source_files_properties(src/mma_kernels_avx512.cpp PROPERTIES COMPILE_OPTIONS
  "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mfma;-mf16c;-fno-trapping-math;-Wno-maybe-uninitialized")

if(BITWITNESS_PYTHON)
  find_package(Python 3.11 COMPONENTS Interpreter Development.Module REQUIRED)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
    OUTPUT_STRIP_TRAILING_WHITESPACE OUTPUT_VARIABLE nanobind_ROOT)
  find_package(nanobind CONFIG REQUIRED)
  nanobind_add_module(_bitwitness_mma NB_STATIC src/mma_module.cpp)
  target_link_libraries(_bitwitness_mma PRIVATE bitwitness_mma)
  install(TARGETS _bitwitness_mma LIBRARY DESTINATION .)
endif()
