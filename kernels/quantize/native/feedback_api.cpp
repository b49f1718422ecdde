// Quantization with error feedback: the factor of the second moments, and rows of weights to GGUF blocks.
#include <algorithm>
#include <cstdlib>
#include <memory>

#include "api.h"
#include "instructions.h"
#include "rows.h"

using namespace li::quantize;

namespace {

constexpr int64_t kRowsAtOnce = 32; // of a step of Cholesky's algorithm

std::unique_ptr<double[]> doubles(int64_t count) { return std::unique_ptr<double[]>(new (std::nothrow) double[size_t(count)]); }

} // namespace

// factor [size, size]: the upper triangular R with R Rᵀ = gram / mean + damping, mean being that of gram's diagonal (its upper
// triangle counts). `where`: the row of a number that is not finite, or of a negative one in the diagonal.
LI_API int li_quantize_factor(const float* gram, int64_t size, double damping, int threads, 
                              float* factor, int64_t* where) {
    const Kernels* kernels = chosen_kernels();
    if (size < 1 || size > (int64_t(1) << 20) || !(damping > 0)) return kWrongShape;
    const DefaultArithmetic arithmetic;
    double sum = 0;
    for (int64_t i = 0; i < size; i++) {
        *where = i;
        if (gram[i * size + i] < 0 || first_not_finite(gram + i * size, size) >= 0) return kNotFinite;
        sum += gram[i * size + i];
    }
    const double inverse_mean = sum > 0 ? double(size) / sum : 1.0;

    // From the last row to the first is from the first to the last of the matrix turned around; rows have room for a tile.
    const int64_t stride = size + kernels->factor_tile;
    const auto a = doubles(size * stride), turned = doubles(kernels->factor_block * stride);
    if (!a || !turned) return kNoMemory;
    for_each_strip(size, threads, [&](int64_t i) {
        for (int64_t j = 0; j < stride; j++)
            a[i * stride + j] = j > i ? 0 : gram[(size - 1 - i) * size + (size - 1 - j)] * inverse_mean + (j == i ? damping : 0);
    });
    for (int64_t start = 0; start < size; start += kernels->factor_block) {
        const int columns = int(std::min<int64_t>(kernels->factor_block, size - start));
        const int64_t below = size - start - columns;
        double* panel = a.get() + start * stride + start;
        kernels->factor_panel(panel, stride, size - start, columns, damping);
        const int64_t pieces = (below + kRowsAtOnce - 1) / kRowsAtOnce;
        for_each_strip(pieces, threads, [&](int64_t piece) {
            const int64_t first = columns + piece * kRowsAtOnce, last = std::min(first + kRowsAtOnce, size - start);
            kernels->solve_panel(panel, stride, first, last, columns);
            for (int64_t i = first; i < last; i++)
                for (int k = 0; k < columns; k++) turned[k * stride + i - columns] = panel[i * stride + k];
        });
        for (int k = 0; k < columns; k++) std::fill_n(turned.get() + k * stride + below, stride - below, 0.0);
        for_each_strip(pieces, threads, [&](int64_t piece) {
            const int64_t first = (pieces - 1 - piece) * kRowsAtOnce; // long rows first
            kernels->subtract_panel(panel + columns * stride + columns, panel + columns * stride, stride, turned.get(), stride,
                                    columns, first, std::min(first + kRowsAtOnce, below));
        });
    }
    for_each_strip(size, threads, [&](int64_t i) {
        for (int64_t j = 0; j < size; j++)
            factor[i * size + j] = j < i ? 0 : float(a[(size - 1 - i) * stride + (size - 1 - j)]);
    });
    return kDone;
}

// weights [rows, columns] to `out`. factors[i] is of li_quantize_factor, for sizes[i] columns behind those of the ones before.
LI_API int li_quantize_feedback(int type, const float* weights, int64_t rows, int64_t columns, const float* const* factors,
                                const int64_t* sizes, int factor_count, const CodeOptions* options, int threads, uint8_t* out,
                                int64_t out_bytes, int64_t* where) {
    const Kernels* kernels = chosen_kernels();
    const Kernel* kernel = find_kernel(*kernels, type);
    if (!kernel || (type >= kInt8 && !options)) return kUnknownType;
    int64_t covered = 0, largest = 0;
    for (int i = 0; i < factor_count; i++) {
        if (sizes[i] < 1 || sizes[i] % kernel->block_columns) return kWrongShape;
        covered += sizes[i];
        largest = std::max(largest, sizes[i]);
    }
    if (rows < 0 || covered != columns) return kWrongShape;
    const int64_t row_bytes = columns / kernel->block_columns * kernel->block_bytes;
    if (!row_bytes || out_bytes % row_bytes || out_bytes / row_bytes != rows) return kWrongShape;

    Smallest not_finite, too_large;
    std::atomic<bool> no_memory{false};
    const int64_t task_rows = kernels->lanes * kFeedbackStrips;
    for_each_strip((rows + task_rows - 1) / task_rows, threads, [&](int64_t task) {
        const int64_t first = task * task_rows;
        const int count = int(std::min(task_rows, rows - first));
        const float* x = weights + first * columns;
        for (int row = 0; row < count; row++)
            if (first_not_finite(x + row * columns, columns) >= 0) return not_finite.add(first + row);
        const size_t scratch_bytes = sizeof(float) * size_t(task_rows * largest);
        const std::unique_ptr<void, decltype(&std::free)> scratch(std::aligned_alloc(64, (scratch_bytes + 63) / 64 * 64), std::free);
        if (!scratch) {
            no_memory = true;
            return;
        }
        int64_t start = 0;
        for (int i = 0; i < factor_count; start += sizes[i++]) {
            uint8_t* bytes = out + first * row_bytes + start / kernel->block_columns * kernel->block_bytes;
            const int bad = kernel->feed_back({x + start, columns, count, factors[i], sizes[i], scratch.get(), bytes, row_bytes,
                                               options, first, start});
            if (bad >= 0) too_large.add(first + bad);
        }
    });
    if (no_memory) return kNoMemory;
    return report(not_finite, too_large, where);
}
