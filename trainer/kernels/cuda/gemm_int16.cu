// Products of INT16 vectors on tensor cores: integers by their f16 digits (int16.cu), joined as
// integers and rounded once (docs/formats/operators.md, "INT16 vectors").
//
// Digits are at most 128 in magnitude. Up to two products of digits share an order, so within 512
// of K an accumulator adds at most 1024 products of at most 2^14: exact in f32, on every
// architecture and in any order. After that the sums are emptied into 64-bit integers.
#include "bitwitness/pinned_int16.h"
#include "fragments.cuh"

constexpr int kStages = 2;
constexpr int kWarpsM = 4, kWarpsN = 2;
constexpr int kNI = 4;  // instruction tiles of 16 x 8 side by side in a warp
constexpr int kThreads = kWarpsM * kWarpsN * 32;
constexpr int kTile = kWarpsM * 16;  // rows and columns of a block
static_assert(kTile == kWarpsN * kNI * 8 && kTile * kChunks == kThreads, "a thread, a chunk");
constexpr int kDigitsB = 2;
constexpr int kEmptyEvery = 512 / kBlockK;
constexpr int kPlaneElements = kTile * kBlockK;

// Planes [digits, batch, tiles * kTile, k_padded] and exponents [batch, tiles * kTile].
struct Digits {
    const u16* planes;
    const i32* unit;
    i64 plane;  // elements from one plane to the next
    i64 rows;   // of the operand
};

template <int DIGITS_A>
struct DigitTile {
    static constexpr int kOrders = DIGITS_A + kDigitsB - 1;
    static constexpr int kStageElements = (DIGITS_A + kDigitsB) * kPlaneElements;

    const Digits &a, &b;
    u16* const stages;
    const u16 *from_a, *from_b;  // what this thread copies of the first planes' first block
    float sums[kOrders][kNI][4] = {};
    i64 totals[kNI][4] = {};

    __device__ __forceinline__ DigitTile(const Digits& left, const Digits& right, int k_padded,
                                         unsigned char* shared)
        : a(left),
          b(right),
          stages(reinterpret_cast<u16*>(shared)),
          from_a(left.planes + chunk(blockIdx.y, gridDim.y, k_padded)),
          from_b(right.planes + chunk(blockIdx.x, gridDim.x, k_padded)) {}

    __device__ __forceinline__ static int thread() { return static_cast<int>(threadIdx.x); }
    __device__ __forceinline__ static int lane() { return thread() % 32; }
    __device__ __forceinline__ static int warp_m() { return thread() / 32 / kWarpsN; }
    __device__ __forceinline__ static int warp_n() { return thread() / 32 % kWarpsN; }

    __device__ __forceinline__ static i64 chunk(i64 tile, i64 tiles, int k_padded) {
        const i64 row = (blockIdx.z * tiles + tile) * kTile + thread() / kChunks;
        return row * k_padded + thread() % kChunks * 8;
    }

    // Starts the copy of a block along K, if there is one. The group is committed in any case:
    // waiting counts groups, so there is one per block.
    __device__ __forceinline__ void fetch(int block, int blocks) {
        if (block < blocks) {
            const int k0 = block * kBlockK;
            u16* to = stages + block % kStages * kStageElements +
                      swizzled(thread() / kChunks, thread() % kChunks);
#pragma unroll
            for (int i = 0; i < DIGITS_A; ++i) {
                cp_async_16(to + i * kPlaneElements, from_a + i * a.plane + k0);
            }
#pragma unroll
            for (int j = 0; j < kDigitsB; ++j) {
                cp_async_16(to + (DIGITS_A + j) * kPlaneElements, from_b + j * b.plane + k0);
            }
        }
        cp_async_commit();
    }

