// One wgmma, on 16 KiB of operands as they come and by descriptors as they come: what the shim
// makes of a descriptor, apart from how any product lays its operands out.
#include "wgmma.cuh"

constexpr int kBytes = 16384;

KERNEL(128, one_wgmma)(const u16* operands, u64 a, u64 b, float* d) {
    DYNAMIC_SHARED(shared);
    const u32 base = (0U - shared_address(shared)) % 1024U;
    for (int i = static_cast<int>(threadIdx.x) * 16; i < kBytes; i += 128 * 16) {
        cp_async_16(shared + base + i, operands + i / 2);
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_proxy_async();
    __syncthreads();
    float c[32] = {};
    wgmma_fence();
    const u64 start = (shared_address(shared) + base) >> 4;
    wgmma<true>(F16{}, c, a + start, b + start);
    wgmma_commit();
    wgmma_wait<0>(c);
    for (int i = 0; i < 32; ++i) {
        const int row = static_cast<int>(threadIdx.x) / 32 * 16 + i / 2 % 2 * 8 +
                        static_cast<int>(threadIdx.x) % 32 / 4;
        d[row * 64 + i / 4 * 8 + static_cast<int>(threadIdx.x) % 4 * 2 + i % 2] = c[i];
    }
}

// What no kernel may do, by number, around one wgmma.
KERNEL(128, misused_wgmma)(i32 fault, float* d) {
    DYNAMIC_SHARED(shared);
    float c[32] = {};
    u64 matrix = matrix_descriptor(shared_address(shared) + kSwizzlePattern) / 32 * 32;
    if (fault == 1 && threadIdx.x / 32 == 2) matrix = advanced(matrix, 32);
    if (fault == 2 && threadIdx.x % 32 == 7) matrix = advanced(matrix, 32);
    wgmma_fence();
    wgmma<true>(F16{}, c, matrix, matrix);
    wgmma_commit();
    if (fault == 3 && threadIdx.x == 100) c[5] = 1.0F;
    wgmma_wait<0>(c);
    d[threadIdx.x] = c[0];
}
