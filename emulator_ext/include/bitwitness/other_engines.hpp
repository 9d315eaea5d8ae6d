// The instructions that are not plain chains of steps: FP8 through mma.sync on Hopper and
// B200 (NUMERICS 1.3), FP64 (DMMA) and 8-bit integers (IMMA).
#pragma once

#include <cstdint>

#include "bitwitness/matmul.hpp"

namespace bitwitness {

// matmul() for FP8 operands that the hardware converts to f16: of every 32 products, those
// with k mod 4 in {0, 1} and then the others make two f16 steps from +0, whose result is
// added to the accumulator with one rounding to nearest even. `block` is not used.
RegionCounts matmul_fp8_through_f16(const MatmulCall& call);
RegionCounts dot_fp8_through_f16(const DotCall& call);

// c, d: row-major f64 bits. One IEEE fma per product, ascending K; a NaN is canonical,
// 0x7fffffffffffffff.
struct DoubleMatmulCall {
    MatrixView<const double> left;
    MatrixView<const double> right;
    const double* c;  // may be null
    double* d;
    Path path;
    int threads;
};

// Both return how many outputs are NaN or infinite; dot_f64 takes left and right of one
// shape, c and d [rows], and runs on the calling thread.
std::int64_t matmul_f64(const DoubleMatmulCall& call);
std::int64_t dot_f64(const DoubleMatmulCall& call);

// Operands s8 or u8, in any mix; c, d row-major int32. Exact modulo 2^32.
struct IntegerMatmulCall {
    Operand left;
    Operand right;
    const std::int32_t* c;  // may be null
    std::int32_t* d;
    Path path;
    int threads;
};

void matmul_integer(const IntegerMatmulCall& call);

}  // namespace bitwitness
