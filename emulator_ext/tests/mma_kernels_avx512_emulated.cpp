// Takes the place of src/mma_kernels_avx512.cpp in the test that links it.
#include "mma_avx512_emulation.hpp"
#include "mma_kernel_table.hpp"
#include "mma_ops_avx512.hpp"

namespace bitwitness {

const KernelTable* avx512_kernels() {
    static constexpr KernelTable table = make_table<Avx512>();
    return &table;
}

}  // namespace bitwitness
