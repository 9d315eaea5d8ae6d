// Compiled with -mavx512{f,bw,vl,dq,vnni}; entered only after cpuid has shown them all.
#include <immintrin.h>

#define BITWITNESS_VNNI
#include "exact_kernel_body.hpp"
#include "exact_ops_avx512.hpp"

namespace bitwitness::exact {

const Kernels* avx512_vnni_kernels() { return make_kernels<Avx512Vnni>(); }

}  // namespace bitwitness::exact
