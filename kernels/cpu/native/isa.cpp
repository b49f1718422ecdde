#include "isa.h"

#include <cstring>

namespace li {

namespace {

bool cpu_has_avx2() {
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
    return false;
#endif
}

bool cpu_has_avx512vnni() {
#if defined(__x86_64__)
    return cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

} // namespace

const Isa* usable_isa(int index) {
    struct Table {
        Isa entries[3];
        int count = 0;
        void add(const char* name, bool supported, const MatmulKernels* matmul, const VectorKernels* vector) {
            if (supported && matmul && vector) entries[count++] = {name, matmul, vector};
        }
        Table() {
            add("portable", true, matmul_portable(), vector_portable());
            add("avx2", cpu_has_avx2(), matmul_avx2(), vector_avx2());
            add("avx512vnni", cpu_has_avx512vnni(), matmul_avx512vnni(), vector_avx512vnni());
        }
    };
    static const Table table;
    return index >= 0 && index < table.count ? &table.entries[index] : nullptr;
}

const Isa* find_isa(const char* name) {
    const Isa* found = nullptr;
    for (int i = 0; const Isa* isa = usable_isa(i); i++)
        if (!name || std::strcmp(name, isa->name) == 0) found = isa;
    return found;
}

} // namespace li
