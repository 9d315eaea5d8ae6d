// CUDA's built-ins and the machine operations of trainer/kernels/cuda/device.cuh, for fibres
// on the CPU. Included by device.cuh when no CUDA compiler is at work.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "bitwitness/step.hpp"
#include "fibres.hpp"

#define __global__
#define __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __constant__ static const
// One section for all static shared arrays: it is poisoned before each block.
#define __shared__ static __attribute__((section("kernel_shared")))
#define DYNAMIC_SHARED(name) unsigned char* const name = shim::dynamic_shared()

#define threadIdx (shim::current().index)
#define blockIdx (shim::block_index())
#define blockDim (shim::block_dim())
#define gridDim (shim::grid_dim())

using std::max;
using std::min;

// Where the source calls an operation: the default arguments are evaluated there.
#define SHIM_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(SHIM_SITE) {
    if (!shim::omitted("__syncthreads", file, line)) shim::block_barrier();
}
inline void __syncwarp(unsigned = 0xffffffffU) {
    shim::warp_collective(nullptr, [](const shim::Lanes&) {});
}

inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float __double2float_rn(double a) { return static_cast<float>(a); }
inline unsigned __float_as_uint(float a) { return std::bit_cast<unsigned>(a); }
inline int __float_as_int(float a) { return std::bit_cast<int>(a); }
inline float __uint_as_float(unsigned a) { return std::bit_cast<float>(a); }
inline float __int_as_float(int a) { return std::bit_cast<float>(a); }
inline double __longlong_as_double(long long a) { return std::bit_cast<double>(a); }
inline long long __double_as_longlong(double a) { return std::bit_cast<long long>(a); }
inline int __float2int_rn(float a) { return static_cast<int>(std::nearbyint(a)); }
inline int __clz(int a) { return std::countl_zero(static_cast<unsigned>(a)); }

// The low 32 bits of (high:low) >> shift.
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    const auto both = (static_cast<std::uint64_t>(high) << 32) | low;
    return static_cast<unsigned>(both >> (shift & 31U));
}

// Each nibble of the selector names one byte of (b:a).
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const auto both = (static_cast<std::uint64_t>(b) << 32) | a;
    unsigned result = 0;
    for (unsigned i = 0; i < 4; ++i) {
        const unsigned source = (selector >> (4 * i)) & 7U;
        result |= static_cast<unsigned>((both >> (8 * source)) & 0xffU) << (8 * i);
    }
    return result;
}

inline unsigned atomicMax(unsigned* at, unsigned value) {
    return std::exchange(*at, std::max(*at, value));
}
inline unsigned atomicCAS(unsigned* at, unsigned expected, unsigned desired) {
    const unsigned old = *at;
    if (old == expected) *at = desired;
    return old;
}

namespace shim {

// Every lane receives the value of the lane that `source` names for it.
template <class T, class Source>
T shuffle(T value, Source source) {
    struct Exchange {
        T in, out;
    } mine{value, value};
    warp_collective(&mine, [source](const Lanes& lanes) {
        for (unsigned l = 0; l < kWarpSize; ++l) {
            static_cast<Exchange*>(lanes[l])->out = static_cast<Exchange*>(lanes[source(l)])->in;
        }
    });
    return mine.out;
}

}  // namespace shim

template <class T>
T __shfl_sync(unsigned, T value, int from) {
    return shim::shuffle(value, [from](unsigned) { return static_cast<unsigned>(from); });
}

template <class T>
T __shfl_xor_sync(unsigned, T value, unsigned mask) {
    return shim::shuffle(value, [mask](unsigned lane) { return lane ^ mask; });
}

template <class T>
T __shfl_down_sync(unsigned, T value, unsigned delta) {
    return shim::shuffle(value, [delta](unsigned lane) {
        return lane + delta < shim::kWarpSize ? lane + delta : lane;
    });
}

