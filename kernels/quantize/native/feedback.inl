// Quantization that lets later columns make up for the errors of earlier ones.
//
// With second moments H of the inputs, the error of a row of products is e H eᵀ, e being the error of the row of weights.
// H = R Rᵀ with an upper triangular R (factor.inl), so this is |e R|², and (e R)_j = Σ_{i <= j} e_i R_ij. Going from the first
// column to the last, each weight is rounded so that its own term is smallest: the target of column j is
// w_j + Σ_{i < j} e_i R_ij / R_jj, and an error there counts R_jj² times. This is what GPTQ computes (Frantar et al. 2022, in
// the form of Babai's nearest plane), without inverting H. Scales of a block are chosen when its first column is reached.
#pragma once

#include "block.inl"
#include "kernels.h"

namespace {

constexpr int kTile = 8;    // columns whose sums are kept in registers
constexpr int kPanel = 64;  // earlier columns that are added to all strips in turn, while their part of R is near

// Adds the errors of columns [first, last) to the sums of `columns` columns from `start` on.
LI_INLINE void add_errors(const V* errors, int64_t first, int64_t last, const float* factor, int64_t size, int64_t start,
                          int columns, V* sums) {
    int j = 0;
    for (; j + kTile <= columns; j += kTile) {
        V tile[kTile];
        for (int t = 0; t < kTile; t++) tile[t] = sums[j + t];
        for (int64_t i = first; i < last; i++) {
            const float* r = factor + i * size + start + j;
            for (int t = 0; t < kTile; t++) tile[t] += errors[i] * r[t];
        }
        for (int t = 0; t < kTile; t++) sums[j + t] = tile[t];
    }
}

// One block of one strip: chooses its scales, then its codes column by column. `r` is the factor from the block's first
// row and column on. Returns the mask of rows that the type cannot hold.
template <class Type>
I feed_back_block(const V* w, V* sums, const float* r, int64_t size, V* errors, Source& source, int rows, uint8_t* out,
                  int64_t out_stride) {
    constexpr int columns = Type::kColumns;
    Block block;
    float inverse_diagonal[columns], importance[columns];
    for (int j = 0; j < columns; j++) {
        const float diagonal = r[j * size + j];
        inverse_diagonal[j] = 1.0f / diagonal;
        importance[j] = diagonal * diagonal;
        source.x[j] = w[j] + sums[j] * inverse_diagonal[j];
    }
    normalize<columns>(source);
    load_importance<columns>(importance, source);
    Type::fit(source, block);

    uint8_t codes[kLanes][columns];
    for (int part = 0; part < columns / Type::kPart; part++) {
        const V scale = block.scale[part], offset = block.offset[part], inverse_scale = inverse(scale);
        for (int j = part * Type::kPart; j < (part + 1) * Type::kPart; j++) {
            const V target = w[j] + sums[j] * inverse_diagonal[j];
            const V level = Type::Levels::nearest((target - offset) * inverse_scale);
            const I code = Type::Levels::code(level);
            for (int lane = 0; lane < kLanes; lane++) codes[lane][j] = uint8_t(code[lane]);
            errors[j] = w[j] - (scale * level + offset);
            for (int k = j + 1; k < columns; k++) sums[k] += errors[j] * r[j * size + k];
        }
    }
    for (int row = 0; row < rows; row++) Type::pack(block, row, codes[row], out + row * out_stride);
    return block.too_large;
}

// Returns -1, or the first of the rows that the type cannot hold.
template <class Type>
int feed_back(const FeedbackRows& rows) {
    constexpr int columns = Type::kColumns;
    const int strips = (rows.count + kLanes - 1) / kLanes;
    V* errors = static_cast<V*>(rows.scratch);       // [strips, size]
    V sums[kFeedbackStrips][columns];
    I too_large[kFeedbackStrips]{};
    for (int64_t start = 0; start < rows.size; start += columns) {
        std::memset(sums, 0, sizeof sums);
        for (int64_t first = 0; first < start; first += kPanel)
            for (int strip = 0; strip < strips; strip++)
                add_errors(errors + strip * rows.size, first, first + kPanel < start ? first + kPanel : start, rows.factor,
                           rows.size, start, columns, sums[strip]);
        for (int strip = 0; strip < strips; strip++) {
            const int first_row = strip * kLanes;
            const int count = rows.count - first_row < kLanes ? rows.count - first_row : kLanes;
            V w[columns];
            Source source;
            load_options(rows.options, rows.first_row + first_row, rows.first_column + start, count, source);
            load_rows<columns>(rows.weights + first_row * rows.stride + start, rows.stride, count, w);
            too_large[strip] |= feed_back_block<Type>(
                w, sums[strip], rows.factor + start * rows.size + start, rows.size, errors + strip * rows.size + start, source, count,
                rows.out + first_row * rows.out_stride + start / columns * Type::kBytes, rows.out_stride);
        }
    }
    for (int row = 0; row < rows.count; row++)
        if (too_large[row / kLanes][row % kLanes]) return row;
    return -1;
}

} // namespace
