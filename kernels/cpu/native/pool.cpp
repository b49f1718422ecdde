#include "pool.h"

#include <algorithm>
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

int64_t nanoseconds() {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// How often a thread looks whether the others have arrived before it sleeps: some tens of microseconds, which is more
// than work is ever uneven by while every thread has a core. Behind that somebody has lost one, and sleeping
// gives him ours, which yielding does not: that only passes it round among programs that want this very core.
constexpr int kLooks = 2000;

// How long an idle thread spins before it sleeps. Longer than the gap between two steps of a decode (sampling and
// detokenizing one token), so that a running answer never pays for waking threads.
constexpr int64_t kSpinWhenIdle = 300000; // nanoseconds

} // namespace

class Pool::Turn {
public:
    Turn(Pool& pool, const std::atomic<bool>& cancel) : pool_(pool) {
        std::unique_lock<std::mutex> lock(pool_.queue_mutex_);
        pool_.queue_.push_back(this);
        pool_.queue_changed_.wait(lock, [&] { return cancel || pool_.queue_.front() == this; });
        cancelled_ = cancel;
    }
    ~Turn() {
        std::lock_guard<std::mutex> lock(pool_.queue_mutex_);
        pool_.queue_.erase(std::find(pool_.queue_.begin(), pool_.queue_.end(), this));
        pool_.queue_changed_.notify_all();
    }
    bool cancelled() const { return cancelled_; }

private:
    Pool& pool_;
    bool cancelled_;
};

void Pool::interrupt() {
    std::lock_guard<std::mutex> lock(queue_mutex_);
    queue_changed_.notify_all();
}

void Pool::grow(int threads) {
    const std::atomic<bool> never{false};
    Turn turn(*this, never);
    const size_t before = seats_.size();
    try {
        while (seats_.size() < size_t(std::max(threads, 1))) {
            seats_.push_back(std::make_unique<Seat>());
            Seat& seat = *seats_.back();
            seat.thread = std::thread([this, &seat, thread = int(seats_.size()) - 1] { work(seat, thread); });
        }
    } catch (...) { // the system has no more threads: end those that were started
        for (; seats_.size() > before; seats_.pop_back()) {
            Seat& seat = *seats_.back();
            if (!seat.thread.joinable()) continue;
            seat.leave = true;
            give_job(seat);
            seat.thread.join();
        }
        throw;
    }
}

void Pool::give_job(Seat& seat) {
    seat.jobs.fetch_add(1);
    seat.idle.wake();
}

bool Pool::run(int most, Job job, void* context, const std::atomic<bool>& cancel) {
    Turn turn(*this, cancel);
    if (turn.cancelled()) return false;
    const int64_t begin = nanoseconds();
    const int threads = crowding_.choose(most, begin);
    job_ = job;
    context_ = context;
    threads_ = threads;
    unfinished_.store(threads - 1, std::memory_order_relaxed);
    for (int t = 0; t < threads; t++) seats_[size_t(t)]->arrived.store(0, std::memory_order_relaxed);
    for (int t = 1; t < threads; t++) give_job(*seats_[size_t(t)]);
    job(context, 0, threads);
    wait_for_others([this] { return unfinished_.load() == 0; });
    const int64_t end = nanoseconds();
    crowding_.report(threads, end - begin, slept_.exchange(0), end);
    return true;
}

void Pool::work(Seat& seat, int thread) {
    for (unsigned done = 0;; done++) {
        auto given = [&] { return seat.jobs.load() != done; };
        const int64_t sleep_at = nanoseconds() + kSpinWhenIdle;
        for (int i = 1; !given(); i++) {
            pause_briefly();
            if (i % 64 == 0 && nanoseconds() > sleep_at) seat.idle.sleep_until(given);
        }
        if (seat.leave) return;
        job_(context_, thread, threads_);
        if (unfinished_.fetch_sub(1) == 1) meeting_.wake();
    }
}

void Pool::barrier(int thread) {
    if (threads_ == 1) return;
    // Only this thread writes its count; all threads pass the same number of barriers per job.
    std::atomic<unsigned>& mine = seats_[size_t(thread)]->arrived;
    const unsigned count = mine.load(std::memory_order_relaxed) + 1;
    mine.store(count);
    meeting_.wake();
    for (int t = 0; t < threads_; t++) {
        const std::atomic<unsigned>& other = seats_[size_t(t)]->arrived;
        if (t != thread) wait_for_others([&] { return other.load() >= count; });
    }
}

template <class Condition> void Pool::wait_for_others(Condition holds) {
    for (int i = 0; i < kLooks; i++) {
        if (holds()) return;
        pause_briefly();
    }
    const int64_t begin = nanoseconds();
    meeting_.sleep_until(holds);
    slept_.fetch_add(nanoseconds() - begin, std::memory_order_relaxed);
}

} // namespace li
