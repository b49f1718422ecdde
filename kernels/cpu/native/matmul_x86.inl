// Matrix products for x86 with 256-bit vectors, included once per instruction set inside an anonymous namespace.
//
// The including file defines, for its instruction set:
//   kOffsetWeights             whether signed weights are made unsigned by adding 128 (see `dot`)
//   kManyRegisters                  whether there are 32 vector registers, not 16
//   kOffsetWeights                  whether signed weights are made unsigned by adding 128 (see `sum_offsets`)
//   Scale                           the form in which an integer scale of 8 rows is multiplied, made by
//   lane_scale(bytes, lane)         from byte `lane` of each row's 4 bytes, or by
//   byte_scale(p)                   from 8 signed bytes
//   dot<weight>(w, q, offset)       float(sum over 16 k of w * q) of 8 rows
//   dot_scaled<weight>(w, q, scale) the same with the integer sum times the integer scale
//   tile_tokens(weight), tile_dot, tile_dot_scaled: see matmul_tiles.inl
// A vector of weights holds 4 consecutive k of 8 rows (byte 4 * row + i); w[4] are 16 k, q points at their 16
// activations. Every kernel keeps to the chains of float operations in matmul.h.
//
// Few tokens: weights are unpacked in registers, and several streams of groups are read at a time, because one
// stream does not saturate the memory bus. More tokens: 16 or 32 rows x 256 k are unpacked to a panel that stays in the
// first-level cache while all tokens of a block pass over it.

constexpr int kTileTokens = kManyRegisters ? 8 : 4; // most tokens that share one unpacking of weights in registers
constexpr int kDirectTokens = 12;                   // most tokens for which weights are unpacked in registers
constexpr size_t kTileWeights = 256 << 10;          // bytes of weights that several tiles of tokens read in turn
constexpr int kFloatTokens = 6;       // most tokens in a register tile of float weights
constexpr int kBlockTokens = 72;      // tokens that share one unpacking: whole tiles of 4 and of 6
constexpr int kPanelSubs = 8;         // sub-blocks of 32 k in a panel
constexpr int32_t kPanelColumns = 32 * kPanelSubs; // a multiple of every block size
constexpr size_t kOffsetRoom = 16384; // integer offsets of one block of tokens (64 KiB of stack)

// One block of tokens; pointers are to its first row.
struct Rows {
    int count;
    const float* x;
    const int8_t* q;
    const float *scale, *sum16, *sum32;
    const int32_t* offset; // -128 * (sum of q) per 16 values, where kOffsetWeights
    size_t x_stride, q_stride, scale_stride, sum32_stride, offset_stride;

    Rows from(int token) const {
        Rows rows = *this;
        rows.count -= token;
        if (x)
            rows.x += token * x_stride;
        if (q) {
            rows.q += token * q_stride;
            rows.scale += token * scale_stride;
            rows.sum16 += token * scale_stride;
            rows.sum32 += token * sum32_stride;
        }
        if (offset)
            rows.offset += token * offset_stride;
        return rows;
    }
};

// T tokens side by side, so that a kernel for few tokens finds all that belongs to 32 k at offsets that the compiler
// knows. One token lies so already.
template <int T> struct TileRows {
    const float* x; // [T, cols], `x_stride` apart
    size_t x_stride;
    const int8_t* q = nullptr;       // [cols / 32][T][32]
    const float* scale = nullptr;    // [cols / 32][T][2]
    const float* sum16 = nullptr;    // [cols / 32][T][2]
    const float* sum32 = nullptr;    // [cols / 32][T]
    const int32_t* offset = nullptr; // [cols / 32][T][2], where kOffsetWeights
};

// Room for the tokens of one tile, on the stack.
constexpr size_t kTileBlocks = 512; // of 32 k
struct TileRoom {
    alignas(64) int8_t q[kTileBlocks * kTileTokens][32];
    float scale[kTileBlocks * kTileTokens][2], sum16[kTileBlocks * kTileTokens][2], sum32[kTileBlocks * kTileTokens];
    int32_t offset[kTileBlocks * kTileTokens][2];
};

template <int T> inline TileRows<T> side_by_side(const Rows& rows, int32_t blocks, TileRoom& room) {
    if (T == 1 || !rows.q)
        return {rows.x, rows.x_stride, rows.q, rows.scale, rows.sum16, rows.sum32, rows.offset};
    for (int32_t b = 0; b < blocks; b++)
        for (int t = 0; t < T; t++) {
            const size_t to = static_cast<size_t>(b) * T + t, from = t * rows.scale_stride + 2 * b;
            std::memcpy(room.q[to], rows.q + t * rows.q_stride + 32 * b, 32);
            std::memcpy(room.scale[to], rows.scale + from, 8);
            std::memcpy(room.sum16[to], rows.sum16 + from, 8);
            room.sum32[to] = rows.sum32[t * rows.sum32_stride + b];
            if (rows.offset)
                std::memcpy(room.offset[to], rows.offset + t * rows.offset_stride + 2 * b, 8);
        }
    return {rows.x, rows.x_stride, room.q[0], room.scale[0], room.sum16[0], room.sum32, room.offset[0]};
}

// The offset of token t's group g of 16 activations, for weights that need one; else null.
template <Weight weight>
LI_INLINE const int32_t* offset_at(const Rows& rows, int t, size_t g) {
    return kOffsetWeights && weight == Weight::s8 ? rows.offset + t * rows.offset_stride + g : nullptr;
}
template <Weight weight>
LI_INLINE const int32_t* tile_offset(const int32_t* offset, size_t group) {
    return kOffsetWeights && weight == Weight::s8 ? offset + group : nullptr;
}

// Keeps the compiler from sharing loads (broadcast activations of T tokens) across this point, which costs it more
// registers than there are.
template <int T> LI_INLINE void forget_loads() {
    if constexpr (!kManyRegisters || T > 2)
        asm volatile("" ::: "memory");
}

// ---- unpacking: 32 k of 8 rows to w[8], k ascending

LI_INLINE void unpack_nibbles(const uint8_t (*low)[32], __m256i* w) {
    const __m256i mask = _mm256_set1_epi8(15);
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        const __m256i both = load(low[c]);
        w[c] = _mm256_and_si256(both, mask);
        w[4 + c] = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
    }
}

LI_INLINE void unpack_five(const uint8_t (*low)[32], const uint8_t* high, __m256i* w) {
    const __m256i mask = _mm256_set1_epi8(16), bits = load(high);
    unpack_nibbles(low, w);
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        w[c] = _mm256_or_si256(w[c], _mm256_and_si256(_mm256_slli_epi16(bits, 4 - c), mask));
        w[4 + c] = _mm256_or_si256(w[4 + c], _mm256_and_si256(_mm256_srli_epi16(bits, c), mask));
    }
}

