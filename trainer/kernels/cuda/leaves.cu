// Leaf order, leaf hashes and tree levels: `sha256-rfc9162-tile64-v1` (docs/formats/leaves.md),
// SHA-256 by FIPS 180-4. Elements are one, two, four or eight bytes wide, so a leaf may begin and
// end at any byte.
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

// What is hashed: a prefix byte, then bytes [begin, begin + count) of a range that starts at a
// whole word. Message word i holds the range's bytes from begin - 1 + 4i on, so it is made of two
// words of the range, `kept` bytes of the first among them.
struct Message {
    const u32* words;
    i64 begin, count;
    u32 prefix;

    __device__ __forceinline__ i64 first_word() const { return (begin + 3) / 4 - 1; }
    __device__ __forceinline__ u32 skipped() const { return static_cast<u32>((begin + 3) % 4); }
    __device__ __forceinline__ i64 blocks() const { return (1 + count + 9 + 63) / 64; }
    // Blocks that can be read by words: what these cover ends inside the leaf.
    __device__ __forceinline__ i64 whole_blocks() const { return (count + skipped() - 3) / 64; }

    // Byte i of the message and its padding, but for the length.
    __device__ __forceinline__ u32 byte_at(i64 i) const {
        if (i == 0) return prefix;
        if (i > count) return i == count + 1 ? 0x80U : 0U;
        return reinterpret_cast<const u8*>(words)[begin + i - 1];
    }

    // The word before the first that is read: the prefix, and what of the leaf lies behind it.
    __device__ __forceinline__ u32 opening() const {
        const u32 at = 8 * skipped();
        const u32 around = at == 24 ? 0U : words[first_word()];
        return (around & ~(0xffU << at)) | (prefix << at);
    }

    __device__ __forceinline__ void read_words(u32 (&w)[16], i64 block, u32& before) const {
        const u32* from = words + first_word() + 1 + 16 * block;
        const u32 order = 0x0123U + skipped() * 0x1111U;
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const u32 word = from[i];
            w[i] = __byte_perm(before, word, order);
            before = word;
        }
    }

    __device__ __forceinline__ void read_bytes(u32 (&w)[16], i64 block) const {
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const i64 at = 64 * block + 4 * i;
            w[i] =
                byte_at(at) << 24 | byte_at(at + 1) << 16 | byte_at(at + 2) << 8 | byte_at(at + 3);
        }
        if (block != blocks() - 1) return;
        const u64 bits = 8 * static_cast<u64>(1 + count);
        w[14] = static_cast<u32>(bits >> 32);
        w[15] = static_cast<u32>(bits);
    }
};

__device__ __forceinline__ void hash(const Message& message, u32* digest) {
    u32 state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const i64 blocks = message.blocks(), whole = message.whole_blocks();
    u32 before = whole > 0 ? message.opening() : 0U;
    for (i64 block = 0; block < blocks; ++block) {
        u32 w[16];
        if (block < whole) {
            message.read_words(w, block, before);
        } else {
            message.read_bytes(w, block);
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
    hash({data, bounds[leaf], bounds[leaf + 1] - bounds[leaf], kLeafPrefix}, hashes + 8 * leaf);
}

// One level up of an RFC 9162 tree: neighbours are hashed in pairs, an odd last one moves up.
KERNEL(kHashThreads, tree_level)(const u32* below, i64 count, u32* above) {
    const i64 node = global_thread();
    if (2 * node >= count) return;
    if (2 * node + 1 < count) {
        return hash({below, 64 * node, 64, kNodePrefix}, above + 8 * node);
    }
    for (int i = 0; i < 8; ++i) above[8 * node + i] = below[16 * node + i];
}

// Where element `at` of a contiguous tensor [.., rows, columns] lies in leaf order: 64 x 64 tiles
// row by row, each row-major, edge tiles smaller.
__device__ __forceinline__ i64 leaf_place(i64 at, i64 rows, i64 columns) {
    const i64 column = at % columns, row = at / columns % rows;
    const i64 matrix = at - row * columns - column;
    const i64 band = row / kTile * kTile, left = column / kTile * kTile;
    const i64 height = min(rows - band, kTile), width = min(columns - left, kTile);
    return matrix + band * columns + left * height + (row - band) * width + column - left;
}

// n elements into leaf order, one thread each.
#define PACK_KERNEL(name, Element)                                     \
    KERNEL(kThreads, name)                                             \
    (const Element* from, i64 rows, i64 columns, i64 n, Element* to) { \
        const i64 at = global_thread();                                \
        if (at < n) to[leaf_place(at, rows, columns)] = from[at];      \
    }

PACK_KERNEL(pack_tiles_1, u8)
PACK_KERNEL(pack_tiles_2, u16)
PACK_KERNEL(pack_tiles_4, u32)
PACK_KERNEL(pack_tiles_8, u64)
