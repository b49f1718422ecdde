// Row-wise operations and attention. One table per instruction set; the same source (vector.inl, attention.inl) is
// compiled for each, on the lanes of simd.h, so every table gives the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

namespace li {

enum Activation : int32_t { kSilu = 0, kGelu = 1, kGeluTanh = 2 };
enum KvType : int32_t { kKvF16 = 0, kKvBf16 = 1, kKvInt8 = 2 };

// Positions are attended to in chunks that begin at multiples of this, whatever the step or the thread count: within a
// chunk one softmax partial is computed, and partials are merged in ascending order.
constexpr int kChunk = 256;

// The cache of one layer. Blocks lie in spans of kChunk positions: a span holds [layer][K, V][kv head][block of the span].
// So the blocks of one head are one long run of memory, as far as they follow each other, and a short conversation
// touches the pages of the first spans only.
//
// A block holds `block_size` positions (a multiple of 8 that divides kChunk) of one head:
//   K  [position / 8][d][8]   so that eight keys fill one register and each dot product is one chain over d
//   V  [position][head_dim rounded up to 8]
// In int8, one float scale per position follows the values.
struct KvLayout {
    int32_t type_k, type_v;
    int32_t block_size, n_kv_heads, head_dim;
    int32_t block_shift, span_shift;     // positions in a block and blocks in a span, as powers of two
    size_t span_bytes;                   // from span to span, all layers
    uint8_t *k, *v;                      // this layer in the first span
    size_t block_bytes_k, block_bytes_v; // from block to block, scales included
    size_t scales_k, scales_v;           // offset of the scales within a block (int8 only)

    uint8_t* k_block(int32_t head, int32_t block) const { return at(k, head, block, block_bytes_k); }
    uint8_t* v_block(int32_t head, int32_t block) const { return at(v, head, block, block_bytes_v); }

private:
    // No divisions: attention comes here for every eight keys.
    uint8_t* at(uint8_t* base, int32_t head, int32_t block, size_t bytes) const {
        size_t in_span = (size_t(head) << span_shift) + (size_t(block) & ((size_t(1) << span_shift) - 1));
        return base + (size_t(block) >> span_shift) * span_bytes + in_span * bytes;
    }
};

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

struct VectorKernels {
    // out = x / sqrt(mean(x²) + eps) * weight, for each run of `group` values; `weight` has `group` values.
    void (*rms_norm)(const float* x, const float* weight, int width, int group, float eps, float* out);
    void (*add)(const float* a, const float* b, int width, float* out);
    void (*scale)(const float* x, float factor, int width, float* out);
    void (*softcap)(const float* x, float cap, int width, float* out);
    void (*glu)(const float* gate, const float* up, int activation, int width, float* out);
    // Rotates `heads` heads of `head_dim`; cosine and sine hold `pairs` values. adjacent: (2i, 2i+1), else (i, i+pairs).
    void (*rope)(const float* x, const float* cosine, const float* sine, int heads, int head_dim, int pairs,
                 int adjacent, float* out);
    // Stores one position's k and v of one kv head.
    void (*kv_store)(const KvLayout& kv, int32_t block, int32_t slot, int32_t kv_head, const float* k, const float* v);
    // One chunk's softmax partial for every row of a tile: maximum [rows], sum [rows], out [rows, head_dim rounded up
    // to 8].
    // A row that sees nothing in the chunk gets maximum = -inf. `scratch` holds rows * kChunk floats.
    void (*attend_chunk)(const AttentionTile& tile, int32_t chunk, float* maximum, float* sum, float* out,
                         float* scratch);
    // Merges a chunk's partial into a row's running (maximum, sum, out).
    void (*merge)(float chunk_maximum, float chunk_sum, const float* chunk_out, int head_dim, float* maximum,
                  float* sum, float* out);
};

const VectorKernels* vector_portable();
const VectorKernels* vector_avx2();

} // namespace li
