// Work on strips of rows, on several threads.
#pragma once

#include <atomic>
#include <cfenv>
#include <cstdint>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace li::quantize {

// Default rounding and no flushing of small numbers, whatever the caller's thread has set; restored at the end.
class DefaultArithmetic {
public:
    DefaultArithmetic() {
        std::fegetenv(&before_);
        std::fesetenv(FE_DFL_ENV);
    }
    ~DefaultArithmetic() { std::fesetenv(&before_); }
    DefaultArithmetic(const DefaultArithmetic&) = delete;
    DefaultArithmetic& operator=(const DefaultArithmetic&) = delete;

private:
    std::fenv_t before_;
};

// Calls work(strip) for each strip in [0, count), on `threads` threads (0: as many as there are processors). Who gets
// which strip is a matter of chance, so strips must not depend on each other. `work` must not throw.
template <class Work>
void for_each_strip(int64_t count, int threads, const Work& work) {
    std::atomic<int64_t> next{0};
    const auto take = [&] {
        const DefaultArithmetic arithmetic;
        for (int64_t strip; (strip = next.fetch_add(1)) < count;) work(strip);
    };
    if (threads <= 0) threads = int(std::thread::hardware_concurrency());
    std::vector<std::thread> helpers;
    try {
        for (int i = 1; i < threads && i < count; i++) helpers.emplace_back(take);
    } catch (const std::system_error&) { // no more threads: those that there are do the work
    } catch (const std::bad_alloc&) {
    }
    take();
    for (std::thread& helper : helpers) helper.join();
}

// The smallest of the numbers that several threads report.
class Smallest {
public:
    static constexpr int64_t kNone = INT64_MAX;
    void add(int64_t number) {
        int64_t known = value_.load();
        while (number < known && !value_.compare_exchange_weak(known, number)) {}
    }
    int64_t value() const { return value_.load(); }

private:
    std::atomic<int64_t> value_{kNone};
};

} // namespace li::quantize
