// Rows of a matrix, kLanes at a time, through the blocks of a type.
#pragma once

#include "codes.inl"
#include "factor.inl"
#include "feedback.inl"
#include "kernels.h"
#include "types_simple.inl"
#include "types_super.inl"

namespace {

// Writes the bytes of a block whose parameters are chosen, with the level nearest to each weight.
template <class Type>
LI_INLINE void write_nearest(const V* x, const Block& block, int rows, uint8_t* out, int64_t out_stride) {
    uint8_t codes[kLanes][kMaxColumns];
    for (int part = 0; part < Type::kColumns / Type::kPart; part++) {
        const V inverse_scale = inverse(block.scale[part]);
        for (int i = part * Type::kPart; i < (part + 1) * Type::kPart; i++) {
            const V level = Type::Levels::nearest((x[i] - block.offset[part]) * inverse_scale);
            const I code = Type::Levels::code(level);
            for (int lane = 0; lane < kLanes; lane++) codes[lane][i] = uint8_t(code[lane]);
        }
    }
    for (int row = 0; row < rows; row++) Type::pack(block, row, codes[row], out + row * out_stride);
}

int first_lane(I mask, int rows) {
    for (int row = 0; row < rows; row++)
        if (mask[row]) return row;
    return -1;
}

// Returns -1, or the first of the rows that the type cannot hold.
template <class Type>
int quantize_rows(const Rows& rows) {
    constexpr int columns = Type::kColumns;
    I too_large{};
    for (int64_t start = 0; start < rows.columns; start += columns) {
        Source source;
        Block block;
        V x[columns];
        load_rows<columns>(rows.weights + start, rows.columns, rows.count, x);
        for (int i = 0; i < columns; i++) source.x[i] = x[i];
        normalize<columns>(source);
        load_importance<columns>(rows.importance ? rows.importance + start : nullptr, source);
        load_options(rows.options, rows.first_row, rows.first_column + start, rows.count, source);
        if (Type::kFavourLarge) favour_large<columns>(source);
        Type::fit(source, block);
        too_large |= block.too_large;
        write_nearest<Type>(x, block, rows.count, rows.out + start / columns * Type::kBytes, rows.out_stride);
    }
    return first_lane(too_large, rows.count);
}

template <class Type>
constexpr Kernel kernel(int type) {
    return {type, Type::kColumns, Type::kBytes, quantize_rows<Type>, feed_back<Type>};
}

constexpr Kernel kKernels[] = {
    kernel<Q4_0>(2),   kernel<Q4_1>(3),   kernel<Q5_0>(6),    kernel<Q5_1>(7),    kernel<Q8_0>(8),
    kernel<Q2_K>(10),  kernel<Q3_K>(11),  kernel<Q4_K>(12),   kernel<Q5_K>(13),   kernel<Q6_K>(14),
    kernel<IQ4_NL>(20), kernel<IQ4_XS>(23), kernel<MXFP4>(39),
    kernel<GivenScale<Int8, -127>>(kInt8), kernel<GivenScale<E4M3, 0>>(kE4M3),
    kernel<Int4<32>>(kInt4), kernel<Int4<64>>(kInt4 + 32), kernel<Int4<128>>(kInt4 + 96), kernel<Int4<256>>(kInt4 + 224),
};

#if defined(__AVX512F__)
constexpr const char* kName = "avx512";
#elif defined(__AVX2__)
constexpr const char* kName = "avx2";
#else
constexpr const char* kName = "portable";
#endif

constexpr Kernels kTable{kName, kLanes, kKernels, sizeof(kKernels) / sizeof(kKernels[0]),
                         code_errors<Int8>, code_errors<E4M3>, kFactorBlock, kFactorTile, factor_panel, solve_panel, subtract_panel};

} // namespace
