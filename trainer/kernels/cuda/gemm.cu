// D = A * B on tensor cores: the heal, bf16 and exact profiles of NUMERICS section 2.
//
// A and B come as planes (pack.cu). A block computes a tile of one matrix of the batch; K
// advances by 32 through a ring of shared-memory stages filled by cp.async. One accumulator is
// one chain in ascending K, instruction by instruction, so tile shape, stages and warps have
// no effect on any bit.
#include "exact.cuh"
#include "fragments.cuh"
#include "heal.cuh"

constexpr int kStages = 3;

// A profile is how many planes an operand has, what a thread keeps per instruction tile, what
// it does with one block of K (step), what with every kFoldEvery-th block (fold; 0: nothing),
// and what comes out.
struct Bf16 {
    static constexpr int kPlanes = 1;
    static constexpr int kFoldEvery = 0;

    // The chain never leaves the tensor core's accumulator.
    struct Accumulator {
        float chain[4];
    };

    __device__ __forceinline__ static void step(Accumulator& c, const FragmentA (&a)[1],
                                                const FragmentB (&b)[1]) {
        mma_bf16(c.chain, a[0].k0, b[0].k[0], b[0].k[1]);
        mma_bf16(c.chain, a[0].k16, b[0].k[2], b[0].k[3]);
    }

    __device__ __forceinline__ static int exponent(const u32*, i64) { return 0; }
    __device__ __forceinline__ static float result(const Accumulator& c, int i, int) {
        return c.chain[i];
    }
};

struct Heal {
    static constexpr int kPlanes = 2;  // hi, lo
    static constexpr int kFoldEvery = 0;

    struct Accumulator {
        float main[4], corr[4];
    };

    __device__ __forceinline__ static void step(Accumulator& c, const FragmentA (&a)[2],
                                                const FragmentB (&b)[2]) {
        float m[4] = {}, t[4] = {};
        mma_f16(m, a[0].k0, b[0].k[0], b[0].k[1]);
        mma_f16(m, a[0].k16, b[0].k[2], b[0].k[3]);
        mma_f16(t, a[0].k0, b[1].k[0], b[1].k[1]);
        mma_f16(t, a[0].k16, b[1].k[2], b[1].k[3]);
        mma_f16(t, a[1].k0, b[0].k[0], b[0].k[1]);
        mma_f16(t, a[1].k16, b[0].k[2], b[0].k[3]);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            c.main[i] = __fadd_rn(c.main[i], m[i]);
            c.corr[i] = __fadd_rn(c.corr[i], t[i]);
        }
    }

    __device__ __forceinline__ static int exponent(const u32* amax, i64 plane_row) {
        return heal_exponent(amax[plane_row]);
    }
    __device__ __forceinline__ static float result(const Accumulator& c, int i, int exponent) {
        return heal_result(c.main[i], c.corr[i], exponent);
    }
};

struct Exact {
    static constexpr int kPlanes = kDigits;
    static constexpr int kFoldEvery = kExactBlock / kBlockK;

    // Sums of digit products by their order o: integers below 2^24, so f32 holds them exactly
    // and neither order nor architecture has an effect on them.
    struct Accumulator {
        float c[4];
        float sums[kDigits][4];
    };

    __device__ __forceinline__ static void step(Accumulator& c, const FragmentA (&a)[kDigits],
                                                const FragmentB (&b)[kDigits]) {
#pragma unroll
        for (int i = 0; i < kDigits; ++i) {
#pragma unroll
            for (int j = 0; i + j < kDigits; ++j) {
                mma_f16(c.sums[i + j], a[i].k0, b[j].k[0], b[j].k[1]);
                mma_f16(c.sums[i + j], a[i].k16, b[j].k[2], b[j].k[3]);
            }
        }
    }

    __device__ __forceinline__ static void fold(Accumulator& c, int i, int exponents) {
#pragma unroll
        for (int o = kDigits - 1; o >= 0; --o) {
            c.c[i] = exact_combine(c.c[i], c.sums[o][i], exponents - 16 - kDigitBits * o);
            c.sums[o][i] = 0.0F;
        }
    }

    __device__ __forceinline__ static int exponent(const u32*, i64) { return 0; }
    __device__ __forceinline__ static float result(const Accumulator& c, int i, int) {
        return c.c[i];
    }
};

// WARPS_M x WARPS_N warps, each with MI x NI instruction tiles of 16 x 8.
template <class Profile, int WARPS_M, int WARPS_N, int MI, int NI>
struct Tile {
    static constexpr int kThreads = WARPS_M * WARPS_N * 32;
    static constexpr int kRows = WARPS_M * MI * 16;
    static constexpr int kColumns = WARPS_N * NI * 8;
    using Stages = Ring<kThreads, kRows, kColumns, Profile::kPlanes>;
    static constexpr int kPlaneElements = Stages::kPlaneElements;

    const Product& p;
    Stages ring;
    typename Profile::Accumulator c[MI][NI] = {};

    __device__ __forceinline__ Tile(const Product& product, unsigned char* shared)
        : p(product), ring(product, reinterpret_cast<u16*>(shared)) {}

    __device__ __forceinline__ static int thread() { return static_cast<int>(threadIdx.x); }
    __device__ __forceinline__ static int lane() { return thread() % 32; }
    __device__ __forceinline__ static int warp_m() { return thread() / 32 / WARPS_N; }
    __device__ __forceinline__ static int warp_n() { return thread() / 32 % WARPS_N; }

