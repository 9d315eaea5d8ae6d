// D = A * B on Hopper's tensor cores by wgmma: the heal and bf16 profiles of NUMERICS section 2,
// with the bits of gemm.cu, from the same planes.
//
// Every accumulator is one chain in ascending K, as in gemm.cu, and one wgmma is one step of the
// chain just as mma.sync is on Hopper (NUMERICS 1.1): the route changes no bit. A block's
// warpgroups each compute 64 rows of its tile. While a warpgroup adds the outcome of one chain to
// its sums, the tensor core works on other chains: its own, if the tile's columns come in several
// parts, and those of the block's other warpgroups.
#include "heal.cuh"
#include "stages.cuh"
#include "wgmma.cuh"

// Descriptors of what one block of K multiplies, for one warpgroup: its 64 rows of A and the
// columns of B in parts of N.
template <class Stages, int N>
struct Operands {
    u64 a, b;

    __device__ __forceinline__ Operands(u32 stage, u32 rows, int warpgroup)
        : a(matrix_descriptor(stage + warpgroup * (kInstructionRows * kBlockK * 2))),
          b(matrix_descriptor(stage + rows * (kBlockK * 2))) {}

    // Instruction `k` of the block, of a plane.
    __device__ __forceinline__ u64 left(int plane, int k) const {
        return advanced(a, (plane * Stages::kPlaneElements + k * kInstructionK) * 2);
    }
    __device__ __forceinline__ u64 right(int part, int plane, int k) const {
        return advanced(
            b, (plane * Stages::kPlaneElements + part * N * kBlockK + k * kInstructionK) * 2);
    }
};

// What a warpgroup keeps of its 64 x (PARTS * N) outputs, what it does with one block of K, what
// after the last, and what comes out. A block's last chain stays under way until the next block.
template <int N, int PARTS>
struct HealChains {
    static_assert(PARTS == 1 || PARTS == 2, "one part waits for itself, two for each other");
    static constexpr int kPlanes = 2;  // hi, lo
    static constexpr int kRegisters = N / 2;
    static constexpr int kLast = PARTS - 1;

    // Each part's chains pass through its registers here: m, then t, then the next block's m. To
    // begin with, zeros stand for the t of a block before the first.
    float chain[PARTS][kRegisters] = {};
    float main[PARTS][kRegisters] = {}, corr[PARTS][kRegisters] = {};

    __device__ __forceinline__ static void add(float (&sum)[kRegisters],
                                               const float (&ended)[kRegisters]) {
#pragma unroll
        for (int i = 0; i < kRegisters; ++i) sum[i] = __fadd_rn(sum[i], ended[i]);
    }

    // ptxas gives up on overlapping unless the first wait of a loop's turn is for everything.
    template <class Operands>
    __device__ __forceinline__ void block(const Operands& o) {
        wgmma_wait<0>(chain[kLast]);
        add(corr[kLast], chain[kLast]);
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            wgmma<false>(F16{}, chain[part], o.left(0, 0), o.right(part, 0, 0));
            wgmma<true>(F16{}, chain[part], o.left(0, 1), o.right(part, 0, 1));
            wgmma_commit();
        }
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            wgmma_wait<kLast>(chain[part]);
            add(main[part], chain[part]);
            wgmma_fence();
            wgmma<false>(F16{}, chain[part], o.left(0, 0), o.right(part, 1, 0));
            wgmma<true>(F16{}, chain[part], o.left(0, 1), o.right(part, 1, 1));
            wgmma<true>(F16{}, chain[part], o.left(1, 0), o.right(part, 0, 0));
            wgmma<true>(F16{}, chain[part], o.left(1, 1), o.right(part, 0, 1));
            wgmma_commit();
        }
        if constexpr (PARTS > 1) {
            wgmma_wait<1>(chain[0]);
            add(corr[0], chain[0]);
        }
    }

    __device__ __forceinline__ void finish() {
        wgmma_wait<0>(chain[kLast]);
        add(corr[kLast], chain[kLast]);
    }

    __device__ __forceinline__ static int exponent(const u32* amax, i64 row) {
        return heal_exponent(amax[row]);
    }
    __device__ __forceinline__ float result(int part, int i, int exponent) const {
        return heal_result(main[part][i], corr[part][i], exponent);
    }
};

// One chain over all of K; only one part, since nothing happens beside the tensor core.
template <int N, int PARTS>
struct Bf16Chain {
    static_assert(PARTS == 1, "parts would gain nothing");
    static constexpr int kPlanes = 1;
    static constexpr int kRegisters = N / 2;

    float chain[kRegisters] = {};

    template <class Operands>
    __device__ __forceinline__ void block(const Operands& o) {
        wgmma_fence();
        wgmma<true>(BF16{}, chain, o.left(0, 0), o.right(0, 0, 0));
        wgmma<true>(BF16{}, chain, o.left(0, 1), o.right(0, 0, 1));
        wgmma_commit();
        wgmma_wait<1>();  // the previous block's
    }

