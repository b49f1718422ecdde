// The matrix products through the C ABI, for tests and micro-benchmarks only. `isa` is "portable", "avx2" or "avx512vnni".
#include <cstring>

#include "api.h"
#include "matmul.h"

using li::MatmulKernels;

namespace {

bool cpu_runs(const char* isa) {
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (std::strcmp(isa, "avx2") == 0)
        return avx2;
    if (std::strcmp(isa, "avx512vnni") == 0)
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni");
#endif
    return std::strcmp(isa, "portable") == 0;
}

const MatmulKernels* kernels_of(const char* isa) {
    if (!cpu_runs(isa))
        return nullptr;
    if (std::strcmp(isa, "avx2") == 0)
        return li::matmul_avx2();
    if (std::strcmp(isa, "avx512vnni") == 0)
        return li::matmul_avx512vnni();
    return li::matmul_portable();
}

} // namespace

// 1 if this CPU and this build have the instruction set, else 0.
LI_API int li_matmul_has(const char* isa) {
    return kernels_of(isa) != nullptr;
}

LI_API size_t li_matmul_group_bytes(const char* isa, int type, int cols) {
    return kernels_of(isa)->group_bytes(type, cols);
}

// Packs `rows` rows, `row_bytes` apart, into groups at `out` (64-byte aligned, all groups).
LI_API void li_matmul_pack(const char* isa, int type, const uint8_t* source, size_t row_bytes, int rows, int cols,
                           uint8_t* out) {
    const MatmulKernels* kernels = kernels_of(isa);
    const size_t group_bytes = kernels->group_bytes(type, cols);
    for (int row = 0; row < rows; row += li::kGroupRows, out += group_bytes)
        kernels->pack_group(type, source + row * row_bytes, row_bytes,
                            rows - row < li::kGroupRows ? rows - row : li::kGroupRows, cols, out);
}

LI_API void li_matmul_unpack_row(const char* isa, int type, int rows, int cols, const uint8_t* packed, int row,
                                 float* out) {
    const MatmulKernels* kernels = kernels_of(isa);
    kernels->unpack_row({type, rows, cols, packed, kernels->group_bytes(type, cols)}, row, out);
}

// Quantizes `rows` rows of `cols` floats; outputs are contiguous.
LI_API void li_matmul_quantize(const char* isa, const float* x, int rows, int cols, int8_t* q, float* scale,
                               float* sum16, float* sum32) {
    const MatmulKernels* kernels = kernels_of(isa);
    for (size_t row = 0; row < static_cast<size_t>(rows); row++)
        kernels->quantize_row(x + row * cols, cols, q + row * cols, scale + row * (cols / 16),
                              sum16 + row * (cols / 16), sum32 + row * (cols / 32));
}

// y[tokens, y_stride] for groups [group_begin, group_end) of a packed matrix; activations are contiguous.
LI_API void li_matmul_multiply(const char* isa, int type, int rows, int cols, const uint8_t* packed, const float* x,
                               const int8_t* q, const float* scale, const float* sum16, const float* sum32, int tokens,
                               int group_begin, int group_end, float* y, size_t y_stride, const float* bias) {
    const MatmulKernels* kernels = kernels_of(isa);
    const size_t width = static_cast<size_t>(cols);
    const li::PackedMatrix w = {type, rows, cols, packed, kernels->group_bytes(type, cols)};
    const li::Activations a = {cols, x, width, q, width, scale, sum16, sum32, width / 16, width / 32};
    kernels->multiply(w, a, tokens, group_begin, group_end, y, y_stride, bias);
}
