// A failed expectation is printed and counted; main returns the count.
#pragma once

#include <cstdio>
#include <cstring>

namespace pinned_check {

inline int failures = 0;

inline void that(bool holds, const char* what, double a = 0, double b = 0) {
    if (holds) return;
    ++failures;
    std::fprintf(stderr, "FAILED: %s (%a, %a)\n", what, a, b);
}

inline bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

inline int result() {
    std::printf("%d failures\n", failures);
    return failures == 0 ? 0 : 1;
}

}  // namespace pinned_check