    __device__ __forceinline__ void finish() { wgmma_wait<0>(chain); }

    __device__ __forceinline__ static int exponent(const u32*, i64) { return 0; }
    __device__ __forceinline__ float result(int, int i, int) const { return chain[i]; }
};

// WARPGROUPS x 64 rows, PARTS x N columns.
template <template <int, int> class Chains, int WARPGROUPS, int N, int PARTS, int STAGES>
struct Tile {
    static constexpr int kThreads = WARPGROUPS * kWarpgroup;
    static constexpr int kRows = WARPGROUPS * kInstructionRows;
    static constexpr int kColumns = PARTS * N;
    static constexpr int kAhead = STAGES - 2;  // blocks of K whose copies have been started

    using Profile = Chains<N, PARTS>;
    using Stages = Ring<kThreads, kRows, kColumns, Profile::kPlanes>;

    const Product& p;
    Stages ring;
    Profile c;

    __device__ __forceinline__ Tile(const Product& product, unsigned char* shared)
        : p(product), ring(product, reinterpret_cast<u16*>(pattern_start(shared))) {}

    // The launcher leaves room for this.
    __device__ __forceinline__ static unsigned char* pattern_start(unsigned char* shared) {
        return shared + (0U - shared_address(shared)) % kSwizzlePattern;
    }

    // One for the whole warp, and the compiler shall know it.
    __device__ __forceinline__ static int warpgroup() {
        return __shfl_sync(kAllLanes, Stages::thread() / kWarpgroup, 0);
    }

    __device__ __forceinline__ void run(u32* status, u32 op) {
        if (Place::tile_m() >= p.tiles_m) return;  // the last strip may be lower
        const int blocks = p.k_padded / kBlockK;
        const int group = warpgroup();
#pragma unroll
        for (int block = 0; block < kAhead; ++block) ring.fetch(block, block < blocks);
        int reading = 0;
        for (int block = 0; block < blocks; ++block) {
            cp_async_wait<kAhead - 1>();
            fence_proxy_async();
            // Now every thread's copies have arrived where wgmma reads, and the block before the
            // last has been multiplied by all: its stage is filled next.
            __syncthreads();
            const int filling = reading < 2 ? reading + STAGES - 2 : reading - 2;
            ring.fetch(filling, block + kAhead < blocks);
            c.block(Operands<Stages, N>(shared_address(ring.at(reading)), kRows, group));
            reading = reading == STAGES - 1 ? 0 : reading + 1;
        }
        c.finish();
        store(group, status, op);
    }

    __device__ __forceinline__ void store(int group, u32* status, u32 op) const {
        const int lane = Stages::thread() % 32, warp = Stages::thread() / 32 % 4;
        const i64 row0 = static_cast<i64>(Place::tile_m()) * kRows + group * kInstructionRows +
                         warp * 16 + lane / 4;
        const i64 col0 = static_cast<i64>(Place::tile_n()) * kColumns + lane % 4 * 2;
        const u32* amax_a = p.amax_a + Place::batch() * p.tiles_m * kRows;
        const u32* amax_b = p.amax_b + Place::batch() * p.tiles_n * kColumns;
        float* d = p.d + Place::batch() * p.m * p.n;
        bool finite = true;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const i64 row = row0 + r * 8;
            if (row >= p.m) break;
            const int exponent_a = Profile::exponent(amax_a, row);
#pragma unroll
            for (int s = 0; s < kColumns / 4; ++s) {
                const i64 col = col0 + s / 2 * 8 + s % 2;
                if (col >= p.n) break;
                const float value = c.result(s / (N / 4), s % (N / 4) / 2 * 4 + r * 2 + s % 2,
                                             exponent_a + Profile::exponent(amax_b, col));
                finite = finite && is_finite(value);
                d[row * p.n + col] = value;
            }
        }
        if (!finite) report_nonfinite(status, op);
    }
};

// Shared memory: STAGES * Stages::kStageElements * 2 bytes, and kSwizzlePattern more.
SCALED_KERNEL(gemm_wgmma_heal_128x128, Tile<HealChains, 2, 64, 2, 6>)
SCALED_KERNEL(gemm_wgmma_heal_128x128_whole, Tile<HealChains, 2, 128, 1, 6>)
SCALED_KERNEL(gemm_wgmma_heal_64x64, Tile<HealChains, 1, 64, 1, 4>)
UNSCALED_KERNEL(gemm_wgmma_bf16_128x256, Tile<Bf16Chain, 2, 256, 1, 6>)
UNSCALED_KERNEL(gemm_wgmma_bf16_64x128, Tile<Bf16Chain, 1, 128, 1, 4>)
