// A block of columns of kLanes rows, and how weights come in and bytes go out.
#pragma once

#include "kernels.h"
#include "lanes.inl"

namespace {

using namespace li::quantize;

constexpr int kMaxColumns = 256; // of a block
constexpr int kMaxParts = 16;    // runs of columns with a scale of their own

// Weights of a block. Each lane is multiplied with a power of two (`up`) that brings its largest magnitude into [1, 2),
// so that squares neither overflow nor vanish; `down` is its inverse.
struct Source {
    V x[kMaxColumns];
    V weight[kMaxColumns]; // of squared errors
    V up, down;
    V given; // scales, for types that do not choose their own
    const CodeOptions* options;
};

// What a block stores. A weight of part p is scale[p] * level + offset[p], rounded twice as the format defines.
struct Block {
    V scale[kMaxParts], offset[kMaxParts];
    I scale_code[kMaxParts], offset_code[kMaxParts];
    I d, d_offset; // binary16 bits; for MXFP4 the exponent
    I too_large;   // mask of rows whose weights the type cannot hold
};

LI_INLINE void load_options(const CodeOptions* options, int64_t row, int64_t column, int rows, Source& source) {
    source.options = options;
    source.given = V{};
    for (int i = 0; options && options->scales && i < rows; i++) source.given[i] = options->scale_at(row + i, column);
}

// The nearest binary16 number to d, where d counts in units of source.up.
LI_INLINE V round_half(V d, const Source& source) { return round_half(d * source.down) * source.up; }

// The power of two below a positive x, and at least the smallest normal number.
LI_INLINE V power_of_two_below(V x) { return max(from_bits(bits(x) & 0x7f800000), all(0x1p-126f)); }

template <int columns>
LI_INLINE void normalize(Source& source) {
    V largest{};
    for (int i = 0; i < columns; i++) largest = max(largest, magnitude(source.x[i]));
    source.down = select(largest == 0.0f, all(1.0f), power_of_two_below(largest));
    source.up = 1.0f / source.down;
    for (int i = 0; i < columns; i++) source.x[i] *= source.up;
}

// Importances of a block's columns, brought to a largest value in [1, 2); all equal if none is above zero.
template <int columns>
LI_INLINE void load_importance(const float* importance, Source& source) {
    float largest = 0;
    for (int i = 0; importance && i < columns; i++) largest = importance[i] > largest ? importance[i] : largest;
    if (largest == 0) {
        for (int i = 0; i < columns; i++) source.weight[i] = all(1.0f);
        return;
    }
    const V up = 1.0f / power_of_two_below(all(largest));
    for (int i = 0; i < columns; i++) source.weight[i] = importance[i] * up;
}

// Weights of `rows` rows (kLanes at most) from `weights` on; lanes behind them are zero.
template <int columns>
LI_INLINE void load_rows(const float* weights, int64_t stride, int rows, V* x) {
    for (int i = 0; i < columns; i++) x[i] = V{};
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < columns; i++) reinterpret_cast<float*>(x + i)[row] = weights[row * stride + i];
}

// Makes large weights count more: weight * sqrt(mean(x²) + x²). With few levels the least squared error draws all weights
// towards zero, errors add up in the products then; this keeps their size (llama.cpp weights all its types like this).
template <int columns>
LI_INLINE void favour_large(Source& source) {
    V mean{};
    for (int i = 0; i < columns; i++) mean += source.x[i] * source.x[i];
    mean *= 1.0f / columns;
    for (int i = 0; i < columns; i++) source.weight[i] *= square_root(mean + source.x[i] * source.x[i]);
}

} // namespace