LI_INLINE void unpack_six(const uint8_t (*low)[32], const uint8_t (*high)[32], __m256i* w) {
    const __m256i mask = _mm256_set1_epi8(0x30);
    unpack_nibbles(low, w);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        const __m256i bits = load(high[half]);
        const __m256i shifted[4] = {_mm256_slli_epi16(bits, 4), _mm256_slli_epi16(bits, 2), bits,
                                    _mm256_srli_epi16(bits, 2)};
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++)
            w[4 * half + c] = _mm256_or_si256(w[4 * half + c], _mm256_and_si256(shifted[c], mask));
    }
}

LI_INLINE void unpack_signed(const int8_t (*q)[32], __m256i* w) {
    const __m256i flip = _mm256_set1_epi8(kOffsetWeights ? -128 : 0);
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++)
        w[c] = _mm256_xor_si256(load(q[c]), flip);
}

// ---- formats: how a block is unpacked, and its float factors

// Sub-blocks of 32 k in a block of a matrix: how many share a scale. Known to the compiler but for types of our own.
template <class Format>
LI_INLINE int subs_of(const PackedMatrix& w) {
    if constexpr (Format::kShared)
        return shared_subs(w.type);
    else
        return 1;
}
template <class Format>
LI_INLINE size_t block_bytes(int subs) {
    return sizeof(typename Format::Block) + (subs - 1) * sizeof(typename Format::Sub);
}
// Sub-block `sub` of a block that is declared as having one.
template <class Block>
LI_INLINE const auto& sub_of(const Block& b, int sub) {
    const auto* subs = reinterpret_cast<const char*>(&b) + offsetof(Block, sub);
    return reinterpret_cast<const std::remove_reference_t<decltype(b.sub[0])>*>(subs)[sub];
}

LI_INLINE __m256 load_scale(const uint16_t* d) {
    return load_halves(d);
}
LI_INLINE __m256 load_scale(const float* d) {
    return _mm256_loadu_ps(d);
}

LI_INLINE __m256 signed_scale(const int8_t* p) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load8(p)));
}

// -d * z
LI_INLINE __m256 zero_offset(const int8_t* zero, __m256 d) {
    return _mm256_mul_ps(_mm256_xor_ps(d, _mm256_set1_ps(-0.0f)), signed_scale(zero));
}

struct FormatQ4_0 {
    using Block = PackedQ4_0;
    using Sub = Block;
    static constexpr bool kShared = false;
    static constexpr Weight kWeight = Weight::u4;
    static constexpr bool kMin = true;
    LI_INLINE void unpack(const Block& b, int, __m256i* w) { unpack_nibbles(b.low, w); }
    LI_INLINE __m256 min(const Block&, __m256 d) { return _mm256_mul_ps(d, _mm256_set1_ps(-8.0f)); }
};
struct FormatQ4_1 {
    using Block = PackedQ4_1;
    using Sub = Block;
    static constexpr bool kShared = false;
    static constexpr Weight kWeight = Weight::u4;
    static constexpr bool kMin = true;
    LI_INLINE void unpack(const Block& b, int, __m256i* w) { unpack_nibbles(b.low, w); }
    LI_INLINE __m256 min(const Block& b, __m256) { return load_halves(b.m); }
};
struct FormatQ5_0 {
    using Block = PackedQ5_0;
    using Sub = Block;
    static constexpr bool kShared = false;
    static constexpr Weight kWeight = Weight::u5;
    static constexpr bool kMin = true;
    LI_INLINE void unpack(const Block& b, int, __m256i* w) { unpack_five(b.low, b.high, w); }
    LI_INLINE __m256 min(const Block&, __m256 d) { return _mm256_mul_ps(d, _mm256_set1_ps(-16.0f)); }
};
struct FormatQ5_1 {
    using Block = PackedQ5_1;
    using Sub = Block;
    static constexpr bool kShared = false;
    static constexpr Weight kWeight = Weight::u5;
    static constexpr bool kMin = true;
    LI_INLINE void unpack(const Block& b, int, __m256i* w) { unpack_five(b.low, b.high, w); }
    LI_INLINE __m256 min(const Block& b, __m256) { return load_halves(b.m); }
};
struct FormatQ8_0 {
    using Block = PackedQ8_0;
    using Sub = Block;
    static constexpr bool kShared = false;
    static constexpr Weight kWeight = Weight::s8;
    static constexpr bool kMin = false;
    LI_INLINE void unpack(const Block& b, int, __m256i* w) { unpack_signed(b.q, w); }
    LI_INLINE __m256 min(const Block&, __m256 d) { return d; }
};

struct FormatI8 {
    using Block = PackedI8<1>;
    using Sub = std::remove_extent_t<decltype(Block::sub)>;
    static constexpr bool kShared = true;
    static constexpr Weight kWeight = Weight::s8;
    static constexpr bool kMin = true;
    LI_INLINE void unpack(const Block& b, int sub, __m256i* w) { unpack_signed(sub_of(b, sub).q, w); }
    LI_INLINE __m256 min(const Block& b, __m256 d) { return zero_offset(b.zero, d); }
};
struct FormatI4 {
    using Block = PackedI4<1>;
    using Sub = std::remove_extent_t<decltype(Block::sub)>;
    static constexpr bool kShared = true;
    static constexpr Weight kWeight = Weight::u4;
    static constexpr bool kMin = true;
    LI_INLINE void unpack(const Block& b, int sub, __m256i* w) { unpack_nibbles(sub_of(b, sub).low, w); }
    LI_INLINE __m256 min(const Block& b, __m256 d) { return zero_offset(b.zero, d); }
};

// The 6-bit scales and mins of a Q4_K or Q5_K block: byte 4 * row + j of [0] is sub-block j, of [1] sub-block 4 + j.
struct KScales {
    __m256i scale[2], min[2];

    LI_INLINE KScales decode(const uint8_t (*words)[32]) {
        const __m256i six = _mm256_set1_epi8(63), four = _mm256_set1_epi8(15), top = _mm256_set1_epi8(0x30);
        const __m256i d = load(words[0]), m = load(words[1]), both = load(words[2]);
        KScales out;
        out.scale[0] = _mm256_and_si256(d, six);
        out.min[0] = _mm256_and_si256(m, six);
        out.scale[1] = _mm256_or_si256(_mm256_and_si256(both, four), _mm256_and_si256(_mm256_srli_epi16(d, 2), top));
        out.min[1] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(both, 4), four),
                                     _mm256_and_si256(_mm256_srli_epi16(m, 2), top));
        return out;
    }
    LI_INLINE Scale scale_of(const KScales& k, int j) { return lane_scale(k.scale[j >> 2], j & 3); }
    LI_INLINE __m256 min_of(const KScales& k, int j) {
        return _mm256_cvtepi32_ps(_mm256_shuffle_epi8(k.min[j >> 2], load(kLaneByte[j & 3])));
    }
};

struct FormatQ4_K {
    using Block = PackedQ4_K;
    static constexpr Weight kWeight = Weight::u4;
    LI_INLINE void unpack(const Block& b, int j, __m256i* w) { unpack_nibbles(b.sub[j].low, w); }
};
struct FormatQ5_K {
    using Block = PackedQ5_K;
    static constexpr Weight kWeight = Weight::u5;
    LI_INLINE void unpack(const Block& b, int j, __m256i* w) { unpack_five(b.sub[j].low, b.sub[j].high, w); }
};

