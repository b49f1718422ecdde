// How the cache of keys and values lies in memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace li {

enum KvType : int32_t { kKvF16 = 0, kKvBf16 = 1, kKvInt8 = 2 };

// Positions are attended to in chunks that begin at multiples of this, whatever the step or the thread count: within a
// chunk one softmax partial is computed, and partials are merged in ascending order.
constexpr int kChunk = 256;

inline int element_bytes(int32_t type) { return type == kKvInt8 ? 1 : 2; }

// Columns that kernels see of a head: whole registers of eight floats.
inline int padded_dim(int head_dim) { return (head_dim + 7) / 8 * 8; }

// The cache of one layer. Blocks lie in spans of kChunk positions: a span holds [layer][K, V][kv head][block of the span].
// So the blocks of one head are one long run of memory, as far as they follow each other, and a short conversation
// touches the pages of the first spans only.
//
// A block holds `block_size` positions (a multiple of 8 that divides kChunk) of one head, in f16 and bf16 as
//   K  [position / 8][d][8]      so that eight keys fill one register and each dot product is one chain over d
//   V  [position][d]             d rounded up to 8
// and in int8, whose products are taken four at a time in each lane of a register, as
//   K  [position / 8][d / 4][8][4]
//   V  [position / 4][d][4]      d rounded up to 8 in both
// followed by one float scale per position. Copying a block copies all that belongs to it.
struct KvLayout {
    int32_t type_k, type_v;
    int32_t block_size, n_kv_heads, head_dim;
    int32_t block_shift, span_shift;     // positions in a block and blocks in a span, as powers of two
    size_t row_bytes_k, row_bytes_v;     // of one position; eight from a multiple of eight on are one run
    size_t scales_k, scales_v;           // offset of the scales within a block (int8 only)
    size_t block_bytes_k, block_bytes_v; // from block to block, scales included
    size_t span_bytes;                   // from span to span, all layers
    uint8_t *k, *v;                      // this layer in the first span

    // All but span_bytes, k and v.
    KvLayout(int32_t type_k, int32_t type_v, int32_t block_size, int32_t n_kv_heads, int32_t head_dim)
        : type_k(type_k), type_v(type_v), block_size(block_size), n_kv_heads(n_kv_heads), head_dim(head_dim),
          block_shift(0), span_shift(0), span_bytes(0), k(nullptr), v(nullptr) {
        while (1 << block_shift < block_size) block_shift++;
        while (block_size << span_shift < kChunk) span_shift++;
        const size_t positions = size_t(block_size);
        row_bytes_k = size_t(type_k == kKvInt8 ? padded_dim(head_dim) : head_dim) * size_t(element_bytes(type_k));
        row_bytes_v = size_t(padded_dim(head_dim)) * size_t(element_bytes(type_v));
        scales_k = positions * row_bytes_k;
        scales_v = positions * row_bytes_v;
        block_bytes_k = scales_k + (type_k == kKvInt8 ? positions * sizeof(float) : 0);
        block_bytes_v = scales_v + (type_v == kKvInt8 ? positions * sizeof(float) : 0);
    }

    size_t blocks_per_span() const { return size_t(1) << span_shift; }

    uint8_t* k_block(int32_t head, int32_t block) const { return at(k, head, block, block_bytes_k); }
    uint8_t* v_block(int32_t head, int32_t block) const { return at(v, head, block, block_bytes_v); }

private:
    // No divisions: attention comes here for every eight keys.
    uint8_t* at(uint8_t* base, int32_t head, int32_t block, size_t bytes) const {
        size_t in_span = (size_t(head) << span_shift) + (size_t(block) & (blocks_per_span() - 1));
        return base + (size_t(block) >> span_shift) * span_bytes + in_span * bytes;
    }
};

} // namespace li
