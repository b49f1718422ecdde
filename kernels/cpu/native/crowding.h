// How many threads a job gets. Beside other busy programs, threads that lose their cores make all others wait, and fewer
// threads are faster: two beside one busy process on two cores take 1.7 times as long as one (docs/log.md).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace li {

// All times in nanoseconds, of any clock that never goes back.
class Crowding {
public:
    // The threads for a job that could use `wanted`.
    int choose(int wanted, int64_t now) const {
        if (wanted <= limit_) return wanted;
        return now >= retry_at_ ? limit_ + 1 : limit_;
    }

    // After a job: how long it took, and the sum of its threads' sleep at barriers.
    void report(int threads, int64_t duration, int64_t slept, int64_t now) {
        if (threads == 1) return;
        if (threads != window_threads_) window_threads_ = threads, window_ = lost_ = 0;
        window_ += duration;
        lost_ += slept / (threads - 1); // all others sleep while one is away
        if (window_ < kWindow) return;
        // Without the loss one thread less would take threads / (threads - 1) times as long.
        const bool crowded = lost_ > window_ / threads, retried = threads == limit_ + 1;
        window_ = lost_ = 0;
        if (crowded) {
            pause_ = retried ? std::min(2 * pause_, kLongestPause) : kShortestPause;
            limit_ = threads - 1;
            retry_at_ = now + pause_;
        } else if (retried) {
            limit_ = threads;
        }
    }

private:
    static constexpr int64_t kMillisecond = 1000000;
    // Jobs are judged together for so long: a time slice of another program alone is no reason.
    static constexpr int64_t kWindow = 20 * kMillisecond;
    // So long nobody tries again with one thread more.
    static constexpr int64_t kShortestPause = 250 * kMillisecond, kLongestPause = 4000 * kMillisecond;

    int limit_ = std::numeric_limits<int>::max() - 1;
    int window_threads_ = 0;
    int64_t window_ = 0, lost_ = 0, pause_ = 0, retry_at_ = 0;
};

} // namespace li