// ---- few tokens: G groups that lie apart, weights unpacked in registers; acc[g][t] are 8 rows

// Asks for `Bytes` that come some way behind a block of weights: with several tokens per block, a core asks too seldom by
// itself. Addresses past the end are harmless.
template <size_t Bytes> LI_INLINE void prefetch_ahead(const void* block) {
    constexpr size_t kAhead = 2048;
#pragma GCC unroll 8
    for (size_t i = 0; i < Bytes; i += 64)
        _mm_prefetch(static_cast<const char*>(block) + kAhead + i, _MM_HINT_T0);
}

template <class Format, int G, int T>
LI_INLINE void direct_simple(const uint8_t* const (&data)[G], const PackedMatrix& matrix, const TileRows<T>& rows,
                             __m256 (*acc)[T]) {
    using Block = typename Format::Block;
    constexpr size_t kSubBytes = Format::kShared ? sizeof(typename Format::Sub) : sizeof(Block);
    const int subs = subs_of<Format>(matrix);
    const int32_t blocks = matrix.cols / (32 * subs);
    for (int32_t b = 0; b < blocks; b++) {
        const Block* block[G];
        __m256 d[G], m[G];
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) {
            block[g] = reinterpret_cast<const Block*>(data[g] + b * block_bytes<Format>(subs));
            if constexpr (Format::kShared) {
                d[g] = load_scale(block[g]->d);
                m[g] = Format::min(*block[g], d[g]);
            }
        }
#pragma GCC unroll 1
        for (int s = 0; s < subs; s++) {
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) {
            if constexpr (T > 1)
                prefetch_ahead<kSubBytes>(reinterpret_cast<const char*>(block[g]) + s * kSubBytes);
            __m256i w[8];
            Format::unpack(*block[g], s, w);
            if constexpr (!Format::kShared) {
                d[g] = load_scale(block[g]->d);
                m[g] = Format::min(*block[g], d[g]);
            }
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                const size_t at = (static_cast<size_t>(b) * subs + s) * T + t;
                const int8_t* q = rows.q + 32 * at;
                const float* scale = rows.scale + 2 * at;
                const __m256 low = dot<Format::kWeight>(w, q, tile_offset<Format::kWeight>(rows.offset, 2 * at));
                const __m256 high =
                    dot<Format::kWeight>(w + 4, q + 16, tile_offset<Format::kWeight>(rows.offset, 2 * at + 1));
                const __m256 sum = _mm256_fmadd_ps(high, broadcast(scale + 1), _mm256_mul_ps(low, broadcast(scale)));
                __m256 total = _mm256_fmadd_ps(d[g], sum, acc[g][t]);
                if constexpr (Format::kMin)
                    total = _mm256_fmadd_ps(m[g], broadcast(rows.sum32 + at), total);
                acc[g][t] = total;
            }
            forget_loads<T>();
        }
        }
    }
}

template <class Format, int G, int T>
LI_INLINE void direct_k(const uint8_t* const (&data)[G], int32_t blocks, const TileRows<T>& rows,
                        __m256 (*acc)[T]) {
    using Block = typename Format::Block;
    for (int32_t b = 0; b < blocks; b++) {
        const Block* block[G];
        KScales scales[G];
        __m256 sum[G][T], mins[G][T];
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) {
            block[g] = reinterpret_cast<const Block*>(data[g]) + b;
            scales[g] = KScales::decode(block[g]->scales);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++)
                sum[g][t] = mins[g][t] = _mm256_setzero_ps();
        }
#pragma GCC unroll 1
        for (int j = 0; j < 8; j++) {
#pragma GCC unroll 4
            for (int g = 0; g < G; g++) {
                if constexpr (T > 1)
                    prefetch_ahead<sizeof(Block) / 8>(block[g]->sub + j);
                __m256i w[8];
                Format::unpack(*block[g], j, w);
                const Scale scale = KScales::scale_of(scales[g], j);
                const __m256 min = KScales::min_of(scales[g], j);
#pragma GCC unroll 8
                for (int t = 0; t < T; t++) {
                    const size_t at = (8 * static_cast<size_t>(b) + j) * T + t;
                    const int8_t* q = rows.q + 32 * at;
                    const float* a = rows.scale + 2 * at;
                    __m256 s = _mm256_fmadd_ps(dot_scaled<Format::kWeight>(w, q, scale), broadcast(a), sum[g][t]);
                    sum[g][t] = _mm256_fmadd_ps(dot_scaled<Format::kWeight>(w + 4, q + 16, scale), broadcast(a + 1), s);
                    mins[g][t] = _mm256_fmadd_ps(min, broadcast(rows.sum32 + at), mins[g][t]);
                }
                forget_loads<T>();
            }
        }
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) {
            const __m256 d = load_halves(block[g]->d), m = load_halves(block[g]->m);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++)
                acc[g][t] = _mm256_fnmadd_ps(m, mins[g][t], _mm256_fmadd_ps(d, sum[g][t], acc[g][t]));
        }
    }
}

template <int G, int T>
LI_INLINE void direct_q6_k(const uint8_t* const (&data)[G], int32_t blocks, const TileRows<T>& rows,
                           __m256 (*acc)[T]) {
    for (int32_t b = 0; b < blocks; b++) {
        const PackedQ6_K* block[G];
        __m256 sum[G][T], offset[G][T];
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) {
            block[g] = reinterpret_cast<const PackedQ6_K*>(data[g]) + b;
#pragma GCC unroll 8
            for (int t = 0; t < T; t++)
                sum[g][t] = offset[g][t] = _mm256_setzero_ps();
        }
#pragma GCC unroll 1
        for (int j = 0; j < 8; j++) {
#pragma GCC unroll 4
            for (int g = 0; g < G; g++) {
                if constexpr (T > 1)
                    prefetch_ahead<sizeof(PackedQ6_K) / 8>(block[g]->sub + j);
                __m256i w[8];
                unpack_six(block[g]->sub[j].low, block[g]->sub[j].high, w);
                const int8_t* stored = block[g]->scales[2 * j];
                const __m256 f0 = signed_scale(stored), f1 = signed_scale(stored + 8);
                const Scale s0 = byte_scale(stored), s1 = byte_scale(stored + 8);
#pragma GCC unroll 8
                for (int t = 0; t < T; t++) {
                    const size_t at = (8 * static_cast<size_t>(b) + j) * T + t;
                    const int8_t* q = rows.q + 32 * at;
                    const float *a = rows.scale + 2 * at, *s16 = rows.sum16 + 2 * at;
                    __m256 s = _mm256_fmadd_ps(dot_scaled<Weight::u6>(w, q, s0), broadcast(a), sum[g][t]);
                    sum[g][t] = _mm256_fmadd_ps(dot_scaled<Weight::u6>(w + 4, q + 16, s1), broadcast(a + 1), s);
                    __m256 v = _mm256_fmadd_ps(f0, broadcast(s16), offset[g][t]);
                    offset[g][t] = _mm256_fmadd_ps(f1, broadcast(s16 + 1), v);
                }
                forget_loads<T>();
            }
        }
#pragma GCC unroll 4
        for (int g = 0; g < G; g++) {
            const __m256 d = load_halves(block[g]->d), m = _mm256_mul_ps(d, _mm256_set1_ps(-32.0f));
#pragma GCC unroll 8
            for (int t = 0; t < T; t++)
                acc[g][t] = _mm256_fmadd_ps(m, offset[g][t], _mm256_fmadd_ps(d, sum[g][t], acc[g][t]));
        }
    }
}

