// INT16 vectors (docs/formats/operators.md): quantising, holding, and the planes of f16 digits that
// gemm_int16.cu multiplies.
//
// A plane is [batch, rows_padded, k_padded], K contiguous, zero outside the operand: rows are A's
// rows or B's columns. `unit` [batch, rows_padded] is the exponent of what a row's integers count.
// One warp is one row, except where a transposition goes through shared memory.
#include "bitwitness/pinned_int16.h"
#include "device.cuh"

using bitwitness::int16_high;
using bitwitness::int16_low;
using bitwitness::int16_quantise;
using bitwitness::int16_scale;
using bitwitness::int16_unit;
using bitwitness::int16_value;
using bitwitness::int24_quantise;
using bitwitness::int24_rest;
using bitwitness::int24_scale;
using bitwitness::int24_top;
using bitwitness::mul_rn;

constexpr int kThreads = 256;
constexpr u32 kInfinityBits = 0x7f800000;

__device__ __forceinline__ int lane_number() { return static_cast<int>(threadIdx.x % kWarp); }
__device__ __forceinline__ i64 warp_number() { return global_thread() / kWarp; }

// The largest magnitude's bits among value(0) ... value(n - 1), in every lane of a warp.
template <class Value>
__device__ __forceinline__ u32 largest_magnitude(i64 n, Value value) {
    u32 largest = 0;
    for (i64 i = lane_number(); i < n; i += kWarp) {
        largest = max(largest, __float_as_uint(value(i)) & 0x7fffffffU);
    }
    for (u32 d = kWarp / 2; d > 0; d /= 2) {
        largest = max(largest, __shfl_xor_sync(kAllLanes, largest, d));
    }
    return largest;
}

// x, codes [rows, width]; scales [rows].
KERNEL(kThreads, int16_quantise)
(const float* x, i64 rows, i64 width, u16* codes, u8* scales, u32* status, u32 op) {
    const i64 row = warp_number();
    if (row >= rows) return;
    x += row * width;
    const u32 largest = largest_magnitude(width, [=](i64 i) { return x[i]; });
    const u32 scale = int16_scale(largest);
    for (i64 i = lane_number(); i < width; i += kWarp) {
        codes[row * width + i] = static_cast<u16>(int16_quantise(x[i], scale));
    }
    if (lane_number() != 0) return;
    scales[row] = static_cast<u8>(scale);
    if (largest >= kInfinityBits) report_nonfinite(status, op);
}

// y := what the codes of x stand for; both [rows, width].
KERNEL(kThreads, int16_hold)
(const float* x, i64 rows, i64 width, float* y, u32* status, u32 op) {
    const i64 row = warp_number();
    if (row >= rows) return;
    x += row * width;
    const u32 largest = largest_magnitude(width, [=](i64 i) { return x[i]; });
    const u32 scale = int16_scale(largest);
    for (i64 i = lane_number(); i < width; i += kWarp) {
        const float q = static_cast<float>(int16_quantise(x[i], scale));
        y[row * width + i] = mul_rn(q, int16_unit(scale));
    }
    if (lane_number() == 0 && largest >= kInfinityBits) report_nonfinite(status, op);
}

// Where a row of an operand goes, and whether there is such a row at all.
struct PlaneRow {
    u16* to;
    i64 plane;    // elements from one plane to the next
    i64 operand;  // the row's number in the operand [batch * rows]
    i64 n;        // its elements; 0 for padding

    __device__ __forceinline__ PlaneRow(u16* planes, i64 row, i64 batch, i64 rows, i64 k,
                                        i64 rows_padded, i64 k_padded)
        : to(planes + row * k_padded),
          plane(batch * rows_padded * k_padded),
          operand(row / rows_padded * rows + row % rows_padded),
          n(row % rows_padded < rows ? k : 0) {}

    __device__ __forceinline__ void put(int digit, i64 at, i32 value) const {
        to[digit * plane + at] = f16_rne(static_cast<float>(value));
    }
};

__device__ __forceinline__ void put_int16(const PlaneRow& row, i64 at, i32 q) {
    row.put(0, at, int16_high(q));
    row.put(1, at, int16_low(q));
}

