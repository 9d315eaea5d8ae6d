// Compiled with -mavx512{f,bw,vl,dq}; entered only after cpu.hpp has found them.
#include <immintrin.h>

#include "mma_kernel_table.hpp"
#include "mma_ops_avx512.hpp"

namespace bitwitness {

const KernelTable* avx512_kernels() {
    static constexpr KernelTable table = make_table<Avx512>();
    return &table;
}

}  // namespace bitwitness
