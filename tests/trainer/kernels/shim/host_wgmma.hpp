// The operations of trainer/kernels/cuda/wgmma.cuh for fibres on the CPU. Included by wgmma.cuh
// when no CUDA compiler is at work.
#pragma once

#include "wgmma.hpp"

inline unsigned shared_address(const void* pointer) {
    return shim::shared_window() +
           static_cast<unsigned>(static_cast<const unsigned char*>(pointer) -
                                 shim::dynamic_shared());
}

// What this thread's asynchronous copies have brought becomes visible to wgmma.
inline void fence_proxy_async(SHIM_SITE) {
    if (shim::omitted("fence_proxy_async", file, line)) return;
    auto& arrived = shim::current().unfenced;
    for (void* chunk : arrived) {
        if (auto* view = shim::in_async_view(chunk)) std::memcpy(view, chunk, 16);
    }
    arrived.clear();
}

inline void wgmma_fence(SHIM_SITE) {
    if (!shim::omitted("wgmma_fence", file, line)) shim::wgmma_fence();
}

inline void wgmma_commit(SHIM_SITE) {
    if (!shim::omitted("wgmma_commit", file, line)) shim::wgmma_commit();
}

template <int N>
void wgmma_wait(SHIM_SITE) {
    if (!shim::omitted("wgmma_wait", file, line)) shim::wgmma_wait(N);
}

template <int N, int R>
void wgmma_wait(float (&)[R], SHIM_SITE) {
    if (!shim::omitted("wgmma_wait", file, line)) shim::wgmma_wait(N);
}

template <bool ACCUMULATE, class Format, int R>
void wgmma(Format, float (&d)[R], std::uint64_t a, std::uint64_t b) {
    constexpr auto format =
        std::is_same_v<Format, F16> ? bitwitness::Format::f16 : bitwitness::Format::bf16;
    shim::wgmma_issue(d, {a, b, format, 2 * R, ACCUMULATE});
}
