// TREE and MAX of docs/formats/operators.md by one block of 256 threads, thread t being lane t.
#pragma once

#include "bitwitness/pinned_ops.h"
#include "device.cuh"

using bitwitness::add_rn;
using bitwitness::div_rn;
using bitwitness::kLanes;
using bitwitness::mul_rn;

__device__ __forceinline__ int lane_number() { return static_cast<int>(threadIdx.x); }

// Lanes fold 128, 64, ... 1 apart; every thread returns the total. All threads must call it, and
// the shared memory must not be used again: a slow thread may still be about to read the total.
__device__ __forceinline__ float fold(float lane, float (&lanes)[kLanes]) {
    const int t = lane_number();
    lanes[t] = lane;
    __syncthreads();
    for (int apart = kLanes / 2; apart >= 32; apart /= 2) {
        if (t < apart) lanes[t] = add_rn(lanes[t], lanes[t + apart]);
        __syncthreads();
    }
    if (t < 32) {
        float total = lanes[t];
        for (u32 apart = 16; apart >= 1; apart /= 2) {
            // Lanes from `apart` on compute what nobody reads.
            total = add_rn(total, __shfl_down_sync(kAllLanes, total, apart));
        }
        if (t == 0) lanes[0] = total;
    }
    __syncthreads();
    return lanes[0];
}

// TREE over term(0) ... term(n - 1).
template <class Term>
__device__ __forceinline__ float tree(i64 n, float (&lanes)[kLanes], Term term) {
    float lane = 0.0F;
    for (i64 i = lane_number(); i < n; i += kLanes) lane = add_rn(lane, term(i));
    return fold(lane, lanes);
}

// The largest of key(0) ... key(n - 1), n > 0, integers; the order of comparison has no effect. On
// shared memory as for fold.
template <class T, class Key>
__device__ __forceinline__ T largest_key(i64 n, T (&keys)[kLanes], Key key) {
    const int t = lane_number();
    T largest = -2 * (T{1} << (8 * sizeof(T) - 2));
    for (i64 i = t; i < n; i += kLanes) largest = max(largest, key(i));
    keys[t] = largest;
    __syncthreads();
    for (int apart = kLanes / 2; apart >= 1; apart /= 2) {
        if (t < apart) keys[t] = max(keys[t], keys[t + apart]);
        __syncthreads();
    }
    return keys[0];
}