    // A's fragments stay in registers while B's stream by.
    __device__ __forceinline__ void multiply(const u16* from) {
        FragmentA a[MI][Profile::kPlanes];
#pragma unroll
        for (int mi = 0; mi < MI; ++mi) {
#pragma unroll
            for (int plane = 0; plane < Profile::kPlanes; ++plane) {
                a[mi][plane].load(from + plane * kPlaneElements, (warp_m() * MI + mi) * 16, lane());
            }
        }
#pragma unroll
        for (int ni = 0; ni < NI; ++ni) {
            FragmentB b[Profile::kPlanes];
#pragma unroll
            for (int plane = 0; plane < Profile::kPlanes; ++plane) {
                b[plane].load(from + plane * kPlaneElements + kRows * kBlockK,
                              (warp_n() * NI + ni) * 8, lane());
            }
#pragma unroll
            for (int mi = 0; mi < MI; ++mi) Profile::step(c[mi][ni], a[mi], b);
        }
    }

    // Element i of an instruction tile lies in row lane / 4 + i / 2 * 8, column
    // lane % 4 * 2 + i % 2 (device.cuh). These are the places of the first.
    __device__ __forceinline__ static i64 first_row() {
        return static_cast<i64>(Place::tile_m()) * kRows + warp_m() * MI * 16 + lane() / 4;
    }
    __device__ __forceinline__ static i64 first_column() {
        return static_cast<i64>(Place::tile_n()) * kColumns + warp_n() * NI * 8 + lane() % 4 * 2;
    }

    // Rows and columns beyond the operand exist in the planes, as zeros.
    __device__ __forceinline__ void fold(int fold_block, int fold_blocks) {
        const i64 block = Place::batch() * fold_blocks + fold_block;
        const u32* amax_a = p.amax_a + block * p.tiles_m * kRows + first_row();
        const u32* amax_b = p.amax_b + block * p.tiles_n * kColumns + first_column();
#pragma unroll
        for (int s = 0; s < NI * 2; ++s) {
            const int exponent_b = exact_exponent(amax_b[s / 2 * 8 + s % 2]);
#pragma unroll
            for (int r = 0; r < MI * 2; ++r) {
                Profile::fold(c[r / 2][s / 2], r % 2 * 2 + s % 2,
                              exact_exponent(amax_a[r * 8]) + exponent_b);
            }
        }
    }

    __device__ __forceinline__ void store(u32* status, u32 op) const {
        const i64 row0 = first_row(), col0 = first_column();
        const u32* amax_a = p.amax_a + Place::batch() * p.tiles_m * kRows;
        const u32* amax_b = p.amax_b + Place::batch() * p.tiles_n * kColumns;
        float* d = p.d + Place::batch() * p.m * p.n;
        bool finite = true;
#pragma unroll
        for (int r = 0; r < MI * 2; ++r) {
            const i64 row = row0 + r * 8;
            if (row >= p.m) break;
            const int exponent_a = Profile::exponent(amax_a, row);
#pragma unroll
            for (int s = 0; s < NI * 2; ++s) {
                const i64 col = col0 + s / 2 * 8 + s % 2;
                if (col >= p.n) break;
                const float value = Profile::result(c[r / 2][s / 2], r % 2 * 2 + s % 2,
                                                    exponent_a + Profile::exponent(amax_b, col));
                finite = finite && is_finite(value);
                d[row * p.n + col] = value;
            }
        }
        if (!finite) report_nonfinite(status, op);
    }

    __device__ __forceinline__ void run(u32* status, u32 op) {
        if (Place::tile_m() >= p.tiles_m) return;  // the last strip may be lower
        const int blocks = p.k_padded / kBlockK;
#pragma unroll
        for (int block = 0; block < kStages - 1; ++block) ring.fetch(block, block < blocks);
        int reading = 0;
        for (int block = 0; block < blocks; ++block) {
            cp_async_wait<kStages - 2>();
            // Now every thread's copies have arrived, and all have left the stage filled next.
            __syncthreads();
            const int filling = reading == 0 ? kStages - 1 : reading - 1;
            ring.fetch(filling, block + kStages - 1 < blocks);
            multiply(ring.at(reading));
            if constexpr (Profile::kFoldEvery > 0) {
                if (block % Profile::kFoldEvery == Profile::kFoldEvery - 1) {
                    fold(block / Profile::kFoldEvery, blocks / Profile::kFoldEvery);
                }
            }
            reading = reading == kStages - 1 ? 0 : reading + 1;
        }
        store(status, op);
    }
};

// Shared memory: kStages * Stages::kStageElements * 2 bytes.
SCALED_KERNEL(gemm_heal_96x128, Tile<Heal, 2, 4, 3, 4>)
SCALED_KERNEL(gemm_heal_64x64, Tile<Heal, 2, 2, 2, 4>)
SCALED_KERNEL(gemm_exact_64x64, Tile<Exact, 2, 2, 2, 4>)
UNSCALED_KERNEL(gemm_bf16_128x128, Tile<Bf16, 2, 4, 4, 4>)
UNSCALED_KERNEL(gemm_bf16_64x64, Tile<Bf16, 2, 2, 2, 4>)
