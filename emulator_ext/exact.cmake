# The exact profile: a static core, the module _bitwitness_exact over it, and the core's tests.

add_library(bitwitness_exact STATIC
  src/exact_gemm.cpp
  src/exact_kernels_avx2.cpp
  src/exact_kernels_avx512.cpp
  src/exact_kernels_vnni.cpp
  src/exact_packed.cpp
  src/exact_reference.cpp
  src/exact_vector.cpp)
target_link_libraries(bitwitness_exact PUBLIC bitwitness_mma)
# Only these files may hold wide instructions; they are entered after a cpuid check. rint must
# raise no inexact flag and set no errno, or its loops are not vectorised; no value changes.
set(bitwitness_exact_loops "-fno-math-errno;-fno-trapping-math")
# GCC 12 takes the deliberately undefined operand inside its own AVX-512 header for a bug.
set(bitwitness_exact_512
  "-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq;-mfma;-Wno-uninitialized;-Wno-maybe-uninitialized")
set_source_files_properties(src/exact_kernels_avx2.cpp PROPERTIES COMPILE_OPTIONS
  "-mavx2;-mfma;${bitwitness_exact_loops}")
set_source_files_properties(src/exact_kernels_avx512.cpp PROPERTIES COMPILE_OPTIONS
  "${bitwitness_exact_512};${bitwitness_exact_loops}")
set_source_files_properties(src/exact_kernels_vnni.cpp PROPERTIES COMPILE_OPTIONS
  "${bitwitness_exact_512};-mavx512vnni;${bitwitness_exact_loops}")

if(BITWITNESS_PYTHON)
  nanobind_add_module(_bitwitness_exact NB_STATIC src/exact_module.cpp)
  target_link_libraries(_bitwitness_exact PRIVATE bitwitness_exact)
  install(TARGETS _bitwitness_exact LIBRARY DESTINATION .)
endif()

if(BITWITNESS_TESTS)
  enable_testing()
  add_executable(exact_test tests/exact_test.cpp)
  target_link_libraries(exact_test PRIVATE bitwitness_exact)
  target_include_directories(exact_test PRIVATE src)
  target_compile_options(exact_test PRIVATE -mavx2 -mfma -mf16c)
  add_test(NAME exact_test COMMAND exact_test)
  set_tests_properties(exact_test PROPERTIES SKIP_RETURN_CODE 77)
  # As mma_isolation_test: the linker must find no wide copy of a shared inline function.
  if(NOT BITWITNESS_SANITIZE)
    add_test(NAME exact_isolation_test COMMAND sh -c
      "! \"$1\" -A \"$2\" | grep exact_kernels_ | grep -E ' [WVu] '" sh
      "${CMAKE_NM}" "$<TARGET_FILE:bitwitness_exact>")
  endif()
endif()
