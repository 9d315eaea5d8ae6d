// Compiled with -mavx512{f,bw,vl,dq}; entered only after cpu.hpp has found them.
#include <immintrin.h>

#include "exact_kernel_body.hpp"
#include "exact_ops_avx512.hpp"

namespace bitwitness::exact {

const Kernels* avx512_kernels() { return make_kernels<Avx512>(); }

}  // namespace bitwitness::exact