    __device__ __forceinline__ void multiply(const u16* from) {
        FragmentA x[DIGITS_A];
#pragma unroll
        for (int i = 0; i < DIGITS_A; ++i) {
            x[i].load(from + i * kPlaneElements, warp_m() * 16, lane());
        }
#pragma unroll
        for (int ni = 0; ni < kNI; ++ni) {
            FragmentB y[kDigitsB];
#pragma unroll
            for (int j = 0; j < kDigitsB; ++j) {
                y[j].load(from + (DIGITS_A + j) * kPlaneElements, (warp_n() * kNI + ni) * 8,
                          lane());
            }
#pragma unroll
            for (int i = 0; i < DIGITS_A; ++i) {
#pragma unroll
                for (int j = 0; j < kDigitsB; ++j) {
                    mma_f16(sums[i + j][ni], x[i].k0, y[j].k[0], y[j].k[1]);
                    mma_f16(sums[i + j][ni], x[i].k16, y[j].k[2], y[j].k[3]);
                }
            }
        }
    }

    __device__ __forceinline__ void empty() {
#pragma unroll
        for (int ni = 0; ni < kNI; ++ni) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                i64 joined = 0;
#pragma unroll
                for (int order = 0; order < kOrders; ++order) {
                    joined = bitwitness::int16_append(joined, sums[order][ni][i]);
                    sums[order][ni][i] = 0.0F;
                }
                totals[ni][i] += joined;
            }
        }
    }

    // Elements lie as device.cuh says: row lane / 4 + i / 2 * 8, column lane % 4 * 2 + i % 2.
    __device__ __forceinline__ void store(float* d, u32* status, u32 op) const {
        const i64 row0 = static_cast<i64>(blockIdx.y) * kTile + warp_m() * 16 + lane() / 4;
        const i64 column0 =
            static_cast<i64>(blockIdx.x) * kTile + warp_n() * kNI * 8 + lane() % 4 * 2;
        const i32* unit_a = a.unit + static_cast<i64>(blockIdx.z) * gridDim.y * kTile;
        const i32* unit_b = b.unit + static_cast<i64>(blockIdx.z) * gridDim.x * kTile;
        bool finite = true;
#pragma unroll
        for (int ni = 0; ni < kNI; ++ni) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const i64 row = row0 + i / 2 * 8, column = column0 + ni * 8 + i % 2;
                if (row >= a.rows || column >= b.rows) continue;
                const float value =
                    bitwitness::int16_round(totals[ni][i], unit_a[row] + unit_b[column]);
                finite = finite && is_finite(value);
                d[(blockIdx.z * a.rows + row) * b.rows + column] = value;
            }
        }
        if (!finite) report_nonfinite(status, op);
    }

    __device__ __forceinline__ void run(int blocks) {
        fetch(0, blocks);
        for (int block = 0; block < blocks; ++block) {
            cp_async_wait<0>();
            // Now every thread's copies have arrived, and all have left the stage filled next.
            __syncthreads();
            fetch(block + 1, blocks);
            multiply(stages + block % kStages * kStageElements);
            if (block % kEmptyEvery == kEmptyEvery - 1 || block == blocks - 1) empty();
        }
    }
};

// Blocks: (column tiles, row tiles, batch). Shared memory: kStages * kStageElements * 2 bytes.
#define DIGIT_KERNEL(name, DIGITS_A)                                                             \
    KERNEL(kThreads, name)                                                                       \
    (const u16* a, const u16* b, i64 plane_a, i64 plane_b, const i32* unit_a, const i32* unit_b, \
     float* d, i64 m, i64 n, int k_padded, u32* status, u32 op) {                                \
        DYNAMIC_SHARED(shared);                                                                  \
        const Digits left{a, unit_a, plane_a, m}, right{b, unit_b, plane_b, n};                  \
        DigitTile<DIGITS_A> tile(left, right, k_padded, shared);                                 \
        tile.run(k_padded / kBlockK);                                                            \
        tile.store(d, status, op);                                                               \
    }

DIGIT_KERNEL(gemm_int16_scores, 2)
DIGIT_KERNEL(gemm_int16_mix, 3)
