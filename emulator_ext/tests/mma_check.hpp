// A failed expectation is printed and counted; main returns whether there was one.
#pragma once

#include <cstdint>
#include <cstdio>
#include <random>

namespace mma_check {

inline int failures = 0;
inline std::int64_t checks = 0;

inline void same(std::uint64_t actual, std::uint64_t expected, const char* what) {
    ++checks;
    if (actual == expected) return;
    if (++failures <= 20) {
        std::fprintf(stderr, "FAILED: %s: %#llx instead of %#llx\n", what,
                     static_cast<unsigned long long>(actual),
                     static_cast<unsigned long long>(expected));
    }
}

inline int result() {
    std::printf("%lld checks, %d failures\n", static_cast<long long>(checks), failures);
    return failures == 0 ? 0 : 1;
}

using Random = std::mt19937_64;

}  // namespace mma_check
