// What each instruction set offers; all give the same bits. Types are named by their ids in GGUF files.
#pragma once

#include <cstdint>

namespace li::quantize {

// A few rows of a matrix, at most as many as there are lanes.
struct Rows {
    const float* weights;    // [count, columns], finite
    const float* importance; // [columns], not negative, or null
    int count;
    int64_t columns;
    uint8_t* out;
    int64_t out_stride; // bytes from row to row
};

constexpr int kFeedbackStrips = 8;

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
