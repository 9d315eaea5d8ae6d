// Leaf order, leaf hashes and tree levels: `sha256-rfc9162-tile64-v1` (docs/formats/leaves.md),
// SHA-256 by FIPS 180-4. Elements are four bytes wide, so leaves are whole 32-bit words.
#include "device.cuh"

constexpr int kThreads = 256;
constexpr int kHashThreads = 32;  // few leaves, long work: small blocks reach every multiprocessor
constexpr i64 kTile = 64;
constexpr u32 kLeafPrefix = 0x00;
constexpr u32 kNodePrefix = 0x01;

__constant__ u32 kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

__device__ __forceinline__ u32 rotated(u32 x, u32 n) { return __funnelshift_r(x, x, n); }

__device__ __forceinline__ void compress(u32 (&state)[8], u32 (&w)[16]) {
    u32 a = state[0], b = state[1], c = state[2], d = state[3];
    u32 e = state[4], f = state[5], g = state[6], h = state[7];
#pragma unroll
    for (int t = 0; t < 64; ++t) {
        if (t >= 16) {
            const u32 w15 = w[(t + 1) % 16], w2 = w[(t + 14) % 16];
            w[t % 16] += (rotated(w15, 7) ^ rotated(w15, 18) ^ (w15 >> 3)) + w[(t + 9) % 16] +
                         (rotated(w2, 17) ^ rotated(w2, 19) ^ (w2 >> 10));
        }
        const u32 t1 = h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) +
                       ((e & f) ^ (~e & g)) + kRound[t] + w[t % 16];
        const u32 t2 =
            (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
        h = g, g = f, f = e, e = d + t1;
        d = c, c = b, b = a, a = t1 + t2;
    }
    state[0] += a, state[1] += b, state[2] += c, state[3] += d;
    state[4] += e, state[5] += f, state[6] += g, state[7] += h;
}

// digest := SHA-256(prefix byte, then `count` little-endian words). The prefix shifts every word
// by one byte, so a big-endian message word takes one byte of one word and three of the next.
__device__ __forceinline__ void hash_prefixed(u32 prefix, const u32* words, i64 count,
                                              u32* digest) {
    u32 state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const i64 blocks = (count * 4 + 1 + 9 + 63) / 64;
    u32 before = prefix << 24;
    for (i64 block = 0; block < blocks; ++block) {
        u32 w[16];
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const i64 at = block * 16 + i;
            const u32 word = at < count ? words[at] : (at == count ? 0x80U : 0U);
            w[i] = __byte_perm(before, word, 0x3456);
            before = word;
        }
        if (block == blocks - 1) {
            const u64 bits = (static_cast<u64>(count) * 4 + 1) * 8;
            w[14] = static_cast<u32>(bits >> 32);
            w[15] = static_cast<u32>(bits);
        }
        compress(state, w);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) digest[i] = __byte_perm(state[i], 0, 0x0123);
}

// hashes[leaves, 8] of the leaves of a byte range; `bounds` [leaves + 1] in bytes.
KERNEL(kHashThreads, leaf_hashes)(const u32* data, const i64* bounds, i64 leaves, u32* hashes) {
    const i64 leaf = global_thread();
    if (leaf >= leaves) return;
    const i64 begin = bounds[leaf] / 4, end = bounds[leaf + 1] / 4;
    hash_prefixed(kLeafPrefix, data + begin, end - begin, hashes + 8 * leaf);
}

// One level up of an RFC 9162 tree: neighbours are hashed in pairs, an odd last one moves up.
KERNEL(kHashThreads, tree_level)(const u32* below, i64 count, u32* above) {
    const i64 node = global_thread();
    if (2 * node >= count) return;
    if (2 * node + 1 < count) {
        return hash_prefixed(kNodePrefix, below + 16 * node, 16, above + 8 * node);
    }
    for (int i = 0; i < 8; ++i) above[8 * node + i] = below[16 * node + i];
}

// A contiguous tensor [.., rows, columns] of n elements into leaf order: 64 x 64 tiles row by
// row, each row-major, edge tiles smaller.
KERNEL(kThreads, pack_tiles)(const u32* from, i64 rows, i64 columns, i64 n, u32* to) {
    const i64 at = global_thread();
    if (at >= n) return;
    const i64 column = at % columns, row = at / columns % rows;
    const i64 matrix = at - row * columns - column;
    const i64 band = row / kTile * kTile, left = column / kTile * kTile;
    const i64 height = min(rows - band, kTile), width = min(columns - left, kTile);
    to[matrix + band * columns + left * height + (row - band) * width + column - left] = from[at];
}