// Each format's kernel under one name.
template <class Format>
struct Direct {
    template <int G, int T>
    LI_INLINE void run(const uint8_t* const (&data)[G], const PackedMatrix& w, const TileRows<T>& rows, __m256 (*acc)[T]) {
        direct_simple<Format, G, T>(data, w, rows, acc);
    }
};
template <class Format>
struct DirectK {
    template <int G, int T>
    LI_INLINE void run(const uint8_t* const (&data)[G], const PackedMatrix& w, const TileRows<T>& rows, __m256 (*acc)[T]) {
        direct_k<Format, G, T>(data, w.cols / 256, rows, acc);
    }
};
struct DirectQ6_K {
    template <int G, int T>
    LI_INLINE void run(const uint8_t* const (&data)[G], const PackedMatrix& w, const TileRows<T>& rows, __m256 (*acc)[T]) {
        direct_q6_k<G, T>(data, w.cols / 256, rows, acc);
    }
};

struct Output {
    const PackedMatrix* w;
    float* y; // first token of the block
    size_t y_stride;
    const float* bias;

    Output from(int token) const {
        return {w, y + token * y_stride, y_stride, bias};
    }

    // 8 rows of one token.
    LI_INLINE void store(const Output& out, int group, int token, __m256 acc) {
        const int32_t first = group * kGroupRows, left = out.w->rows - first;
        float* y = out.y + token * out.y_stride + first;
        if (left >= kGroupRows) {
            if (out.bias)
                acc = _mm256_add_ps(acc, _mm256_loadu_ps(out.bias + first));
            _mm256_storeu_ps(y, acc);
            return;
        }
        alignas(32) float values[8];
        _mm256_store_ps(values, acc);
        for (int32_t row = 0; row < left; row++)
            y[row] = out.bias ? values[row] + out.bias[first + row] : values[row];
    }
};

// Groups `group`, `group + step`, ... (G of them) for `Tokens` tokens.
template <class Kernel, int G, int Tokens>
__attribute__((noinline)) void direct_groups(const Output& out, const TileRows<Tokens>& rows, int group, int step) {
    const uint8_t* data[G];
    __m256 acc[G][Tokens];
#pragma GCC unroll 4
    for (int g = 0; g < G; g++) {
        data[g] = out.w->data + static_cast<size_t>(group + g * step) * out.w->group_bytes;
#pragma GCC unroll 8
        for (int t = 0; t < Tokens; t++)
            acc[g][t] = _mm256_setzero_ps();
    }
    Kernel::template run<G, Tokens>(data, *out.w, rows, acc);
#pragma GCC unroll 4
    for (int g = 0; g < G; g++)
#pragma GCC unroll 8
        for (int t = 0; t < Tokens; t++)
            Output::store(out, group + g * step, t, acc[g][t]);
}

// The tokens of one tile. Several groups that lie apart are read at a time.
template <class Kernel, int Tokens>
void direct_tile(const Output& out, const Rows& rows, int begin, int end) {
    constexpr int kStreams = Tokens == 1 ? 4 : 2;
    TileRoom room;
    const TileRows<Tokens> tile = side_by_side<Tokens>(rows, out.w->cols / 32, room);
    const int step = (end - begin) / kStreams;
    for (int i = 0; i < step; i++)
        direct_groups<Kernel, kStreams, Tokens>(out, tile, begin + i, step);
    for (int group = begin + kStreams * step; group < end; group++)
        direct_groups<Kernel, 1, Tokens>(out, tile, group, 0);
}

template <class Kernel, int Tokens = 1>
void direct_tile_of(const Output& out, const Rows& rows, int begin, int end) {
    if constexpr (Tokens < kTileTokens)
        if (rows.count > Tokens)
            return direct_tile_of<Kernel, Tokens + 1>(out, rows, begin, end);
    direct_tile<Kernel, Tokens>(out, rows, begin, end);
}

// Where there are several tiles, weights come from memory once: the next tile finds them in the second-level cache.
template <class Kernel>
void direct_tokens(const Output& out, const Rows& rows, int begin, int end) {
    const int groups = rows.count <= kTileTokens ? end - begin : static_cast<int>(kTileWeights / out.w->group_bytes) + 1;
    for (int first = begin; first < end; first += groups)
        for (int t = 0; t < rows.count; t += kTileTokens)
            direct_tile_of<Kernel>(out.from(t), rows.from(t), first, first + groups < end ? first + groups : end);
}

// ---- many tokens: kPanelRows rows x up to 256 k unpacked to a panel

constexpr int kPanelGroups = 2 * kWideLanes / kGroupRows, kPanelRows = 2 * kWideLanes;
using Step = uint8_t[4 * kPanelRows]; // 4 k of every row

// What a kernel needs besides the weights depends on the type, see `fill`.
struct alignas(64) Panel {
    Step w[kPanelSubs][8];
    alignas(64) uint8_t scale[2 * kPanelSubs][4 * kPanelRows]; // Scale per 32 k (Q4_K, Q5_K) or per 16 k (Q6_K)
    float min[2 * kPanelSubs][kPanelRows]; // mins per 32 k (Q4_K, Q5_K), or float(scale) per 16 k (Q6_K)
    float d[kPanelSubs][kPanelRows], m[kPanelSubs][kPanelRows]; // per block
};

LI_INLINE void store_weights(const __m256i* w, Step* to, int side) {
#pragma GCC unroll 8
    for (int c = 0; c < 8; c++)
        _mm256_store_si256(reinterpret_cast<__m256i*>(to[c] + 32 * side), w[c]);
}

LI_INLINE void store_scale(Scale scale, uint8_t* to, int side) {
    std::memcpy(to + 32 * side, &scale, 32);
}

#include "matmul_tiles.inl"

template <class Format>
struct PanelSimple {
    using Block = typename Format::Block;
    static constexpr Weight kWeight = Format::kWeight;

    LI_INLINE int steps(const PackedMatrix& w) { return subs_of<Format>(w); }
    LI_INLINE size_t bytes(int steps) { return block_bytes<Format>(steps); }
    LI_INLINE void fill(const uint8_t* data, int count, int steps, int side, Panel& panel) {
        for (int s = 0; s < count; s++) {
            const auto& block = *reinterpret_cast<const Block*>(data + s / steps * bytes(steps));
            __m256i w[8];
            Format::unpack(block, s % steps, w);
            store_weights(w, panel.w[s], side);
            const __m256 d = load_scale(block.d);
            _mm256_store_ps(panel.d[s] + 8 * side, d);
            if constexpr (Format::kMin)
                _mm256_store_ps(panel.m[s] + 8 * side, Format::min(block, d));
        }
    }
    template <int T>
    LI_INLINE void tile(const Panel& panel, int subs, const Rows& rows, size_t first, float (*acc)[kPanelRows]) {
        tile_simple<kWeight, Format::kMin, T>(panel, subs, rows, first, acc);
    }
};

