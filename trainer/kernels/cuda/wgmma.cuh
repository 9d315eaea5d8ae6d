// Hopper's asynchronous warpgroup-wide matrix instruction, wgmma of the PTX ISA, each operation a
// small function. Both operands lie in shared memory, K contiguous, described by a matrix
// descriptor; the accumulator is in registers.
//
// D (64 x N) over the 128 threads of a warpgroup, with w = warp % 4, g = lane / 4, t = lane % 4:
//   d[4j], d[4j+1]: row 16w + g, columns 8j + 2t and 8j + 2t + 1      d[4j+2], d[4j+3]: row + 8
//
// What the ISA asks for, and who must see to it:
//   * Writes to shared memory by other means, cp.async among them, become visible to wgmma by
//     the writer's fence_proxy_async() and then a barrier.
//   * wgmma_fence() stands before the first wgmma, and between any access to accumulator
//     registers and the next wgmma on them. Chained wgmma of one shape need none.
//   * Registers and operands of a wgmma are its own until its group has been waited for.
#pragma once

#include "device.cuh"

// Bytes from which the pattern of the 64-byte swizzle repeats: matrices begin at a multiple.
constexpr u32 kSwizzlePattern = 512;
constexpr int kWarpgroup = 128;
constexpr int kInstructionRows = 64;
constexpr int kInstructionK = 16;

// Fields of the descriptor, addresses and distances in units of 16 bytes. With a swizzle and K
// contiguous the leading dimension's distance has no effect; the other is from 8 rows to the
// next 8, here of 64 bytes each.
__device__ __forceinline__ u64 matrix_descriptor(u32 address) {
    constexpr u64 kLeading = 1, kStride = kSwizzlePattern / 16, kSwizzle64 = 2;
    return static_cast<u64>((address & 0x3ffffU) >> 4) | kLeading << 16 | kStride << 32 |
           kSwizzle64 << 62;
}

// The descriptor of a matrix so many bytes further on.
__device__ __forceinline__ u64 advanced(u64 descriptor, int bytes) {
    return descriptor + static_cast<u64>(bytes / 16);
}

// Operand formats. wgmma<ACCUMULATE>(Format{}, d, a, b) is d := A * B, or d := d + A * B.
struct F16 {};
struct BF16 {};

#if defined(__CUDACC__)

__device__ __forceinline__ void fence_proxy_async() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most N of this warpgroup's groups are still under way.
template <int N>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// The same; and nothing that reads `d` may be moved to before it.
template <int N, int R>
__device__ __forceinline__ void wgmma_wait(float (&d)[R]) {
    wgmma_wait<N>();
#pragma unroll
    for (int i = 0; i < R; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// The names of so many registers in an instruction's text.
#define WGMMA_5(tens, a, b, c, d, e) "%" tens a ",%" tens b ",%" tens c ",%" tens d ",%" tens e ","
#define WGMMA_10(tens) WGMMA_5(tens, "0", "1", "2", "3", "4") WGMMA_5(tens, "5", "6", "7", "8", "9")
#define WGMMA_30 WGMMA_10("") WGMMA_10("1") WGMMA_10("2")
#define WGMMA_60 WGMMA_30 WGMMA_10("3") WGMMA_10("4") WGMMA_10("5")
#define WGMMA_90 WGMMA_60 WGMMA_10("6") WGMMA_10("7") WGMMA_10("8")
#define WGMMA_120 WGMMA_90 WGMMA_10("9") WGMMA_10("10") WGMMA_10("11")
#define WGMMA_LIST_32 WGMMA_30 "%30,%31"
#define WGMMA_LIST_64 WGMMA_60 "%60,%61,%62,%63"
#define WGMMA_LIST_128 WGMMA_120 "%120,%121,%122,%123,%124,%125,%126,%127"

// And as its operands.
#define WGMMA_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define WGMMA_16(i) WGMMA_4(i), WGMMA_4(i + 4), WGMMA_4(i + 8), WGMMA_4(i + 12)
#define WGMMA_D_32 WGMMA_16(0), WGMMA_16(16)
#define WGMMA_D_64 WGMMA_D_32, WGMMA_16(32), WGMMA_16(48)
#define WGMMA_D_128 WGMMA_D_64, WGMMA_16(64), WGMMA_16(80), WGMMA_16(96), WGMMA_16(112)

// After the registers: the descriptors, whether to accumulate, both signs +, neither transposed.
#define WGMMA(Format, types, n, r, a_place, b_place, accumulate_place)                           \
    template <bool ACCUMULATE>                                                                   \
    __device__ __forceinline__ void wgmma(Format, float (&d)[r], u64 a, u64 b) {                 \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." types " {" WGMMA_LIST_##r \
                     "}, %" #a_place ", %" #b_place ", %" #accumulate_place ", 1, 1, 0, 0;"      \
                     : WGMMA_D_##r                                                               \
                     : "l"(a), "l"(b), "n"(ACCUMULATE)                                           \
                     : "memory");                                                                \
    }

WGMMA(F16, "f16.f16", 64, 32, 32, 33, 34)
WGMMA(F16, "f16.f16", 128, 64, 64, 65, 66)
WGMMA(BF16, "bf16.bf16", 128, 64, 64, 65, 66)
WGMMA(BF16, "bf16.bf16", 256, 128, 128, 129, 130)

#else
#include "host_wgmma.hpp"
#endif
