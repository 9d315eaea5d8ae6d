// Floating-point environment: what NUMERICS section 3 demands of every thread that
// computes a committed value.
#pragma once

#include <immintrin.h>

#include <stdexcept>

namespace bitwitness {

// Flush-to-zero and denormals-are-zero, the two MXCSR bits that change results.
inline constexpr unsigned kFlushBits = 0x8040U;
// Rounding-control field; 0 is round to nearest even.
inline constexpr unsigned kRoundingBits = 0x6000U;

// This thread's floating point is not IEEE's.
class FloatEnvironment : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// Throws if this thread would flush subnormals or round other than to nearest. Any
// imported library can set these, per thread, without telling anybody.
inline void require_ieee_environment() {
    if ((_mm_getcsr() & (kFlushBits | kRoundingBits)) != 0U) {
        throw FloatEnvironment(
            "this thread flushes subnormals or does not round to nearest (MXCSR & 0xe040 is set)");
    }
}

}  // namespace bitwitness
