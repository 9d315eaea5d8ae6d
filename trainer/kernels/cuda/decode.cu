// What decoding needs beside attention's products (docs/formats/operators.md, "Decoding"). The
// position is data on the device: every kernel reads it there, and refuses one outside its range.
#include "softmax.cuh"

using bitwitness::order_key;

constexpr i64 kIndexMask = 0xffffffff;

// scores, p [blocks, width]; one block is one row, whose entries up to the position are live.
KERNEL(kLanes, prefix_softmax)
(const float* scores, const i32* position, float scale, i64 width, float* p, u32* status, u32 op) {
    __shared__ float lanes[kLanes];
    __shared__ i32 keys[kLanes];
    if (!in_range(*position, width)) return report_out_of_range(status, op);
    const i64 row = blockIdx.x * width;
    softmax_row(scores + row, scale, *position + 1, width, p + row, lanes, keys, status, op);
}

// Row `position` of each [time, row_bytes] of cache := rows [n / row_bytes, row_bytes]; n bytes,
// one thread each, whatever an element is.
KERNEL(kLanes, cache_write)
(const u8* rows, const i32* position, i64 time, i64 row_bytes, i64 n, u8* cache, u32* status,
 u32 op) {
    const i64 at = global_thread();
    if (at >= n) return;
    if (!in_range(*position, time)) return report_out_of_range(status, op);
    cache[(at / row_bytes * time + *position) * row_bytes + at % row_bytes] = rows[at];
}

// token[n] := column `position` of tokens[n, length].
KERNEL(kLanes, token_at)
(const i32* tokens, const i32* position, i64 length, i64 n, i32* token, u32* status, u32 op) {
    const i64 at = global_thread();
    if (at >= n) return;
    if (!in_range(*position, length)) return report_out_of_range(status, op);
    token[at] = tokens[at * length + *position];
}

// Column `position` + 1 of tokens[blocks, length], where it is below 0, becomes the lowest index of
// the largest of logits[blocks, vocab]. Key and index are one integer: the index, counted
// backwards, decides between equal keys.
KERNEL(kLanes, greedy)
(const float* logits, const i32* position, i64 vocab, i64 length, i32* tokens, u32* status,
 u32 op) {
    __shared__ i64 keys[kLanes];
    if (!in_range(*position, length - 1)) return report_out_of_range(status, op);
    logits += blockIdx.x * vocab;
    bool finite = true;
    const i64 best = largest_key(vocab, keys, [&](i64 i) {
        finite = finite && is_finite(logits[i]);
        return order_key(logits[i]) * (kIndexMask + 1) + (kIndexMask - i);
    });
    if (!finite) report_nonfinite(status, op);
    i32& token = tokens[blockIdx.x * length + *position + 1];
    if (lane_number() == 0 && token < 0) token = static_cast<i32>(kIndexMask - (best & kIndexMask));
}
