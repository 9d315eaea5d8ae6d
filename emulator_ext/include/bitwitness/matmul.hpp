// Matrix products on one tensor-core instruction.
#pragma once

#include <cstdint>

#include "bitwitness/cpu.hpp"
#include "bitwitness/matrix.hpp"
#include "bitwitness/step.hpp"

namespace bitwitness {

// Bytes that the packed copy of one side of a product may take, about: larger products are
// computed in pieces. No bit depends on it.
inline constexpr std::int64_t kPackingBytes = std::int64_t{64} << 20;

// Outputs whose chain entered a region that no recorded hardware output covers.
struct RegionCounts {
    std::int64_t special = 0;
    std::int64_t at_zero_floor = 0;
};

// D = C + left * right as chains of steps along ascending K.
//
// c and d are row-major [rows][cols] register bits: uint32 for an f32 accumulator, uint16
// for f16; c may be null (all +0). block 0 is one plain chain from c. Otherwise every
// `block` products form a chain of their own from +0, and the partial results are added to
// c in ascending order, each addition rounded to nearest even in the accumulator's format.
struct MatmulCall {
    Operand left;
    Operand right;
    const void* c;
    void* d;
    Arithmetic arithmetic;
    std::int64_t block;
    bool count_regions;  // false: the counts may miss outputs
    Path path;
    int threads;
    std::int64_t packing_bytes = kPackingBytes;
};

// Formats of at most 32 bits.
RegionCounts matmul(const MatmulCall& call);

// d[n] = c[n] + left[n][:] . right[n][:], chain by chain on the reference path.
struct DotCall {
    Operand left;
    Operand right;
    const void* c;
    void* d;
    Arithmetic arithmetic;
    std::int64_t block;
};

RegionCounts dot(const DotCall& call);

}  // namespace bitwitness
