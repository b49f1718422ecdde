// What each instruction set offers; all give the same bits. Types are named by their ids in GGUF files.
#pragma once

#include <cstdint>

namespace li::quantize {

// Beside the types of GGUF files: codes for scales that are given, and int4 in groups of 32, 64, 128 and 256 columns.
enum CodeType : int { kInt8 = 1000, kE4M3 = 1001, kInt4 = 1032 }; // kInt4 + 32, + 96, + 224: the larger groups

enum ScaleType : int { kFloat32 = 0, kBinary16 = 1, kBfloat16 = 2 };

struct CodeOptions {
    int scale_type; // int4: what scales are rounded to
    int symmetric;  // int4: whether all zeros are 0
    // int8 and E4M3: scales [rows / row_block, columns / column_block], rounded up.
    const float* scales;
    int64_t row_block, column_block, stride;
    float scale_at(int64_t row, int64_t column) const { return scales[row / row_block * stride + column / column_block]; }
};

// A few rows of a matrix, at most as many as there are lanes.
struct Rows {
    const float* weights;    // [count, columns], finite
    const float* importance; // [columns], not negative, or null
    int count;
    int64_t columns;
    uint8_t* out;
    int64_t out_stride; // bytes from row to row
    const CodeOptions* options; // null for types of GGUF files
    int64_t first_row, first_column; // of these weights in the matrix that the options are about
};

constexpr int kFeedbackStrips = 8;
constexpr int kCandidates = 16; // scales that are tried for int8 and E4M3, a multiple of any number of lanes

// Rows for feedback.inl, at most kFeedbackStrips times the number of lanes.
struct FeedbackRows {
    const float* weights; // [count, stride], of which `size` columns count; finite
    int64_t stride;
    int count;
    const float* factor; // [size, size], upper triangular
    int64_t size;
    void* scratch; // aligned to 64 bytes, a float for each of `size` columns of as many rows as are possible
    uint8_t* out;
    int64_t out_stride;
    const CodeOptions* options; // null for types of GGUF files
    int64_t first_row, first_column; // of these weights in the matrix that the options are about
};

struct Kernel {
    int type;
    int block_columns, block_bytes;
    // Both return -1, or the first row that the type cannot hold.
    int (*quantize)(const Rows&);
    int (*feed_back)(const FeedbackRows&);
};

struct Kernels {
    const char* name;
    int lanes;
    const Kernel* kernels;
    int count;
    // For kInt8 and kE4M3, see codes.inl.
    void (*int8_errors)(const float* row, int64_t n, const float* importance, const float* scales, float* errors);
    void (*e4m3_errors)(const float* row, int64_t n, const float* importance, const float* scales, float* errors);
    // Steps of Cholesky's algorithm, see factor.inl.
    int factor_block, factor_tile;
    void (*factor_panel)(double* a, int64_t stride, int64_t rows, int columns, double least);
    void (*solve_panel)(double* a, int64_t stride, int64_t first, int64_t last, int columns);
    void (*subtract_panel)(double* rest, const double* panel, int64_t stride, const double* turned, int64_t turned_stride,
                           int columns, int64_t first, int64_t last);
};

// Null where this build has none. Whether the processor has the instructions is the caller's question.
const Kernels* kernels_portable();
const Kernels* kernels_avx2();
const Kernels* kernels_avx512();

} // namespace li::quantize
