// The threads behind parallel_for: started when first needed, kept for the next loop, joined at
// exit. Starting one takes longer than a small product.
//
// A job is one function that any number of threads may run at once. Its caller runs it too and
// does not wait for helpers that have not come by then, so that every loop ends even where no
// thread can be had. A forked child, which has none of its parent's threads, starts its own.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "bitwitness/fpenv.hpp"

namespace bitwitness {

// Hidden: every shared library that includes this has threads of its own.
class [[gnu::visibility("hidden")]] ThreadPool {
  public:
    static ThreadPool& instance() {
        ThreadPool* pool = current.load();
        if (pool == nullptr) {
            auto* const fresh = new ThreadPool;  // never deleted: see stop
            if (current.compare_exchange_strong(pool, fresh)) return *fresh;
            delete fresh;
        }
        return *pool;
    }

    // Whether this thread is inside a job, where another one would only wait for itself.
    static bool busy() { return inside; }

    // Calls work(context) on this thread and on up to `helpers` others; it must not throw.
    void run(std::int64_t helpers, void (*work)(void*), void* context) {
        Job job{work, context, helpers, 0};
        offer(job);
        inside = true;
        work(context);
        inside = false;
        std::unique_lock lock(mutex_);
        std::erase(jobs_, &job);
        done_.wait(lock, [&] { return job.running == 0; });
    }

  private:
    struct Job {
        void (*work)(void*);
        void* context;
        std::int64_t wanted;  // helpers that have not come yet
        std::int64_t running;
    };

    ThreadPool() = default;

    void offer(Job& job) {
        const bool one = job.wanted == 1;
        {
            const std::scoped_lock lock(mutex_);
            std::int64_t wanted = job.wanted;
            for (const Job* other : jobs_) wanted += other->wanted;
            start(wanted - idle_);
            jobs_.push_back(&job);
        }
        if (one) {
            wake_.notify_one();
        } else {
            wake_.notify_all();
        }
    }

    // More threads than processors would only take turns.
    void start(std::int64_t count) {
        static const std::int64_t most =
            std::max<std::int64_t>(std::thread::hardware_concurrency(), 2) - 1;
        for (; count > 0 && std::ssize(threads_) < most && !stopping_; --count) {
            try {
                threads_.emplace_back([this] { serve(); });
            } catch (const std::system_error&) {
                return;  // the caller works alone
            }
            ++idle_;
        }
    }

    void serve() {
        // A thread begins with its creator's MXCSR, whatever that was.
        _mm_setcsr(_mm_getcsr() & ~(kFlushBits | kRoundingBits));
        inside = true;
        std::unique_lock lock(mutex_);
        for (;;) {
            wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
            if (stopping_) return;
            Job& job = *jobs_.front();
            if (--job.wanted == 0) jobs_.pop_front();
            ++job.running;
            --idle_;
            lock.unlock();
            job.work(job.context);
            lock.lock();
            ++idle_;
            if (--job.running == 0) done_.notify_all();
        }
    }

    // Joins the threads but leaves the pool: another thread may still be using it at exit.
    void stop() {
        std::vector<std::thread> threads;
        {
            const std::scoped_lock lock(mutex_);
            stopping_ = true;
            threads.swap(threads_);
        }
        wake_.notify_all();
        for (std::thread& thread : threads) thread.join();
    }

    static bool handle_exit_and_fork() {
        std::atexit([] {
            if (ThreadPool* pool = current.load()) pool->stop();
        });
        return pthread_atfork(nullptr, nullptr, [] { current = nullptr; }) == 0;
    }

    static inline std::atomic<ThreadPool*> current{nullptr};
    static inline thread_local bool inside = false;
    static inline const bool handled = handle_exit_and_fork();

    std::mutex mutex_;
    std::condition_variable wake_;
    std::condition_variable done_;
    std::deque<Job*> jobs_;  // that want helpers
    std::vector<std::thread> threads_;
    std::int64_t idle_ = 0;
    bool stopping_ = false;
};

}  // namespace bitwitness
