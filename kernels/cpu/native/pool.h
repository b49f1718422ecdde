// The threads of the process: one job at a time runs on some of them, with barriers inside the job. Every model of the
// process shares one pool, so that two models never have threads that spin against each other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "crowding.h"

namespace li {

// Where threads sleep until a condition over atomics holds. Whoever makes it hold calls `wake`, which costs one load
// if nobody sleeps. Both sides use sequentially consistent operations: either the sleeper sees the new value, or
// the waker sees the sleeper.
class Parking {
public:
    template <class Condition> void sleep_until(Condition holds) {
        sleepers_.fetch_add(1);
        {
            std::unique_lock<std::mutex> lock(mutex_);
            changed_.wait(lock, holds);
        }
        sleepers_.fetch_sub(1);
    }
    void wake() {
        if (sleepers_.load() == 0) return;
        std::lock_guard<std::mutex> lock(mutex_);
        changed_.notify_all();
    }

private:
    std::atomic<int> sleepers_{0};
    std::mutex mutex_;
    std::condition_variable changed_;
};

class Pool {
public:
    Pool() { seats_.push_back(std::make_unique<Seat>()); } // that of whoever calls `run`
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    // Starts threads until a job can have so many. Throws, and starts none, if the system refuses.
    void grow(int threads);

    // Runs job(context, thread, threads) for thread 0 … threads - 1, the caller being thread 0, and returns when all are
    // done. `threads` is at most `most`, less where other programs keep cores busy. Jobs of several callers run one
    // after the other, first come, first served. False, and nothing has run, if `cancel` became true before the
    // caller's turn.
    using Job = void (*)(void*, int, int);
    bool run(int most, Job job, void* context, const std::atomic<bool>& cancel);

    // Makes callers that wait for their turn look at `cancel`.
    void interrupt();

    // Inside a job: returns once every thread of the job has called it as often as this one.
    void barrier(int thread);

private:
    // One thread's place. Cache line pairs of their own: neighbours would be invalidated by each other's writes.
    struct Seat {
        alignas(128) std::atomic<unsigned> jobs{0}; // given to this thread since it began
        alignas(128) std::atomic<unsigned> arrived{0}; // at how many barriers of the job
        alignas(128) Parking idle;
        bool leave = false; // instead of the next job
        std::thread thread;
    };

    class Turn; // a caller's right to use what follows

    void work(Seat& seat, int thread);
    void give_job(Seat& seat);
    template <class Condition> void wait_for_others(Condition holds);

    std::mutex queue_mutex_;
    std::condition_variable queue_changed_;
    std::vector<const Turn*> queue_; // callers; the first one has its turn

    std::vector<std::unique_ptr<Seat>> seats_;
    Job job_ = nullptr;
    void* context_ = nullptr;
    int threads_ = 1; // of the job
    Crowding crowding_;
    std::atomic<int64_t> slept_{0}; // nanoseconds, all threads of the job together
    alignas(128) std::atomic<int> unfinished_{0};
    alignas(128) Parking meeting_; // threads of the job that wait for others
};

} // namespace li
