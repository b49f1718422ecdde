#include "instructions.h"

#include <atomic>
#include <cstring>
#include <initializer_list>

namespace li::quantize {

namespace {

std::atomic<const Kernels*> chosen{nullptr};

bool runs(const Kernels* kernels) {
    if (!kernels) return false;
#if defined(__x86_64__)
    if (kernels == kernels_avx2()) return __builtin_cpu_supports("avx2");
    if (kernels == kernels_avx512())
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
#endif
    return true;
}

} // namespace

const Kernels* usable_kernels(int index) {
    for (const Kernels* kernels : {kernels_portable(), kernels_avx2(), kernels_avx512()})
        if (runs(kernels) && index-- == 0) return kernels;
    return nullptr;
}

bool choose_kernels(const char* name) {
    const Kernels* found = nullptr;
    for (int i = 0; const Kernels* kernels = usable_kernels(i); i++)
        if (!name || std::strcmp(name, kernels->name) == 0) found = kernels;
    if (found) chosen = found;
    return found != nullptr;
}

const Kernels* chosen_kernels() {
    if (!chosen) choose_kernels(nullptr);
    return chosen;
}

} // namespace li::quantize