template <class Format>
struct PanelK {
    using Block = typename Format::Block;
    static constexpr Weight kWeight = Format::kWeight;

    LI_INLINE int steps(const PackedMatrix&) { return 8; }
    LI_INLINE size_t bytes(int) { return sizeof(Block); }
    LI_INLINE void fill(const uint8_t* data, int, int, int side, Panel& panel) {
        const Block& block = *reinterpret_cast<const Block*>(data);
        const KScales scales = KScales::decode(block.scales);
#pragma GCC unroll 1
        for (int j = 0; j < 8; j++) {
            __m256i w[8];
            Format::unpack(block, j, w);
            store_weights(w, panel.w[j], side);
            store_scale(KScales::scale_of(scales, j), panel.scale[j], side);
            _mm256_store_ps(panel.min[j] + 8 * side, KScales::min_of(scales, j));
        }
        _mm256_store_ps(panel.d[0] + 8 * side, load_halves(block.d));
        _mm256_store_ps(panel.m[0] + 8 * side, load_halves(block.m));
    }
    template <int T>
    LI_INLINE void tile(const Panel& panel, int, const Rows& rows, size_t first, float (*acc)[kPanelRows]) {
        tile_block<kWeight, T, 8, true>(panel, rows, first, rows.sum32 + first, rows.sum32_stride, acc);
    }
};

struct PanelQ6_K {
    using Block = PackedQ6_K;
    static constexpr Weight kWeight = Weight::u6;

    LI_INLINE int steps(const PackedMatrix&) { return 8; }
    LI_INLINE size_t bytes(int) { return sizeof(Block); }
    LI_INLINE void fill(const uint8_t* data, int, int, int side, Panel& panel) {
        const Block& block = *reinterpret_cast<const Block*>(data);
#pragma GCC unroll 1
        for (int j = 0; j < 8; j++) {
            __m256i w[8];
            unpack_six(block.sub[j].low, block.sub[j].high, w);
            store_weights(w, panel.w[j], side);
            for (int g = 2 * j; g < 2 * j + 2; g++) {
                store_scale(byte_scale(block.scales[g]), panel.scale[g], side);
                _mm256_store_ps(panel.min[g] + 8 * side, signed_scale(block.scales[g]));
            }
        }
        const __m256 d = load_halves(block.d);
        _mm256_store_ps(panel.d[0] + 8 * side, d);
        _mm256_store_ps(panel.m[0] + 8 * side, _mm256_mul_ps(d, _mm256_set1_ps(-32.0f)));
    }
    template <int T>
    LI_INLINE void tile(const Panel& panel, int, const Rows& rows, size_t first, float (*acc)[kPanelRows]) {
        tile_block<kWeight, T, 16, false>(panel, rows, first, rows.sum16 + 2 * first, rows.scale_stride, acc);
    }
};

// Tokens [begin, end), T at a time.
template <class Kernel, int T>
__attribute__((noinline)) void run_tile(const Panel& panel, int subs, const Rows& rows, size_t first, int begin, int end,
                                        float (*acc)[kPanelRows]) {
    for (int t = begin; t < end; t += T) {
        const Rows local = rows.from(t); // a copy that no store can change, so that its fields stay in registers
        Kernel::template tile<T>(panel, subs, local, first, acc + t);
    }
}

// Tokens [0, rows.count) over one panel, `first` being its first sub-block of 32 k.
template <class Kernel>
void run_tiles(const Panel& panel, int subs, const Rows& rows, size_t first, float (*acc)[kPanelRows]) {
    constexpr int kMost = tile_tokens(Kernel::kWeight);
    const int whole = rows.count / kMost * kMost, left = rows.count - whole;
    run_tile<Kernel, kMost>(panel, subs, rows, first, 0, whole, acc);
    if (left == 1)
        run_tile<Kernel, 1>(panel, subs, rows, first, whole, rows.count, acc);
    else if (left == 2)
        run_tile<Kernel, 2>(panel, subs, rows, first, whole, rows.count, acc);
    else if (left == 3)
        run_tile<Kernel, 3>(panel, subs, rows, first, whole, rows.count, acc);
    else if constexpr (kMost > 4) {
        if (left == 4)
            run_tile<Kernel, 4>(panel, subs, rows, first, whole, rows.count, acc);
        else if (left == 5)
            run_tile<Kernel, 5>(panel, subs, rows, first, whole, rows.count, acc);
    }
}
static_assert(tile_tokens(Weight::u4) <= 6, "run_tiles has no tiles of 6 tokens or more but the largest");

// Asks for the weights of the next panel to be brought to the second-level cache: while the tokens pass over the
// present one, nothing else would ask. Its groups lie `group_bytes` apart; addresses past the end are harmless.
LI_INLINE void prefetch_panel(const uint8_t* data, size_t bytes, size_t group_bytes) {
#pragma GCC unroll 1
    for (size_t i = 0; i < bytes; i += 64)
        for (int side = 0; side < kPanelGroups; side++)
            _mm_prefetch(reinterpret_cast<const char*>(data) + side * group_bytes + i, _MM_HINT_T1);
}

template <class Kernel>
void panel_tokens(const Output& out, const Rows& rows, int begin, int end) {
    const int32_t subs = out.w->cols / 32;
    const int steps = Kernel::steps(*out.w); // sub-blocks of a block
    const size_t panel_bytes = kPanelSubs / steps * Kernel::bytes(steps);
    Panel panel;
    alignas(64) float acc[kBlockTokens][kPanelRows];
    for (int group = begin; group < end; group += kPanelGroups) {
        const uint8_t* data = out.w->data + static_cast<size_t>(group) * out.w->group_bytes;
        const int sides = end - group < kPanelGroups ? end - group : kPanelGroups; // further ones repeat the last
        std::memset(acc, 0, sizeof acc[0] * rows.count);
        for (int32_t first = 0; first < subs; first += kPanelSubs) {
            const int count = subs - first < kPanelSubs ? subs - first : kPanelSubs;
            const uint8_t* blocks = data + first / steps * Kernel::bytes(steps);
            for (int side = 0; side < kPanelGroups; side++) {
                const int from = side < sides ? side : sides - 1;
                Kernel::fill(blocks + from * out.w->group_bytes, count, steps, side, panel);
            }
            prefetch_panel(blocks + panel_bytes, panel_bytes, out.w->group_bytes);
            run_tiles<Kernel>(panel, count, rows, first, acc);
        }
        for (int t = 0; t < rows.count; t++)
            for (int side = 0; side < sides; side++)
                Output::store(out, group + side, t, _mm256_load_ps(acc[t] + 8 * side));
    }
}

