// The few machine operations that the kernels use beyond plain CUDA C++, each a small
// function. Under nvcc or NVRTC they are PTX; elsewhere a header of the same functions for
// the host stands in, so that the kernel sources run unchanged on a CPU.
//
// Fragment layouts are those of the PTX ISA for m16n8k16. With g = lane / 4, t = lane % 4,
// and two 16-bit elements in a register, the lower k in the lower half:
//   A (16 x 16)  a[0]: row g, k 2t..2t+1   a[1]: row g+8   a[2]: row g, k+8   a[3]: row g+8, k+8
//   B (16 x 8)   b[0]: k 2t..2t+1, column g                b[1]: k+8
//   D (16 x 8)   d[0..1]: row g, columns 2t..2t+1          d[2..3]: row g+8
#pragma once

#include "bitwitness/pinned_arith.h"

using bitwitness::i32;
using bitwitness::i64;
using bitwitness::u32;
using bitwitness::u64;
using u8 = unsigned char;
using u16 = unsigned short;

constexpr u32 kWarp = 32;
constexpr u32 kAllLanes = 0xffffffffU;

#if defined(__CUDACC__)

#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]

// d := d + A * B as one tensor-core instruction. "volatile" is not needed: the bits depend on
// the operands alone.
__device__ __forceinline__ void mma_f16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

// Four 8 x 8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix
// l / 8 and receives, of each matrix, elements 2(l % 4) and 2(l % 4) + 1 of row l / 4.
__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Starts a copy of 16 aligned bytes; it has arrived once its group has been waited for and a
// barrier passed.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)),
                 "l"(global)
                 : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most N of this thread's groups are still under way.
template <int N>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Round to nearest even, subnormal results kept.
__device__ __forceinline__ u16 f16_rne(float x) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}

__device__ __forceinline__ float f16_value(u16 bits) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

#else
#include "host_device.hpp"
#endif

// A kernel that a launcher finds by name, and the threads of its blocks.
#define KERNEL(threads, name) extern "C" __global__ void __launch_bounds__(threads) name

// The status word: 2 * operator + kind of the first fault on a stream, 0 while there is none.
__device__ __forceinline__ void report_nonfinite(u32* status, u32 op) {
    atomicCAS(status, 0U, 2U * op);
}
__device__ __forceinline__ void report_out_of_range(u32* status, u32 op) {
    atomicCAS(status, 0U, 2U * op + 1U);
}

__device__ __forceinline__ bool in_range(i32 index, i64 size) { return index >= 0 && index < size; }

__device__ __forceinline__ bool is_finite(float x) {
    return (__float_as_uint(x) & 0x7f800000U) != 0x7f800000U;
}

// This thread's number in a grid of one dimension.
__device__ __forceinline__ i64 global_thread() {
    return static_cast<i64>(blockIdx.x) * blockDim.x + threadIdx.x;
}
