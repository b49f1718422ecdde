// Scales of int8 and FP8 weights, one for each block of rows and columns.
#include <cmath>

#include "api.h"
#include "instructions.h"
#include "rows.h"

using namespace li::quantize;

namespace {

// The level that the largest weight is put on. FP8 has the same spacing in every octave, so its scales vary over one.
constexpr float kInt8Anchors[kCandidates] = {127, 126, 125, 124, 122, 120, 118, 115, 112, 109, 106, 102, 98, 94, 90, 85};
constexpr float kE4M3Anchors[kCandidates] = {448, 432, 416, 400, 384, 368, 352, 336,
                                             320, 304, 288, 272, 256, 248, 240, 232};

float round_scale(float scale, int type) {
    if (type == kBinary16) return from_binary16(to_binary16(scale));
    if (type == kBfloat16) return from_bfloat16(to_bfloat16(scale));
    return scale;
}

struct Region {
    const float* weights;
    int64_t stride, rows, columns;
    const float* importance;
};

// The scale of least error, or infinity if its type cannot hold it. 0 if all weights are.
float choose_scale(const Kernels& kernels, bool int8, const Region& region, int scale_type) {
    float largest = 0;
    for (int64_t row = 0; row < region.rows; row++)
        for (int64_t i = 0; i < region.columns; i++) {
            const float positive = std::fabs(region.weights[row * region.stride + i]);
            largest = positive > largest ? positive : largest;
        }
    float scales[kCandidates], errors[kCandidates];
    double sums[kCandidates] = {};
    for (int i = 0; i < kCandidates; i++)
        scales[i] = round_scale(largest / (int8 ? kInt8Anchors : kE4M3Anchors)[i], scale_type);
    if (!is_finite(scales[0])) return scales[0];
    for (int64_t row = 0; row < region.rows; row++) {
        (int8 ? kernels.int8_errors : kernels.e4m3_errors)(region.weights + row * region.stride, region.columns,
                                                          region.importance, scales, errors);
        for (int i = 0; i < kCandidates; i++) sums[i] += errors[i];
    }
    int best = 0;
    for (int i = 1; i < kCandidates; i++)
        if (is_finite(scales[i]) && sums[i] * scales[i] * scales[i] < sums[best] * scales[best] * scales[best]) best = i;
    return scales[best];
}

} // namespace

// scales [rows / row_block, columns / column_block], rounded up, for weights [rows, columns]. type kInt8 or kE4M3.
LI_API int li_quantize_scales(int type, const float* weights, int64_t rows, int64_t columns, const float* importance,
                              int scale_type, int64_t row_block, int64_t column_block, int threads, 
                              float* scales, int64_t* where) {
    const Kernels* kernels = chosen_kernels();
    if (type != kInt8 && type != kE4M3) return kUnknownType;
    if (rows < 0 || columns < 0 || row_block < 1 || column_block < 1) return kWrongShape;
    const int64_t down = (rows + row_block - 1) / row_block, across = (columns + column_block - 1) / column_block;
    Smallest not_finite, too_large;
    for_each_strip(down, threads, [&](int64_t i) {
        const int64_t first = i * row_block, count = rows - first < row_block ? rows - first : row_block;
        for (int64_t row = first; row < first + count; row++)
            if (first_not_finite(weights + row * columns, columns) >= 0) return not_finite.add(row);
        for (int64_t j = 0; j < across; j++) {
            const int64_t start = j * column_block, width = columns - start < column_block ? columns - start : column_block;
            const Region region{weights + first * columns + start, columns, count, width, importance ? importance + start : nullptr};
            scales[i * across + j] = choose_scale(*kernels, type == kInt8, region, scale_type);
            if (!is_finite(scales[i * across + j])) too_large.add(first);
        }
    });
    return report(not_finite, too_large, where);
}