// ---- float weights: one fused multiply-add per weight, in ascending k

struct SourceF32 {
    using Element = float;
    LI_INLINE __m256 read(const float* p) { return _mm256_loadu_ps(p); }
};
struct SourceF16 {
    using Element = uint16_t;
    LI_INLINE __m256 read(const uint16_t* p) { return load_halves(p); }
};
struct SourceBF16 {
    using Element = uint16_t;
    LI_INLINE __m256 read(const uint16_t* p) {
        const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
    }
};

template <class Source>
struct DirectFloat {
    template <int G, int T>
    LI_INLINE void run(const uint8_t* const (&data)[G], const PackedMatrix& w, const TileRows<T>& rows, __m256 (*acc)[T]) {
        multiply<G, T>(data, w.cols, rows, acc);
    }
    template <int G, int T>
    LI_INLINE void multiply(const uint8_t* const (&data)[G], int32_t cols, const TileRows<T>& rows, __m256 (*acc)[T]) {
        for (int32_t k = 0; k < cols; k++) {
            const size_t at = 8 * static_cast<size_t>(k);
            __m256 w[G];
#pragma GCC unroll 4
            for (int g = 0; g < G; g++)
                w[g] = Source::read(reinterpret_cast<const typename Source::Element*>(data[g]) + at);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                const __m256 x = broadcast(rows.x + t * rows.x_stride + k);
#pragma GCC unroll 4
                for (int g = 0; g < G; g++)
                    acc[g][t] = _mm256_fmadd_ps(w[g], x, acc[g][t]);
            }
        }
    }
};

// ---- floats of 8 bits

// Four consecutive k of 8 rows, as a 256th of their value. With Normal, no exponent field is zero.
//
// A byte times 16, as a signed product, is a bfloat16 but for the upper four bits of the exponent. Where the field is
// zero, 2^-15 * (1 + m / 8) comes out instead of 2^-14 * m / 8, which is twice that less 2^-14.
template <bool Normal>
LI_INLINE void read_small_floats(const uint8_t* q, __m256 (&w)[4]) {
    const __m256i bytes = load(q), high = _mm256_set1_epi32(static_cast<int>(0xffff0000));
    const __m256i taken = _mm256_set1_epi16(static_cast<short>(0x87f0)), exponent = _mm256_set1_epi16(0x3800);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        const __m256i wide = _mm256_maddubs_epi16(_mm256_set1_epi16(i ? 16 << 8 : 16), bytes);
        __m256i pair = _mm256_or_si256(_mm256_and_si256(wide, taken), exponent);
        asm("" : "+v"(pair)); // one ternary operation for both halves, not one each
        w[i] = _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16));
        w[2 + i] = _mm256_castsi256_ps(_mm256_and_si256(pair, high));
    }
    if constexpr (!Normal) {
        const __m256 sign = _mm256_set1_ps(-0.0f), limit = _mm256_set1_ps(0x1p-14f), two = _mm256_set1_ps(2.0f);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const __m256 magnitude = _mm256_andnot_ps(sign, w[i]), minus = _mm256_and_ps(sign, w[i]);
            const __m256 small = _mm256_or_ps(_mm256_fmsub_ps(two, magnitude, limit), minus);
            w[i] = _mm256_blendv_ps(w[i], small, _mm256_cmp_ps(magnitude, limit, _CMP_LT_OQ));
        }
    }
}

LI_INLINE const PackedF8<1>& small_float_block(const uint8_t* data, int subs, int32_t index) {
    const size_t bytes = sizeof(PackedF8<1>) + (subs - 1) * sizeof(PackedF8<1>::sub);
    return *reinterpret_cast<const PackedF8<1>*>(data + index * bytes);
}

LI_INLINE __m256 small_float_scale(const PackedF8<1>& block) {
    return _mm256_mul_ps(load_scale(block.d), _mm256_set1_ps(256.0f));
}

struct DirectSmallFloat {
    // sum[g][t] over 32 k.
    template <bool Normal, int G, int T>
    LI_INLINE void sum(const uint8_t* const (&q)[G], const bool (&normal)[G], const float* x, size_t x_stride,
                       __m256 (*sum)[T]) {
#pragma GCC unroll 1
        for (int k = 0; k < 32; k += 4)
#pragma GCC unroll 4
            for (int g = 0; g < G; g++) {
                __m256 w[4];
                if (Normal || normal[g])
                    read_small_floats<true>(q[g] + 8 * k, w);
                else
                    read_small_floats<false>(q[g] + 8 * k, w);
#pragma GCC unroll 8
                for (int t = 0; t < T; t++)
#pragma GCC unroll 4
                    for (int i = 0; i < 4; i++)
                        sum[g][t] = _mm256_fmadd_ps(w[i], broadcast(x + t * x_stride + k + i), sum[g][t]);
            }
    }
    template <int G, int T>
    LI_INLINE void run(const uint8_t* const (&data)[G], const PackedMatrix& w, const TileRows<T>& rows, __m256 (*acc)[T]) {
        const int subs = shared_subs(w.type);
        const size_t bits = normal_bits_at(w.type, w.cols);
        int32_t at = 0; // of 32 k
        for (int32_t b = 0; b < w.cols / (32 * subs); b++)
#pragma GCC unroll 1
            for (int s = 0; s < subs; s++, at++) {
                const uint8_t* q[G];
                bool normal[G], all = true;
                __m256 total[G][T];
#pragma GCC unroll 4
                for (int g = 0; g < G; g++) {
                    q[g] = sub_of(small_float_block(data[g], subs, b), s).q[0];
                    normal[g] = all_normal(data[g] + bits, at);
                    all &= normal[g];
                    if constexpr (T > 1)
                        prefetch_ahead<256>(q[g]);
#pragma GCC unroll 8
                    for (int t = 0; t < T; t++)
                        total[g][t] = _mm256_setzero_ps();
                }
                const float* x = rows.x + 32 * static_cast<size_t>(at);
                if (all)
                    sum<true, G, T>(q, normal, x, rows.x_stride, total);
                else
                    sum<false, G, T>(q, normal, x, rows.x_stride, total);
#pragma GCC unroll 4
                for (int g = 0; g < G; g++) {
                    const __m256 d = small_float_scale(small_float_block(data[g], subs, b));
#pragma GCC unroll 8
                    for (int t = 0; t < T; t++)
                        acc[g][t] = _mm256_fmadd_ps(d, total[g][t], acc[g][t]);
                }
            }
    }
};

// Weights [begin, end) of a group as floats, out[k - begin][8], and their scales per 32 k, which tiles apply.
struct PanelSmallFloat {
    static constexpr bool kScaled = true;
    LI_INLINE void fill(const PackedMatrix& w, int group, int32_t begin, int32_t end, float* out, float (*scale)[8]) {
        const int subs = shared_subs(w.type);
        const uint8_t* data = w.data + group * w.group_bytes;
        for (int32_t s = begin / 32; s < end / 32; s++) {
            const PackedF8<1>& block = small_float_block(data, subs, s / subs);
            _mm256_store_ps(*scale++, small_float_scale(block));
            const bool normal = all_normal(data + normal_bits_at(w.type, w.cols), s);
#pragma GCC unroll 1
            for (int c = 0; c < 8; c++, out += 32) {
                __m256 v[4];
                if (normal)
                    read_small_floats<true>(sub_of(block, s % subs).q[c], v);
                else
                    read_small_floats<false>(sub_of(block, s % subs).q[c], v);
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++)
                    _mm256_store_ps(out + 8 * i, v[i]);
            }
        }
    }
};

