// What this machine can do at most: read bandwidth from memory, and int8 multiply-accumulates per second.
//
//     g++ -O3 -march=native -std=c++17 -pthread probe.cpp -o probe && ./probe 2
//
// prints one JSON line: bytes per second, and multiply-accumulates per second of each instruction that the CPU has
// (absent otherwise). Figures are sustained rates over all passes, `_best` the best single pass.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include <sys/mman.h>
#ifdef __linux__
#include <sched.h>
#endif
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace {

constexpr size_t kBytes = size_t{512} << 20; // far more than any cache
constexpr size_t kHugePage = size_t{2} << 20;
constexpr int kStreams = 4; // per thread; one stream leaves the memory controller idle
constexpr int kPasses = 8;

using Vector = uint64_t __attribute__((vector_size(32)));

double seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Binds the calling thread to the index-th CPU that this process may use.
void pin(int index) {
#ifdef __linux__
    cpu_set_t allowed, one;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &allowed) && index-- == 0) {
            CPU_SET(cpu, &one);
            sched_setaffinity(0, sizeof one, &one);
            return;
        }
    }
#else
    (void)index;
#endif
}

struct Rate {
    double sustained, best;
};

// Runs work(thread) in all threads at once, kPasses times after one that does not count; `amount` is the work of a pass.
Rate measure(int threads, double amount, const std::function<void(int)>& work) {
    std::atomic<int> arrived{0};
    std::vector<double> times;
    auto wait_for = [&](int count) {
        while (arrived.load(std::memory_order_acquire) < count) {
        }
    };
    auto run = [&](int thread) {
        pin(thread);
        double start = 0;
        for (int pass = 0; pass <= kPasses; pass++) {
            arrived.fetch_add(1, std::memory_order_acq_rel);
            wait_for((2 * pass + 1) * threads);
            if (thread == 0) start = seconds();
            work(thread);
            arrived.fetch_add(1, std::memory_order_acq_rel);
            wait_for((2 * pass + 2) * threads);
            if (thread == 0 && pass > 0) times.push_back(seconds() - start);
        }
    };
    std::vector<std::thread> pool;
    for (int thread = 0; thread < threads; thread++) pool.emplace_back(run, thread);
    for (auto& thread : pool) thread.join();
    double sum = 0, least = times[0];
    for (double t : times) {
        sum += t;
        if (t < least) least = t;
    }
    return {amount * kPasses / sum, amount / least};
}

void print(const char* name, Rate rate) { printf("\"%s\": %.6g, \"%s_best\": %.6g, ", name, rate.sustained, name, rate.best); }

// Reads `bytes` as kStreams contiguous streams side by side.
void read_streams(const Vector* data, size_t bytes) {
    const size_t part = bytes / sizeof(Vector) / kStreams;
    Vector sums[kStreams] = {};
    for (size_t i = 0; i < part; i += 2) {
        for (int s = 0; s < kStreams; s++) {
            sums[s] += data[s * part + i];
            sums[s] += data[s * part + i + 1];
        }
    }
    Vector total = sums[0] + sums[1] + sums[2] + sums[3];
    asm volatile("" ::"m"(total));
}

Rate bandwidth(int threads) {
    void* mapped = mmap(nullptr, kBytes + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
        fprintf(stderr, "probe: no memory for the bandwidth test\n");
        exit(1);
    }
    char* data = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(mapped) + kHugePage - 1) & ~(kHugePage - 1));
#ifdef MADV_HUGEPAGE
    madvise(data, kBytes, MADV_HUGEPAGE);
#endif
    const size_t share = kBytes / threads / (2 * sizeof(Vector) * kStreams) * (2 * sizeof(Vector) * kStreams);
    auto part = [&](int thread) { return data + thread * share; };
    std::vector<std::thread> touch; // each thread its own part: pages then lie near the core that reads them
    for (int t = 0; t < threads; t++) {
        touch.emplace_back([&, t] {
            pin(t);
            for (size_t i = 0; i < share; i += 4096) part(t)[i] = 1;
        });
    }
    for (auto& thread : touch) thread.join();
    Rate rate = measure(threads, double(share) * threads,
                        [&](int thread) { read_streams(reinterpret_cast<const Vector*>(part(thread)), share); });
    munmap(mapped, kBytes + kHugePage);
    return rate;
}

#ifdef __x86_64__
constexpr long kRepeats = 1000000;
constexpr int kChains = 8; // independent accumulators: enough to hide the latency, few enough for 16 registers

#define LOCALINFER_EIGHT(ONE) ONE(0) ONE(1) ONE(2) ONE(3) ONE(4) ONE(5) ONE(6) ONE(7)

// AVX2: 32 products of u8 and s8, added in pairs to int16 and then to an int16 accumulator.
__attribute__((target("avx2"))) void run_maddubs(int) {
    __m256i a = _mm256_set1_epi8(1), b = a, sums[kChains] = {};
    for (long i = 0; i < kRepeats; i++) {
        __m256i product;
#define ONE(c) \
    asm volatile("vpmaddubsw %2, %3, %1\n\tvpaddw %1, %0, %0" : "+x"(sums[c]), "=&x"(product) : "x"(a), "x"(b));
        LOCALINFER_EIGHT(ONE)
#undef ONE
    }
}

// AVX-512 VNNI, 256 and 512 bits wide: 32 or 64 products added to int32 accumulators in one instruction.
__attribute__((target("avx512f,avx512vl,avx512vnni"))) void run_dpbusd_256(int) {
    __m256i a = _mm256_set1_epi8(1), b = a, sums[2 * kChains] = {};
    for (long i = 0; i < kRepeats; i++) {
#define ONE(c)                                                                    \
    asm volatile("vpdpbusd %1, %2, %0" : "+v"(sums[c]) : "v"(a), "v"(b));         \
    asm volatile("vpdpbusd %1, %2, %0" : "+v"(sums[c + kChains]) : "v"(a), "v"(b));
        LOCALINFER_EIGHT(ONE)
#undef ONE
    }
}

__attribute__((target("avx512f,avx512vl,avx512vnni"))) void run_dpbusd_512(int) {
    __m512i a = _mm512_set1_epi32(0x01010101), b = a, sums[2 * kChains] = {};
    for (long i = 0; i < kRepeats; i++) {
#define ONE(c)                                                                    \
    asm volatile("vpdpbusd %1, %2, %0" : "+v"(sums[c]) : "v"(a), "v"(b));         \
    asm volatile("vpdpbusd %1, %2, %0" : "+v"(sums[c + kChains]) : "v"(a), "v"(b));
        LOCALINFER_EIGHT(ONE)
#undef ONE
    }
}
#endif

void integer_peaks(int threads) {
#ifdef __x86_64__
    const double steps = double(kRepeats) * kChains * threads;
    if (__builtin_cpu_supports("avx2")) print("maddubs_256", measure(threads, steps * 32, run_maddubs));
    if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vl")) {
        print("dpbusd_256", measure(threads, steps * 2 * 32, run_dpbusd_256));
        print("dpbusd_512", measure(threads, steps * 2 * 64, run_dpbusd_512));
    }
#else
    (void)threads;
#endif
}

} // namespace

int main(int argc, char** argv) {
    const int threads = argc > 1 ? atoi(argv[1]) : int(std::thread::hardware_concurrency());
    if (threads < 1 || threads > 1024) {
        fprintf(stderr, "usage: probe THREADS\n");
        return 1;
    }
    printf("{");
    print("read", bandwidth(threads));
    integer_peaks(threads);
    printf("\"threads\": %d}\n", threads);
}
