// The matrix products through the C ABI, for tests and micro-benchmarks only. Functions that return an int refuse (-1)
// instruction sets, types, shapes and ranges that do not exist; that buffers have the stated shapes is the caller's word.
// `isa` is "portable", "avx2" or "avx512vnni".
#include <cstring>

#include "api.h"
#include "isa.h"

using li::MatmulKernels;

namespace {

// Null if there is no such instruction set here.
const MatmulKernels* kernels_of(const char* isa) {
    const li::Isa* found = isa ? li::find_isa(isa) : nullptr;
    return found ? found->matmul : nullptr;
}

// Null if that instruction set has no matrix of this type and shape.
const MatmulKernels* kernels_for(const char* isa, int type, int rows, int cols) {
    const MatmulKernels* kernels = kernels_of(isa);
    return kernels && rows >= 1 && kernels->group_bytes(type, cols) ? kernels : nullptr;
}

int groups_of(int rows) { return (rows - 1) / li::kGroupRows + 1; }

} // namespace

// 1 if this CPU and this build have the instruction set, else 0.
LI_API int li_matmul_has(const char* isa) {
    return kernels_of(isa) != nullptr;
}

LI_API size_t li_matmul_group_bytes(const char* isa, int type, int cols) {
    const MatmulKernels* kernels = kernels_of(isa);
    return kernels ? kernels->group_bytes(type, cols) : 0;
}

// Packs `rows` rows, `row_bytes` apart, into groups at `out` (64-byte aligned, all groups).
LI_API int li_matmul_pack(const char* isa, int type, const uint8_t* source, size_t row_bytes, int rows, int cols,
                          uint8_t* out) {
    const MatmulKernels* kernels = kernels_for(isa, type, rows, cols);
    if (!kernels)
        return -1;
    const size_t group_bytes = kernels->group_bytes(type, cols);
    for (int row = 0; row < rows; row += li::kGroupRows, out += group_bytes)
        kernels->pack_group(type, source + row * row_bytes, row_bytes,
                            rows - row < li::kGroupRows ? rows - row : li::kGroupRows, cols, out);
    return 0;
}

LI_API int li_matmul_unpack_row(const char* isa, int type, int rows, int cols, const uint8_t* packed, int row,
                                float* out) {
    const MatmulKernels* kernels = kernels_for(isa, type, rows, cols);
    if (!kernels || row < 0 || row >= rows)
        return -1;
    kernels->unpack_row({type, rows, cols, packed, kernels->group_bytes(type, cols)}, row, out);
    return 0;
}

// Quantizes `rows` rows of `cols` floats; outputs are contiguous.
LI_API int li_matmul_quantize(const char* isa, const float* x, int rows, int cols, int8_t* q, float* scale,
                              float* sum16, float* sum32) {
    const MatmulKernels* kernels = kernels_of(isa);
    if (!kernels || rows < 0 || cols < 0 || cols % 32)
        return -1;
    for (size_t row = 0; row < static_cast<size_t>(rows); row++)
        kernels->quantize_row(x + row * cols, cols, q + row * cols, scale + row * (cols / 16),
                              sum16 + row * (cols / 16), sum32 + row * (cols / 32));
    return 0;
}

// y[tokens, y_stride] for groups [group_begin, group_end) of a packed matrix; activations are contiguous.
LI_API int li_matmul_multiply(const char* isa, int type, int rows, int cols, const uint8_t* packed, const float* x,
                              const int8_t* q, const float* scale, const float* sum16, const float* sum32, int tokens,
                              int group_begin, int group_end, float* y, size_t y_stride, const float* bias) {
    const MatmulKernels* kernels = kernels_for(isa, type, rows, cols);
    if (!kernels || tokens < 0 || group_begin < 0 || group_begin > group_end || group_end > groups_of(rows) ||
        y_stride < static_cast<size_t>(rows))
        return -1;
    const size_t width = static_cast<size_t>(cols);
    const li::PackedMatrix w = {type, rows, cols, packed, kernels->group_bytes(type, cols)};
    const li::Activations a = {cols, x, width, q, width, scale, sum16, sum32, width / 16, width / 32};
    kernels->multiply(w, a, tokens, group_begin, group_end, y, y_stride, bias);
    return 0;
}

// Reads `bytes` bytes (a multiple of 256) in four streams, as fast as one thread can; returns their sum.
LI_API uint64_t li_matmul_probe_read(const uint64_t* data, size_t bytes) {
    typedef uint64_t Vector __attribute__((vector_size(16)));
    const Vector* vectors = reinterpret_cast<const Vector*>(data);
    const size_t stream = bytes / 64;
    Vector sum[4] = {};
    for (size_t i = 0; i < stream; i++)
        for (size_t s = 0; s < 4; s++)
            sum[s] += vectors[s * stream + i];
    const Vector all = sum[0] + sum[1] + sum[2] + sum[3];
    return all[0] + all[1];
}

// Runs the instructions that bound an integer product, `rounds` times, and returns the multiply-accumulates done: for
// avx2 vpmaddubsw + vpaddw, for avx512vnni vpdpbusd with 256 bits; 0 for portable.
LI_API double li_matmul_probe_integer(const char* isa, long rounds) {
#if defined(__x86_64__)
    if (!kernels_of(isa))
        return 0;
    if (std::strcmp(isa, "avx2") == 0) {
#define LI_PAIR(t, a) "vpmaddubsw %%ymm14, %%ymm15, %%ymm" t "\n vpaddw %%ymm" t ", %%ymm" a ", %%ymm" a "\n"
        for (long i = 0; i < rounds; i++)
            asm volatile(LI_PAIR("8", "0") LI_PAIR("9", "1") LI_PAIR("10", "2") LI_PAIR("11", "3") LI_PAIR("8", "4")
                             LI_PAIR("9", "5") LI_PAIR("10", "6") LI_PAIR("11", "7")
                         :
                         :
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                           "xmm11");
#undef LI_PAIR
        return 8.0 * 32 * static_cast<double>(rounds);
    }
    if (std::strcmp(isa, "avx512vnni") == 0) {
#define LI_DOT(a) "vpdpbusd %%ymm16, %%ymm17, %%ymm" a "\n"
        for (long i = 0; i < rounds; i++)
            asm volatile(LI_DOT("0") LI_DOT("1") LI_DOT("2") LI_DOT("3") LI_DOT("4") LI_DOT("5") LI_DOT("6") LI_DOT("7")
                             LI_DOT("8") LI_DOT("9") LI_DOT("10") LI_DOT("11")
                         :
                         :
                         : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                           "xmm11");
#undef LI_DOT
        return 12.0 * 32 * static_cast<double>(rounds);
    }
#endif
    (void)rounds;
    return 0;
}
