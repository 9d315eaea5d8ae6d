// 64-byte aligned storage, and the rounding mode of the chain kernels.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>

#include "bitwitness/fpenv.hpp"

namespace bitwitness {

inline constexpr std::size_t kAlignment = 64;

// Uninitialised elements of a trivial type.
template <class T>
class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(std::int64_t count)
        : data_(static_cast<T*>(::operator new(static_cast<std::size_t>(count) * sizeof(T),
                                               std::align_val_t{kAlignment}))) {}
    T* get() const { return data_.get(); }
    T& operator[](std::int64_t i) const { return data_.get()[i]; }

  private:
    struct Free {
        void operator()(T* p) const { ::operator delete(p, std::align_val_t{kAlignment}); }
    };
    std::unique_ptr<T, Free> data_;
};

// Sets MXCSR to round toward zero for its lifetime. The compiler does not know about
// rounding modes: put only calls of non-inlined kernels in its scope.
class RoundTowardZero {
  public:
    RoundTowardZero() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kRoundingBits); }
    ~RoundTowardZero() { _mm_setcsr(saved_); }
    RoundTowardZero(const RoundTowardZero&) = delete;
    RoundTowardZero& operator=(const RoundTowardZero&) = delete;

  private:
    unsigned saved_;
};

}  // namespace bitwitness
