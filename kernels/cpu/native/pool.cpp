#include "pool.h"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace li {

namespace {

inline void pause_briefly() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spins for some tens of microseconds, then gives the processor away between looks: a pure spin collapses when more threads
// are runnable than there are cores.
template <class Condition> void spin_then_yield(Condition done) {
    for (int i = 0; i < 2000; i++) {
        if (done()) return;
        pause_briefly();
    }
    while (!done()) std::this_thread::yield();
}

// How long an idle worker spins before it parks. Longer than the gap between two steps of a decode (sampling and
// detokenizing one token), so that a running answer never pays for waking threads.
constexpr auto kSpinBeforePark = std::chrono::microseconds(300);

} // namespace

Pool::Pool(int threads) : count_(threads < 1 ? 1 : threads), arrived_(size_t(count_)) {
    workers_.reserve(size_t(count_) - 1);
    try {
        for (int t = 1; t < count_; t++) workers_.emplace_back([this, t] { work(t); });
    } catch (...) { // the system has no more threads: end those that were started
        stop();
        throw;
    }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
        generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void Pool::run(void (*job)(void*, int), void* context) {
    std::lock_guard<std::mutex> turn(turn_);
    job_ = job;
    context_ = context;
    unfinished_.store(count_ - 1, std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_seq_cst);
    if (parked_.load(std::memory_order_seq_cst) > 0) {
        std::lock_guard<std::mutex> lock(mutex_);
        wake_.notify_all();
    }
    job(context, 0);
    spin_then_yield([this] { return unfinished_.load(std::memory_order_acquire) == 0; });
}

void Pool::work(int thread) {
    unsigned seen = 0;
    for (;;) {
        auto park_at = std::chrono::steady_clock::now() + kSpinBeforePark;
        for (int i = 1; generation_.load(std::memory_order_acquire) == seen; i++) {
            pause_briefly();
            if (i % 64 == 0 && std::chrono::steady_clock::now() > park_at) {
                std::unique_lock<std::mutex> lock(mutex_);
                parked_.fetch_add(1, std::memory_order_seq_cst);
                wake_.wait(lock, [&] { return generation_.load(std::memory_order_seq_cst) != seen; });
                parked_.fetch_sub(1, std::memory_order_relaxed);
            }
        }
        seen++;
        if (stop_) return;
        job_(context_, thread);
        unfinished_.fetch_sub(1, std::memory_order_release);
    }
}

void Pool::barrier(int thread) {
    if (count_ == 1) return;
    // Only this thread writes its flag. Flags count barriers since the pool began, so they never need a reset; all
    // threads pass the same number of barriers per job.
    unsigned mine = arrived_[size_t(thread)].value.load(std::memory_order_relaxed) + 1;
    arrived_[size_t(thread)].value.store(mine, std::memory_order_release);
    for (int t = 0; t < count_; t++) {
        if (t == thread) continue;
        spin_then_yield([&] { return int(arrived_[size_t(t)].value.load(std::memory_order_acquire) - mine) >= 0; });
    }
}

} // namespace li