// Two planes of x [batch, rows, k], each row quantised: queries, and keys that are held in f32.
KERNEL(kThreads, int16_row_digits)
(const float* x, i64 batch, i64 rows, i64 k, i64 rows_padded, i64 k_padded, u16* planes, i32* unit,
 u32* status, u32 op) {
    if (warp_number() >= batch * rows_padded) return;
    const PlaneRow row(planes, warp_number(), batch, rows, k, rows_padded, k_padded);
    x += row.operand * k;
    const u32 largest = largest_magnitude(row.n, [=](i64 i) { return x[i]; });
    const u32 scale = int16_scale(largest);
    for (i64 i = lane_number(); i < k_padded; i += kWarp) {
        put_int16(row, i, i < row.n ? int16_quantise(x[i], scale) : 0);
    }
    if (lane_number() != 0) return;
    unit[warp_number()] = static_cast<i32>(scale) - 127;
    if (largest >= kInfinityBits) report_nonfinite(status, op);
}

// Two planes of codes [batch, rows, k] with scales [batch, rows]: a cache's keys.
KERNEL(kThreads, int16_key_digits)
(const u16* codes, const u8* scales, i64 batch, i64 rows, i64 k, i64 rows_padded, i64 k_padded,
 u16* planes, i32* unit) {
    if (warp_number() >= batch * rows_padded) return;
    const PlaneRow row(planes, warp_number(), batch, rows, k, rows_padded, k_padded);
    codes += row.operand * k;
    for (i64 i = lane_number(); i < k_padded; i += kWarp) {
        put_int16(row, i, i < row.n ? int16_value(codes[i]) : 0);
    }
    if (lane_number() == 0) unit[warp_number()] = row.n > 0 ? scales[row.operand] - 127 : 0;
}

constexpr int kTile = 32;

// Two planes of codes [batch, k, rows], transposed: the rows of a plane are the columns of the
// values, whose scales are the weights' affair. Blocks: (row tiles * k tiles, batch).
KERNEL(kThreads, int16_value_digits)
(const u16* codes, i64 rows, i64 k, i64 rows_padded, i64 k_padded, u16* planes) {
    __shared__ i32 tile[kTile][kTile + 1];
    const i64 row_tiles = rows_padded / kTile;
    const i64 row0 = blockIdx.x % row_tiles * kTile, k0 = blockIdx.x / row_tiles * kTile;
    const int fast = static_cast<int>(threadIdx.x) % kTile;
    const int slow = static_cast<int>(threadIdx.x) / kTile;
    for (int i = slow; i < kTile; i += kThreads / kTile) {
        const bool inside = k0 + i < k && row0 + fast < rows;
        const i64 at = (blockIdx.y * k + k0 + i) * rows + row0 + fast;
        tile[fast][i] = inside ? int16_value(codes[at]) : 0;
    }
    __syncthreads();
    const i64 plane = gridDim.y * rows_padded * k_padded;
    for (int r = slow; r < kTile; r += kThreads / kTile) {
        const i64 at = (blockIdx.y * rows_padded + row0 + r) * k_padded + k0 + fast;
        planes[at] = f16_rne(static_cast<float>(int16_high(tile[r][fast])));
        planes[plane + at] = f16_rne(static_cast<float>(int16_low(tile[r][fast])));
    }
}

// Three planes of attention's weights p [batch, rows, k], each times the unit of its value's row,
// scales [batch, k], and then held in 24 bits.
KERNEL(kThreads, int16_weight_digits)
(const float* p, const u8* scales, i64 batch, i64 rows, i64 k, i64 rows_padded, i64 k_padded,
 u16* planes, i32* unit, u32* status, u32 op) {
    if (warp_number() >= batch * rows_padded) return;
    const PlaneRow row(planes, warp_number(), batch, rows, k, rows_padded, k_padded);
    p += row.operand * k;
    scales += warp_number() / rows_padded * k;
    const auto weight = [=](i64 i) { return mul_rn(p[i], int16_unit(scales[i])); };
    const u32 largest = largest_magnitude(row.n, weight);
    const u32 scale = int24_scale(largest);
    for (i64 i = lane_number(); i < k_padded; i += kWarp) {
        const i32 w = i < row.n ? int24_quantise(weight(i), scale) : 0;
        row.put(0, i, int24_top(w));
        row.put(1, i, int16_high(int24_rest(w)));
        row.put(2, i, int16_low(int24_rest(w)));
    }
    if (lane_number() != 0) return;
    unit[warp_number()] = static_cast<i32>(scale) - 127;
    if (largest >= kInfinityBits) report_nonfinite(status, op);
}
