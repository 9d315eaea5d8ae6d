// Where a block's tile lies, and the ring of shared-memory stages through which its operands
// come: what every tensor-core product has in common, whatever instruction multiplies.
#pragma once

#include "device.cuh"

constexpr int kBlockK = 32;           // heal's block along K, and a stage's
constexpr int kChunks = kBlockK / 8;  // 16-byte chunks in a row of a stage

// What a block must know about its product.
struct Product {
    const u16 *a, *b;  // [planes, batch, tiles * rows of a tile, k_padded]
    // The greatest magnitude's bits, heal: of every row of a plane, [batch, rows]; exact: of
    // every row's every block, [batch, blocks, rows].
    const u32 *amax_a, *amax_b;
    float* d;              // [batch, m, n]
    i64 plane_a, plane_b;  // elements from one plane to the next
    i64 m, n;
    int k_padded, tiles_m, tiles_n;
};

// Blocks are (kStrip * tiles_n, strips of tile rows, batch): blocks that run together read few
// panels, and a block's place follows from its index without keeping a register.
constexpr int kStrip = 8;

struct Place {
    __device__ __forceinline__ static i64 batch() { return blockIdx.z; }
    __device__ __forceinline__ static int tile_m() {
        return static_cast<int>(blockIdx.y * kStrip + blockIdx.x % kStrip);
    }
    __device__ __forceinline__ static int tile_n() { return static_cast<int>(blockIdx.x / kStrip); }
};

// Where chunk c of row r lies in a stage, in 16-bit elements. Rows are 64 bytes, so eight rows
// would meet in the same banks; the exclusive or spreads any eight consecutive rows over all.
// It depends on r modulo 8 only: whole eights of rows may be added as r * kBlockK. In a stage
// that begins at a multiple of 512 bytes this is the PTX ISA's 64-byte swizzle.
__device__ __forceinline__ int swizzled(int row, int chunk) {
    return row * kBlockK + ((chunk ^ ((row >> 1) & (kChunks - 1))) * 8);
}

// A ring of stages, each one block along K of A's rows and then B's, plane by plane, and where
// in the planes this thread's share of the next block begins.
template <int THREADS, int ROWS, int COLUMNS, int PLANES>
struct Ring {
    static constexpr int kPlaneElements = (ROWS + COLUMNS) * kBlockK;
    static constexpr int kStageElements = PLANES * kPlaneElements;

    const Product& p;
    u16* const stages;
    const u16 *next_a, *next_b;

    __device__ __forceinline__ Ring(const Product& product, u16* shared)
        : p(product),
          stages(shared),
          next_a(first_chunk(product.a, Place::batch() * p.tiles_m + Place::tile_m(), ROWS)),
          next_b(first_chunk(product.b, Place::batch() * p.tiles_n + Place::tile_n(), COLUMNS)) {}

    __device__ __forceinline__ static int thread() { return static_cast<int>(threadIdx.x); }

    __device__ __forceinline__ const u16* first_chunk(const u16* planes, i64 tile, int rows) const {
        const i64 row = tile * rows + thread() / kChunks;
        return planes + row * p.k_padded + thread() % kChunks * 8;
    }

    __device__ __forceinline__ u16* at(int stage) const { return stages + stage * kStageElements; }

    // Starts the copy of the next block along K, if there is one. The group is committed in
    // any case: waiting counts groups, so there must be one per block.
    __device__ __forceinline__ void fetch(int stage, bool more) {
        if (more) {
            u16* to = at(stage) + swizzled(thread() / kChunks, thread() % kChunks);
            fetch_rows<ROWS>(to, next_a, p.plane_a);
            fetch_rows<COLUMNS>(to + ROWS * kBlockK, next_b, p.plane_b);
            next_a += kBlockK;
            next_b += kBlockK;
        }
        cp_async_commit();
    }

    template <int COUNT>
    __device__ __forceinline__ void fetch_rows(u16* to, const u16* from, i64 plane_stride) const {
        constexpr int kStep = THREADS / kChunks;  // rows that all threads copy at once
#pragma unroll
        for (int plane = 0; plane < PLANES; ++plane) {
#pragma unroll
            for (int r = 0; r < COUNT; r += kStep) {
                if (r + kStep > COUNT && r + thread() / kChunks >= COUNT) break;
                cp_async_16(to + plane * kPlaneElements + r * kBlockK,
                            from + plane * plane_stride + static_cast<i64>(r) * p.k_padded);
            }
        }
    }
};

// A kernel that is a Tile of its own: Tile(product, shared memory).run(status, operator). With
// what scales the operands, or, of one plane, without.
#define SCALED_KERNEL(name, ...)                                                                 \
    KERNEL((__VA_ARGS__::kThreads), name)                                                        \
    (const u16* a, const u16* b, i64 plane_a, i64 plane_b, const u32* amax_a, const u32* amax_b, \
     float* d, i64 m, i64 n, int k_padded, int tiles_m, int tiles_n, u32* status, u32 op) {      \
        DYNAMIC_SHARED(shared);                                                                  \
        const Product p{a,       b, amax_a, amax_b,   d,       plane_a,                          \
                        plane_b, m, n,      k_padded, tiles_m, tiles_n};                         \
        __VA_ARGS__(p, shared).run(status, op);                                                  \
    }

#define UNSCALED_KERNEL(name, ...)                                                               \
    KERNEL((__VA_ARGS__::kThreads), name)                                                        \
    (const u16* a, const u16* b, float* d, i64 m, i64 n, int k_padded, int tiles_m, int tiles_n, \
     u32* status, u32 op) {                                                                      \
        DYNAMIC_SHARED(shared);                                                                  \
        const Product p{a, b, nullptr, nullptr, d, 0, 0, m, n, k_padded, tiles_m, tiles_n};      \
        __VA_ARGS__(p, shared).run(status, op);                                                  \
    }