namespace shim {

// What a lane brings to an m16n8k16 instruction.
struct MmaOperands {
    float* d;
    const unsigned* a;
    unsigned b[2];
};

inline std::uint16_t half_of(unsigned word, int i) {
    return static_cast<std::uint16_t>(word >> (16 * i));
}

// Gathers the fragments of 32 lanes by the PTX ISA's layout (device.cuh) and runs the
// emulator's chain for each of the 128 outputs.
inline void mma(const Lanes& lanes, bitwitness::Format format) {
    const auto layout = bitwitness::layout_of(format);
    bitwitness::Unpacked a[16][16], b[8][16];  // rows of A, columns of B, along k
    for (int l = 0; l < 32; ++l) {
        const auto& in = *static_cast<const MmaOperands*>(lanes[static_cast<std::size_t>(l)]);
        for (int r = 0; r < 4; ++r) {
            for (int i = 0; i < 2; ++i) {
                a[l / 4 + r % 2 * 8][l % 4 * 2 + i + r / 2 * 8] =
                    unpack(layout, half_of(in.a[r], i));
                if (r < 2) b[l / 4][l % 4 * 2 + i + r * 8] = unpack(layout, half_of(in.b[r], i));
            }
        }
    }
    const bitwitness::Arithmetic arithmetic{launch().fraction_bits, launch().group,
                                            launch().zero_exponent, bitwitness::Rounding::rz_f32};
    for (int l = 0; l < 32; ++l) {
        float* d = static_cast<const MmaOperands*>(lanes[static_cast<std::size_t>(l)])->d;
        for (int i = 0; i < 4; ++i) {
            const auto bits = bitwitness::chain(a[l / 4 + i / 2 * 8], b[l % 4 * 2 + i % 2],
                                                2 * layout.fraction_bits, __float_as_uint(d[i]),
                                                arithmetic, nullptr);
            d[i] = __uint_as_float(bits);
        }
    }
}

// One 8 x 8 matrix row of 16-bit elements per lane in, four fragments per lane out.
struct MatrixLoad {
    const std::uint16_t* row;
    unsigned* out;
};

inline void ldmatrix(const Lanes& lanes) {
    for (std::size_t l = 0; l < 32; ++l) {
        for (std::size_t matrix = 0; matrix < 4; ++matrix) {
            const auto* row = static_cast<const MatrixLoad*>(lanes[8 * matrix + l / 4])->row;
            std::memcpy(static_cast<const MatrixLoad*>(lanes[l])->out + matrix, row + l % 4 * 2, 4);
        }
    }
}

}  // namespace shim

inline void mma_f16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    shim::MmaOperands mine{d, a, {b0, b1}};
    shim::warp_collective(&mine,
                          [](const shim::Lanes& l) { shim::mma(l, bitwitness::Format::f16); });
}

inline void mma_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    shim::MmaOperands mine{d, a, {b0, b1}};
    shim::warp_collective(&mine,
                          [](const shim::Lanes& l) { shim::mma(l, bitwitness::Format::bf16); });
}

inline void ldmatrix_x4(unsigned (&r)[4], const void* row) {
    shim::MatrixLoad mine{static_cast<const std::uint16_t*>(row), r};
    shim::warp_collective(&mine, shim::ldmatrix);
}

namespace shim {

// The same bytes of dynamic shared memory in the asynchronous proxy's view, or null elsewhere.
inline unsigned char* in_async_view(void* shared) {
    const auto offset =
        static_cast<std::size_t>(static_cast<unsigned char*>(shared) - dynamic_shared());
    return offset < shared_bytes() ? async_shared() + offset : nullptr;
}

}  // namespace shim

// The bytes move at some time between this and the wait for their group. Until then they are
// poison: whoever still reads what was there before, or reads too early, shows.
inline void cp_async_16(void* shared, const void* global) {
    shim::Fibre& fibre = shim::current();
    fibre.copies.push_back({shared, global, fibre.groups});
    std::memset(shared, 0xff, 16);
    if (auto* view = shim::in_async_view(shared)) std::memset(view, 0xff, 16);
}

inline void cp_async_commit(SHIM_SITE) {
    if (!shim::omitted("cp_async_commit", file, line)) ++shim::current().groups;
}

template <int N>
void cp_async_wait(SHIM_SITE) {
    if (shim::omitted("cp_async_wait", file, line)) return;
    shim::Fibre& fibre = shim::current();
    auto& copies = fibre.copies;
    const auto arrived = [&](const shim::PendingCopy& copy) {
        return copy.group < fibre.groups - N;
    };
    for (const auto& copy : copies) {
        if (!arrived(copy)) continue;
        std::memcpy(copy.to, copy.from, 16);
        fibre.unfenced.push_back(copy.to);
    }
    std::erase_if(copies, arrived);
}

inline std::uint16_t f16_rne(float x) {
    return std::bit_cast<std::uint16_t>(static_cast<_Float16>(x));
}
inline float f16_value(std::uint16_t bits) {
    return static_cast<float>(std::bit_cast<_Float16>(bits));
}
