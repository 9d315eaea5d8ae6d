#include "mma_kernels.hpp"

namespace bitwitness {

const KernelTable* kernels(Path path) {
    if (path == Path::avx512) return avx512_kernels();
    return path == Path::avx2 ? avx2_kernels() : nullptr;
}

}  // namespace bitwitness
