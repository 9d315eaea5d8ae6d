// A fork-join loop: work items are independent, so any thread count gives the same bits.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>

#include "bitwitness/fpenv.hpp"
#include "bitwitness/thread_pool.hpp"

namespace bitwitness {

// Calls body(i) once for each i in [0, items), on up to `threads` threads (1 runs inline, and so
// does a loop inside a loop's body). The first exception thrown by a body is rethrown here after
// all threads have finished.
template <class Body>
void parallel_for(int threads, std::int64_t items, Body&& body) {
    require_ieee_environment();
    const auto workers =
        ThreadPool::busy() ? 1 : std::min<std::int64_t>(std::max(threads, 1), items);
    if (workers <= 1) {
        for (std::int64_t i = 0; i < items; ++i) body(i);
        return;
    }
    std::atomic<std::int64_t> next{0};
    std::exception_ptr failure;
    std::mutex failure_lock;
    auto run = [&] {
        try {
            require_ieee_environment();
            for (std::int64_t i = next++; i < items; i = next++) body(i);
        } catch (...) {
            const std::scoped_lock guard(failure_lock);
            if (!failure) failure = std::current_exception();
            next = items;
        }
    };
    const auto work = [](void* context) { (*static_cast<decltype(run)*>(context))(); };
    ThreadPool::instance().run(workers - 1, work, &run);
    if (failure) std::rethrow_exception(failure);
}

}  // namespace bitwitness
