// Which row kernels run, how rows are spread over threads, and how a bad result is reported.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <string>

#include "bitwitness/parallel.hpp"
#include "bitwitness/pinned_operators.hpp"
#include "pinned_rows.hpp"

namespace bitwitness {

// The selected row kernels.
const RowKernels& rows();

// Elements of cheap work below which another thread costs more than it saves.
inline constexpr std::int64_t kGrain = 1 << 17;
// What an element costs that evaluates a pinned scalar function, in cheap elements.
inline constexpr std::int64_t kScalarCost = 8;

// Calls body(first, last) for runs of rows that cover [0, count); `cost` is one row's.
template <class Body>
void for_rows(int threads, std::int64_t count, std::int64_t cost, Body&& body) {
    const std::int64_t run = std::max<std::int64_t>(1, kGrain / std::max<std::int64_t>(cost, 1));
    parallel_for(threads, (count + run - 1) / run,
                 [&](std::int64_t item) { body(item * run, std::min(count, (item + 1) * run)); });
}

// Watches the results of one operator as they are written, from any thread.
class Finite {
  public:
    Finite(std::string op, std::string result) : op_(std::move(op)), result_(std::move(result)) {}

    // Examines elements [first, first + n) of the result whose element 0 is at `base`.
    void watch(const float* base, std::int64_t first, std::int64_t n);
    // Throws NonFinite if anything was seen; the index named is the lowest.
    void require() const;

  private:
    static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
    std::string op_;
    std::string result_;
    std::atomic<std::int64_t> first_bad_{kNone};
};

}  // namespace bitwitness
