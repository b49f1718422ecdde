// Rows of weights to GGUF blocks.
#include "api.h"
#include "instructions.h"
#include "rows.h"

using namespace li::quantize;

namespace {

constexpr int kHalf = 1, kBfloat = 30; // ids of F16 and BF16

int64_t first_bad_importance(const float* importance, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (!is_finite(importance[i]) || importance[i] < 0) return i;
    return -1;
}

// Returns whether all numbers fit.
bool round_row(int type, const float* x, int64_t count, uint8_t* out) {
    uint16_t* rounded = reinterpret_cast<uint16_t*>(out);
    const uint16_t infinity = type == kHalf ? 0x7c00 : 0x7f80;
    bool fits = true;
    for (int64_t i = 0; i < count; i++) {
        rounded[i] = type == kHalf ? to_binary16(x[i]) : to_bfloat16(x[i]);
        fits &= (rounded[i] & 0x7fff) != infinity;
    }
    return fits;
}

} // namespace

// Name of instruction set `index` that can run here, from portable to best; null past the end.
LI_API const char* li_quantize_instructions(int index) {
    const Kernels* kernels = usable_kernels(index);
    return kernels ? kernels->name : nullptr;
}

// From now on the instruction set of that name is used (null: the best); tests compare them. kUnknownInstructions if it
// cannot run here.
LI_API int li_quantize_use(const char* name) { return choose_kernels(name) ? kDone : kUnknownInstructions; }

// weights [rows, columns] to `out`, which has `out_bytes`. With an error about a row or
// column, `where` tells which.
LI_API int li_quantize_rows(int type, const float* weights, int64_t rows, int64_t columns, const float* importance,
                            const CodeOptions* options, int threads, uint8_t* out,                             int64_t out_bytes, int64_t* where) {
    const Kernels* kernels = chosen_kernels();
    const bool plain = type == kHalf || type == kBfloat;
    const Kernel* kernel = find_kernel(*kernels, type);
    if (!plain && (!kernel || (type >= kInt8 && !options))) return kUnknownType;
    const int64_t block_columns = plain ? 1 : kernel->block_columns, block_bytes = plain ? 2 : kernel->block_bytes;
    if (rows < 0 || columns < 0 || columns % block_columns) return kWrongShape;
    const int64_t row_bytes = columns / block_columns * block_bytes;
    if (row_bytes && rows > out_bytes / row_bytes) return kWrongShape;
    if (rows * row_bytes != out_bytes) return kWrongShape;
    if (importance) {
        *where = first_bad_importance(importance, columns);
        if (*where >= 0) return kBadImportance;
    }
    Smallest not_finite, too_large;
    const int64_t strip_rows = kernels->lanes;
    for_each_strip((rows + strip_rows - 1) / strip_rows, threads, [&](int64_t strip) {
        const int64_t first = strip * strip_rows;
        const int count = int(rows - first < strip_rows ? rows - first : strip_rows);
        const float* x = weights + first * columns;
        uint8_t* bytes = out + first * row_bytes;
        for (int row = 0; row < count; row++)
            if (first_not_finite(x + row * columns, columns) >= 0) return not_finite.add(first + row);
        int bad = -1;
        if (plain) {
            for (int row = count; row-- > 0;)
                if (!round_row(type, x + row * columns, columns, bytes + row * row_bytes)) bad = row;
        } else {
            bad = kernel->quantize({x, importance, count, columns, bytes, row_bytes, options, first, 0});
        }
        if (bad >= 0) too_large.add(first + bad);
    });
    return report(not_finite, too_large, where);
}