// The other types: weights as they are.
struct PanelGeneric {
    static constexpr bool kScaled = false;
    LI_INLINE void fill(const PackedMatrix& w, int group, int32_t begin, int32_t end, float* out, float (*)[8]) {
        common_float_panel(w, group, begin, end, out);
    }
};

// Tiles of 16 rows x up to kFloatTokens tokens over all k; the weights of 16 rows stay in the second-level cache meanwhile.
template <class Source, int G, int Tokens = 1>
void float_tile(const Output& out, const Rows& rows, int group) {
    if constexpr (Tokens < kFloatTokens)
        if (rows.count > Tokens)
            return float_tile<Source, G, Tokens + 1>(out, rows, group);
    direct_groups<DirectFloat<Source>, G, Tokens>(out, {rows.x, rows.x_stride}, group, 1);
}

template <class Source>
void float_tokens(const Output& out, const Rows& rows, int begin, int end) {
    for (int group = begin; group < end; group += 2)
        for (int t = 0; t < rows.count; t += kFloatTokens)
            if (group + 1 < end)
                float_tile<Source, 2>(out.from(t), rows.from(t), group);
            else
                float_tile<Source, 1>(out.from(t), rows.from(t), group);
}

// ---- 16 rows x up to 256 k as floats for all tokens

struct FloatPanel {
    alignas(64) float w[2][8 * kPanelColumns];
    alignas(64) float scale[2][kPanelSubs][8];
};

// With Scaled, sums over 32 k are multiplied with a scale each. Totals stay in memory: registers hold the sums.
template <bool Scaled, int G, int Tokens = 1>
__attribute__((noinline)) void float_panel_tile(const FloatPanel& panel, int32_t count, const Rows& rows, float (*sums)[2][8]) {
    if constexpr (Tokens < kFloatTokens)
        if (rows.count > Tokens)
            return float_panel_tile<Scaled, G, Tokens + 1>(panel, count, rows, sums);
    const int32_t step = Scaled ? 32 : count;
    for (int32_t k = 0; k < count; k += step) {
        const uint8_t* data[G];
        __m256 acc[G][Tokens];
#pragma GCC unroll 2
        for (int g = 0; g < G; g++) {
            data[g] = reinterpret_cast<const uint8_t*>(panel.w[g] + 8 * k);
#pragma GCC unroll 6
            for (int t = 0; t < Tokens; t++)
                acc[g][t] = Scaled ? _mm256_setzero_ps() : _mm256_load_ps(sums[t][g]);
        }
        DirectFloat<SourceF32>::multiply<G, Tokens>(data, step, {rows.x + k, rows.x_stride}, acc);
#pragma GCC unroll 2
        for (int g = 0; g < G; g++) {
            const __m256 d = _mm256_load_ps(panel.scale[g][Scaled ? k / 32 : 0]);
#pragma GCC unroll 6
            for (int t = 0; t < Tokens; t++)
                _mm256_store_ps(sums[t][g], Scaled ? _mm256_fmadd_ps(d, acc[g][t], _mm256_load_ps(sums[t][g])) : acc[g][t]);
        }
        asm volatile("" ::: "memory");
    }
}

template <class Kernel>
void panel_float_tokens(const Output& out, const Rows& rows, int begin, int end) {
    FloatPanel panel;
    alignas(64) float sums[kBlockTokens][2][8];
    for (int group = begin; group < end; group += 2) {
        const int sides = end - group < 2 ? 1 : 2;
        std::memset(sums, 0, sizeof sums[0] * rows.count);
        for (int32_t k = 0; k < out.w->cols; k += kPanelColumns) {
            const int32_t count = out.w->cols - k < kPanelColumns ? out.w->cols - k : kPanelColumns;
            for (int side = 0; side < sides; side++)
                Kernel::fill(*out.w, group + side, k, k + count, panel.w[side], panel.scale[side]);
            for (int t = 0; t < rows.count; t += kFloatTokens) {
                Rows local = rows.from(t);
                local.x += k;
                if (sides == 2)
                    float_panel_tile<Kernel::kScaled, 2>(panel, count, local, sums + t);
                else
                    float_panel_tile<Kernel::kScaled, 1>(panel, count, local, sums + t);
            }
        }
        for (int t = 0; t < rows.count; t++)
            for (int side = 0; side < sides; side++)
                Output::store(out, group + side, t, _mm256_load_ps(sums[t][side]));
    }
}

// ---- the table

using MultiplyRows = void (*)(const Output&, const Rows&, int begin, int end);
struct Kernels {
    MultiplyRows direct, panel;
};

inline Kernels kernels_of(int32_t type) {
    switch (type) {
    case kQ4_0:
        return {direct_tokens<Direct<FormatQ4_0>>, panel_tokens<PanelSimple<FormatQ4_0>>};
    case kQ4_1:
        return {direct_tokens<Direct<FormatQ4_1>>, panel_tokens<PanelSimple<FormatQ4_1>>};
    case kQ5_0:
        return {direct_tokens<Direct<FormatQ5_0>>, panel_tokens<PanelSimple<FormatQ5_0>>};
    case kQ5_1:
        return {direct_tokens<Direct<FormatQ5_1>>, panel_tokens<PanelSimple<FormatQ5_1>>};
    case kQ8_0:
        return {direct_tokens<Direct<FormatQ8_0>>, panel_tokens<PanelSimple<FormatQ8_0>>};
    case kQ4_K:
        return {direct_tokens<DirectK<FormatQ4_K>>, panel_tokens<PanelK<FormatQ4_K>>};
    case kQ5_K:
        return {direct_tokens<DirectK<FormatQ5_K>>, panel_tokens<PanelK<FormatQ5_K>>};
    case kQ6_K:
        return {direct_tokens<DirectQ6_K>, panel_tokens<PanelQ6_K>};
    case kI8_32:
    case kI8_128:
        return {direct_tokens<Direct<FormatI8>>, panel_tokens<PanelSimple<FormatI8>>};
    case kI4_32:
    case kI4_64:
    case kI4_128:
        return {direct_tokens<Direct<FormatI4>>, panel_tokens<PanelSimple<FormatI4>>};
    case kF8_32:
    case kF8_128:
        return {direct_tokens<DirectSmallFloat>, panel_float_tokens<PanelSmallFloat>};
    case kF32:
        return {direct_tokens<DirectFloat<SourceF32>>, float_tokens<SourceF32>};
    case kF16:
        return {direct_tokens<DirectFloat<SourceF16>>, float_tokens<SourceF16>};
    case kBF16:
        return {direct_tokens<DirectFloat<SourceBF16>>, float_tokens<SourceBF16>};
    default:
        return {panel_float_tokens<PanelGeneric>, panel_float_tokens<PanelGeneric>};
    }
}

