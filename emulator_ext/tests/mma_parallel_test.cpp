// parallel_for and its threads: every item once, exceptions, nesting, several callers, fork.
#include <sys/wait.h>
#include <unistd.h>

#include <set>
#include <stdexcept>

#include "bitwitness/parallel.hpp"
#include "mma_check.hpp"

namespace {

using bitwitness::parallel_for;

void same(std::int64_t actual, std::int64_t expected, const char* what) {
    mma_check::same(static_cast<std::uint32_t>(actual), static_cast<std::uint32_t>(expected), what);
}

void every_item_runs_once(int threads) {
    for (const std::int64_t items : {0, 1, 2, 3, 100, 1000}) {
        std::vector<std::atomic<int>> counts(static_cast<std::size_t>(items));
        parallel_for(threads, items,
                     [&](std::int64_t i) { ++counts[static_cast<std::size_t>(i)]; });
        for (const auto& count : counts) same(count, 1, "runs of an item");
    }
}

void threads_are_kept() {
    std::mutex lock;
    std::set<std::thread::id> seen;
    for (int round = 0; round < 200; ++round) {
        parallel_for(1000, 64, [&](std::int64_t) {
            const std::scoped_lock guard(lock);
            seen.insert(std::this_thread::get_id());
        });
    }
    const std::size_t most = std::max(std::thread::hardware_concurrency(), 2U);
    same(seen.size() <= most, 1, "as many threads as processors at most");
}

// The loop goes on only when two threads are in it at once.
void helpers_do_come() {
    std::atomic<int> arrived{0};
    parallel_for(2, 2, [&](std::int64_t) {
        ++arrived;
        while (arrived < 2) std::this_thread::yield();
    });
    same(arrived, 2, "threads in one loop");
}

void exceptions_arrive(int threads) {
    int caught = 0;
    try {
        parallel_for(threads, 100, [](std::int64_t i) {
            if (i == 7) throw std::runtime_error("seven");
        });
    } catch (const std::runtime_error&) {
        ++caught;
    }
    same(caught, 1, "exceptions");
    every_item_runs_once(threads);  // and the threads are still good
}

void nested_loops_end() {
    std::atomic<std::int64_t> total{0}, strays{0};
    parallel_for(4, 10, [&](std::int64_t i) {
        const auto outer = std::this_thread::get_id();
        parallel_for(4, 10, [&](std::int64_t j) {
            total += i * 10 + j;
            strays += std::this_thread::get_id() == outer ? 0 : 1;
        });
    });
    same(strays, 0, "items of a nested loop on another thread");
    same(total, 4950, "sum over nested loops");
}

void several_callers() {
    std::vector<std::thread> callers;
    std::atomic<std::int64_t> total{0};
    for (int caller = 0; caller < 4; ++caller) {
        callers.emplace_back([&] {
            for (int round = 0; round < 50; ++round) {
                parallel_for(3, 20, [&](std::int64_t i) { total += i; });
            }
        });
    }
    for (std::thread& caller : callers) caller.join();
    same(total, std::int64_t{4} * 50 * 190, "sum over callers");
}

// A caller that flushes subnormals is refused, and its threads do not flush for the next one.
void environment_is_checked() {
    const unsigned saved = _mm_getcsr();
    int refused = 0;
    _mm_setcsr(saved | bitwitness::kFlushBits);
    try {
        parallel_for(4, 100, [](std::int64_t) {});
    } catch (const bitwitness::FloatEnvironment&) {
        ++refused;
    }
    _mm_setcsr(saved);
    same(refused, 1, "loops of a thread that flushes");
    parallel_for(4, 100, [](std::int64_t) { bitwitness::require_ieee_environment(); });
}

void a_forked_child_works() {
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);  // without threads of its own it would wait for its parent's
        helpers_do_come();
        std::atomic<std::int64_t> total{0};
        for (int round = 0; round < 20; ++round) {
            parallel_for(3, 100, [&](std::int64_t i) { total += i; });
        }
        _exit(total == 20 * 4950 ? mma_check::failures : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    same(status, 0, "status of a forked child");
    every_item_runs_once(3);
}

}  // namespace

int main() {
    environment_is_checked();
    for (const int threads : {0, 1, 2, 5}) {
        every_item_runs_once(threads);
        exceptions_arrive(threads);
    }
    threads_are_kept();
    helpers_do_come();
    nested_loops_end();
    several_callers();
    a_forked_child_works();
    return mma_check::result();
}
