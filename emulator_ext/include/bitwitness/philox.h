// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel
// random numbers: as easy as 1, 2, 3" (SC 2011), and the one map from its words to floats.
//
// A stream is named by (seed, stream, step): key = (seed low, seed high) and counter =
// (block, stream, step low, step high). Block b yields words 4b .. 4b+3.
#pragma once

#include "bitwitness/pinned_arith.h"

namespace bitwitness {

struct PhiloxBlock {
    u32 word[4];
};

// One block of the generator: ten rounds over a counter and a key.
BW_PINNED PhiloxBlock philox4x32_10(PhiloxBlock counter, u32 key0, u32 key1) {
    for (int round = 0; round < 10; ++round) {
        const u64 product0 = 0xd2511f53ULL * counter.word[0];
        const u64 product1 = 0xcd9e8d57ULL * counter.word[2];
        counter = {{static_cast<u32>(product1 >> 32) ^ counter.word[1] ^ key0,
                    static_cast<u32>(product1),
                    static_cast<u32>(product0 >> 32) ^ counter.word[3] ^ key1,
                    static_cast<u32>(product0)}};
        key0 += 0x9e3779b9U;
        key1 += 0xbb67ae85U;
    }
    return counter;
}

// Block `block` of the stream (seed, stream, step).
BW_PINNED PhiloxBlock philox_block(u64 seed, u32 stream, u64 step, u32 block) {
    const PhiloxBlock counter{
        {block, stream, static_cast<u32>(step), static_cast<u32>(step >> 32)}};
    return philox4x32_10(counter, static_cast<u32>(seed), static_cast<u32>(seed >> 32));
}

// A word's high 24 bits times 2^-24: exact, in [0, 1).
BW_PINNED float unit_interval(u32 word) { return mul_rn(static_cast<float>(word >> 8), 0x1p-24F); }

}  // namespace bitwitness
