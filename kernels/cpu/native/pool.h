// A persistent pool of threads that runs one job at a time on all of them, with barriers inside the job.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace li {

class Pool {
public:
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return count_; }

    // Runs job(context, thread) on every thread; the caller is thread 0. Returns when all are done. Jobs of several
    // callers run one after the other.
    void run(void (*job)(void*, int), void* context);

    // Inside a job: returns once every thread of the job has called it as often as this one.
    void barrier(int thread);

private:
    // One cache line pair per flag: neighbours would be invalidated by each other's writes.
    struct alignas(128) Flag {
        std::atomic<unsigned> value{0};
    };

    void work(int thread);
    void stop();

    const int count_;
    std::vector<Flag> arrived_;
    alignas(128) std::atomic<unsigned> generation_{0};
    alignas(128) std::atomic<int> unfinished_{0};
    void (*job_)(void*, int) = nullptr;
    void* context_ = nullptr;
    bool stop_ = false;
    std::mutex turn_;  // held by the caller whose job runs
    std::mutex mutex_; // guards parked workers' wait on generation_
    std::condition_variable wake_;
    std::atomic<int> parked_{0};
    std::vector<std::thread> workers_;
};

} // namespace li