// -128 times the sum of each 16 activations of each token.
inline void sum_offsets(const Rows& rows, int32_t groups, int32_t* offset) {
    const __m128i ones = _mm_set1_epi8(1), words = _mm_set1_epi16(-128);
    for (int t = 0; t < rows.count; t++)
        for (int32_t g = 0; g < groups; g++) {
            const __m128i q = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows.q + t * rows.q_stride + 16 * g));
            __m128i sum = _mm_madd_epi16(_mm_maddubs_epi16(ones, q), words);
            sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
            sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
            offset[t * static_cast<size_t>(groups) + g] = _mm_cvtsi128_si32(sum);
        }
}

inline void multiply(const PackedMatrix& w, const Activations& a, int tokens, int group_begin, int group_end, float* y,
                     size_t y_stride, const float* bias) {
    const Kernels kernels = kernels_of(w.type);
    const size_t groups16 = static_cast<size_t>(w.cols) / 16;
    const bool offsets = kOffsetWeights && (w.type == kQ8_0 || w.type == kI8_32 || w.type == kI8_128);
    if (offsets && groups16 > kOffsetRoom)
        return matmul_portable()->multiply(w, a, tokens, group_begin, group_end, y, y_stride, bias);
    const bool direct = tokens == 1 || (tokens <= kDirectTokens && static_cast<size_t>(w.cols) <= 32 * kTileBlocks);
    int most = direct ? kDirectTokens : kBlockTokens;
    alignas(32) int32_t offset[kOffsetWeights ? kOffsetRoom : 1];
    if (offsets && most * groups16 > kOffsetRoom)
        most = static_cast<int>(kOffsetRoom / groups16);
    const Rows all = {tokens,         a.x,        a.q,        a.scale,        a.sum16,        a.sum32, nullptr,
                      a.x_stride,     a.q_stride, a.scale_stride, a.sum32_stride, groups16};
    for (int first = 0; first < tokens; first += most) {
        Rows rows = all.from(first);
        if (rows.count > most)
            rows.count = most;
        if (offsets) {
            sum_offsets(rows, static_cast<int32_t>(groups16), offset);
            rows.offset = offset;
        }
        const Output out = {&w, y + first * y_stride, y_stride, bias};
        (direct ? kernels.direct : kernels.panel)(out, rows, group_begin, group_end);
    }
}

// Bit patterns of |x| order as the numbers do, and put NaN last.
LI_INLINE __m256i magnitudes(__m256 x) {
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

// Lane g of the result combines the eight lanes of v[g].
template <class Combine> LI_INLINE __m256i combine_lanes(const __m256i (&v)[8], Combine f) {
    __m256i pairs[4], fours[2];
    for (int i = 0; i < 4; i++)
        pairs[i] = f(_mm256_unpacklo_epi32(v[2 * i], v[2 * i + 1]), _mm256_unpackhi_epi32(v[2 * i], v[2 * i + 1]));
    for (int i = 0; i < 2; i++)
        fours[i] = f(_mm256_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1]),
                     _mm256_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]));
    return f(_mm256_permute2x128_si256(fours[0], fours[1], 0x20), _mm256_permute2x128_si256(fours[0], fours[1], 0x31));
}

// 16 values times `inverse`, rounded; the sums of two lanes each.
LI_INLINE __m256i quantize_values(const float* x, __m256 inverse, int8_t* q) {
    const __m256i low = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
    const __m256i high = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8), inverse));
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), bytes);
    return _mm256_add_epi32(low, high);
}

// One group of 16, whatever is in it.
inline void quantize_group(const float* x, int8_t* q, float* scale, float* sum16) {
    uint32_t lanes[8], largest = 0;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), _mm256_max_epi32(magnitudes(_mm256_loadu_ps(x)), magnitudes(_mm256_loadu_ps(x + 8))));
    for (const uint32_t lane : lanes)
        largest = lane > largest ? lane : largest;
    if (largest < kSmallestMagnitudeBits || largest > kLargestMagnitudeBits) {
        std::memset(q, 0, 16);
        *scale = largest > kLargestMagnitudeBits ? __builtin_nanf("") : 0.0f;
        *sum16 = *scale * 0.0f;
        return;
    }
    float most;
    std::memcpy(&most, &largest, 4);
    int32_t sums[8], sum = 0;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(sums), quantize_values(x, _mm256_set1_ps(127.0f / most), q));
    for (const int32_t lane : sums)
        sum += lane;
    *scale = most / 127.0f;
    *sum16 = *scale * static_cast<float>(sum);
}

// Eight groups of 16 that are neither tiny nor infinite; false, and nothing is written, if one of them is.
LI_INLINE bool quantize_groups(const float* x, int8_t* q, float* scale, float* sum16) {
    __m256i each[8];
    for (int g = 0; g < 8; g++)
        each[g] = _mm256_max_epi32(magnitudes(_mm256_loadu_ps(x + 16 * g)), magnitudes(_mm256_loadu_ps(x + 16 * g + 8)));
    const __m256i largest = combine_lanes(each, [](__m256i a, __m256i b) { return _mm256_max_epi32(a, b); });
    const __m256i tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(kSmallestMagnitudeBits), largest);
    const __m256i huge = _mm256_cmpgt_epi32(largest, _mm256_set1_epi32(kLargestMagnitudeBits));
    if (!_mm256_testz_si256(_mm256_or_si256(tiny, huge), _mm256_set1_epi32(-1)))
        return false;
    const __m256 most = _mm256_castsi256_ps(largest), limit = _mm256_set1_ps(127.0f);
    float inverse[8];
    _mm256_storeu_ps(inverse, _mm256_div_ps(limit, most));
    for (int g = 0; g < 8; g++)
        each[g] = quantize_values(x + 16 * g, _mm256_set1_ps(inverse[g]), q + 16 * g);
    const __m256i sums = combine_lanes(each, [](__m256i a, __m256i b) { return _mm256_add_epi32(a, b); });
    const __m256 scales = _mm256_div_ps(most, limit);
    _mm256_storeu_ps(scale, scales);
    _mm256_storeu_ps(sum16, _mm256_mul_ps(scales, _mm256_cvtepi32_ps(sums)));
    return true;
}

inline void quantize_row(const float* x, int32_t cols, int8_t* q, float* scale, float* sum16, float* sum32) {
    const int32_t groups = cols / 16;
    for (int32_t g = 0; g < groups;) {
        const int32_t end = g + 8;
        if (end <= groups && quantize_groups(x + 16 * g, q + 16 * g, scale + g, sum16 + g))
            g = end;
        for (; g < end && g < groups; g++)
            quantize_group(x + 16 * g, q + 16 * g, scale + g, sum16 + g);
    }
    for (int32_t b = 0; b < groups / 2; b++)
        sum32[b] = sum16[2 * b] + sum16[2 * b + 1];
}
