// Row-wise operations and attention. One table per instruction set; the same source (vector.inl, attention.inl) is
// compiled for each, on the lanes of simd.h, so every table gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kv_layout.h"

namespace li {

enum Activation : int32_t { kSilu = 0, kGelu = 1, kGeluTanh = 2 };
// Bounds the rows of an attention tile, and so heads / kv heads.
constexpr int kMaxTileRows = 64;

// The rows of one attention tile: queries that share a kv head.
struct AttentionTile {
    const KvLayout* kv;
    const int32_t* blocks; // block table of the sequence
    int32_t kv_head;
    int32_t rows;
    const float* const* q;       // [rows] -> [head_dim]
    const int32_t* first;        // [rows] first visible position
    const int32_t* last;         // [rows] last visible position
    float scale, softcap;        // softcap 0: none
    int32_t next_chunk;          // the chunk of this head that the same thread will see next, -1: none
};

// Floats per row of a tile that attend_chunk needs: scores, and as int16 the probabilities and the query (int8 caches).
inline size_t attention_scratch(int head_dim) { return kChunk + (kChunk + size_t(padded_dim(head_dim))) / 2; }

// Some rows of one text, for one head, of an encoder: each sees the whole text.
struct TextTile {
    const float *k, *v;      // the head's columns of the text's first row ...
    size_t stride;           // ... and floats from row to row
    int32_t length;          // of the text
    int32_t rows, head_dim;  // head_dim: a multiple of 8
    const float* const* q;   // [rows] -> [head_dim]
    float scale;
};

// Floats that attend_text needs beside kChunk per row of a tile: a chunk's keys.
inline size_t text_scratch(int head_dim) { return size_t(kChunk) * size_t(head_dim); }

// What is summed up of the rows of a matrix product's input, which has `cols` columns. Every sum is one chain over the
// rows in their order, whatever the threads, the instruction set, or how the rows are cut into steps.
//   squares  [cols] sum of squares, in double
//   gram     null, or for each run of `block` columns (the last may be shorter) the products of every two of its
//            columns, [run, run] one matrix behind the other; filled where row <= column, and in part below
struct InputSums {
    double* squares;
    float* gram;
    int32_t cols, block;
};

struct VectorKernels {
    // out = x / sqrt(mean(x²) + eps) * weight, for each run of `group` values; `weight` has `group` values.
    void (*rms_norm)(const float* x, const float* weight, int width, int group, float eps, float* out);
    // out = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias; `bias` may be null.
    void (*layer_norm)(const float* x, const float* weight, const float* bias, int width, float eps, float* out);
    void (*add)(const float* a, const float* b, int width, float* out);
    void (*scale)(const float* x, float factor, int width, float* out);
    void (*softcap)(const float* x, float cap, int width, float* out);
    void (*activate)(const float* x, int activation, int width, float* out);
    void (*glu)(const float* gate, const float* up, int activation, int width, float* out);
    // Rotates `heads` heads of `head_dim`; cosine and sine hold `pairs` values. adjacent: (2i, 2i+1), else (i, i+pairs).
    void (*rope)(const float* x, const float* cosine, const float* sine, int heads, int head_dim, int pairs,
                 int adjacent, float* out);
    // Stores one position's k and v of one kv head.
    void (*kv_store)(const KvLayout& kv, int32_t block, int32_t slot, int32_t kv_head, const float* k, const float* v);
    // One chunk's softmax partial for every row of a tile: maximum [rows], sum [rows], out [rows, head_dim rounded up
    // to 8].
    // A row that sees nothing in the chunk gets maximum = -inf. `scratch` holds rows * attention_scratch floats.
    void (*attend_chunk)(const AttentionTile& tile, int32_t chunk, float* maximum, float* sum, float* out,
                         float* scratch);
    // The same for a text without a cache; `scratch` holds rows * kChunk + text_scratch floats.
    void (*attend_text)(const TextTile& tile, int32_t chunk, float* maximum, float* sum, float* out, float* scratch);
    // Merges a chunk's partial into a row's running (maximum, sum, out).
    void (*merge)(float chunk_maximum, float chunk_sum, const float* chunk_out, int head_dim, float* maximum,
                  float* sum, float* out);
    // Statistics of calibration (statistics.inl): this thread's share of what `rows` rows add to the sums.
    void (*add_statistics)(const InputSums& sums, const float* x, int rows, int thread, int threads);
};

const VectorKernels* vector_portable();
const VectorKernels* vector_avx2();
const VectorKernels* vector_avx512vnni();

} // namespace li
