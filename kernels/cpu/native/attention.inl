// Paged flash attention (Dao et al. 2022, arXiv:2205.14135; Kwon et al. 2023, arXiv:2309.06180) on F8 lanes.
//
// The order of every sum is fixed by absolute positions, never by the tile, the step or the threads:
//   score   one fma chain over d per (query, key)
//   sum     lane i adds the keys with position % 8 == i, ascending, within a chunk; then sum()'s fixed tree
//   output  one fma chain over the chunk's positions, ascending, per element
// The cache is read once per step and rarely in an order that the hardware foresees: scores are computed while the
// chunk's values are fetched, and values are summed while the next chunk's keys are (into the second-level
// cache: fetching into the first stalls on its few miss buffers).
//
// Positions that a row may not see get probability exactly 0, and fma(0, v, acc) == acc.

// Kernels with many accumulators: inlined into larger functions, GCC spills them.
#define LI_NOINLINE __attribute__((noinline))

namespace {

using li::AttentionTile;
using li::KvLayout;
using li::kChunk;

template <int Type> inline F8 load_lanes(const uint8_t* p, size_t index) {
    if constexpr (Type == li::kKvF16) return F8::load_f16((const uint16_t*)p + index);
    if constexpr (Type == li::kKvBf16) return F8::load_bf16((const uint16_t*)p + index);
    if constexpr (Type == li::kKvInt8) return F8::load_i8((const int8_t*)p + index);
}

inline void fetch(const uint8_t* p) { __builtin_prefetch(p, 0, 2); }

inline size_t element_bytes(int type) { return type == li::kKvInt8 ? 1 : 2; }
inline int padded_dim(int head_dim) { return (head_dim + 7) / 8 * 8; }

// One value in the cache's type. `inverse_scale` is for int8, unused otherwise.
inline void store_element(uint8_t* p, size_t index, int type, float x, float inverse_scale) {
    if (type == li::kKvF16) // clamped: an infinity times a probability of 0 would be NaN
        ((uint16_t*)p)[index] = float_to_f16(x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x);
    else if (type == li::kKvBf16)
        ((uint16_t*)p)[index] = float_to_bf16(x);
    else
        ((int8_t*)p)[index] = inverse_scale > 0.0f ? int8_t(std::nearbyint(x * inverse_scale)) : int8_t(0);
}

// One head's vector in int8: scale = max|x| / 127, value = round(x * (127 / max|x|)), ties to even. Zero where max is so
// small that the factor could overflow; a NaN for scale, so that it shows, where x is not finite.
struct Int8Scale {
    float scale, inverse;
    Int8Scale(const float* x, int n) : scale(0.0f), inverse(0.0f) {
        float top = 0.0f;
        bool finite = true;
        for (int i = 0; i < n; i++) {
            float magnitude = std::fabs(x[i]);
            finite = finite && magnitude < INFINITY;
            top = magnitude > top ? magnitude : top;
        }
        if (!finite)
            scale = NAN;
        else if (top >= 0x1p-119f)
            scale = top / 127.0f, inverse = 127.0f / top;
    }
};

void kv_store(const KvLayout& kv, int32_t block, int32_t slot, int32_t kv_head, const float* k, const float* v) {
    const int d = kv.head_dim, dv = padded_dim(d);
    uint8_t* k_block = kv.k_block(kv_head, block);
    uint8_t* v_block = kv.v_block(kv_head, block);
    float inverse_k = 0.0f, inverse_v = 0.0f;
    if (kv.type_k == li::kKvInt8) {
        Int8Scale s(k, d);
        ((float*)(k_block + kv.scales_k))[slot] = s.scale;
        inverse_k = s.inverse;
    }
    if (kv.type_v == li::kKvInt8) {
        Int8Scale s(v, d);
        ((float*)(v_block + kv.scales_v))[slot] = s.scale;
        inverse_v = s.inverse;
    }
    size_t k_base = size_t(slot / 8) * d * 8 + slot % 8;
    for (int i = 0; i < d; i++) store_element(k_block, k_base + size_t(i) * 8, kv.type_k, k[i], inverse_k);
    size_t v_base = size_t(slot) * dv;
    for (int i = 0; i < d; i++) store_element(v_block, v_base + i, kv.type_v, v[i], inverse_v);
    for (int i = d; i < dv; i++) store_element(v_block, v_base + i, kv.type_v, 0.0f, 0.0f);
}

// acc[r][c] += row_value(r) * column_vector(c): an outer product step. The side with fewer elements is held in registers and
// the other passes by, so that 12 accumulators and their operands fit sixteen registers.
template <int Rows, int Columns, class RowValue, class ColumnVector>
inline void outer_step(F8 (&acc)[Rows][Columns], RowValue row_value, ColumnVector column_vector) {
    if constexpr (Rows < Columns) {
        F8 x[Rows];
        for (int r = 0; r < Rows; r++) x[r] = row_value(r);
        for (int c = 0; c < Columns; c++) {
            F8 y = column_vector(c);
            for (int r = 0; r < Rows; r++) acc[r][c] = fma(y, x[r], acc[r][c]);
        }
    } else {
        F8 y[Columns];
        for (int c = 0; c < Columns; c++) y[c] = column_vector(c);
        for (int r = 0; r < Rows; r++) {
            F8 x = row_value(r);
            for (int c = 0; c < Columns; c++) acc[r][c] = fma(y[c], x, acc[r][c]);
        }
    }
}

// Scores of `Rows` queries against `Octets` groups of eight keys; octet o begins at k[o]. Meanwhile 8 * d elements of
// `bytes_ahead` bytes each are fetched from ahead[o].
template <int Type, int Rows, int Octets>
LI_NOINLINE void score_octets(const uint8_t* const* k, const float* const* q, int d, const uint8_t* const* ahead,
                              int bytes_ahead, float* const* out) {
    F8 acc[Rows][Octets];
    for (int r = 0; r < Rows; r++)
        for (int o = 0; o < Octets; o++) acc[r][o] = F8::zero();
    const int steps_per_line = 8 / bytes_ahead;
    for (int i = 0; i < d; i++) {
        if (i % steps_per_line == 0)
            for (int o = 0; o < Octets; o++) fetch(ahead[o] + i * 8 * bytes_ahead);
        outer_step<Rows, Octets>(
            acc, [&](int r) { return F8::all(q[r][i]); }, [&](int o) { return load_lanes<Type>(k[o], size_t(i) * 8); });
    }
    for (int r = 0; r < Rows; r++)
        for (int o = 0; o < Octets; o++) acc[r][o].store(out[r] + 8 * o);
}

// Columns [column, column + 8 * Wide) of `Rows` rows of the output, over positions [begin, end) of a chunk. Meanwhile as
// many elements of `bytes_ahead` bytes are fetched from ahead[position].
template <int Type, int Rows, int Wide>
LI_NOINLINE void weigh_values(const uint8_t* const* v, const float* const* p, int begin, int end, int column,
                              const uint8_t* const* ahead, int bytes_ahead, float* const* out) {
    F8 acc[Rows][Wide];
    for (int r = 0; r < Rows; r++)
        for (int w = 0; w < Wide; w++) acc[r][w] = F8::zero();
    for (int j = begin; j < end; j++) {
        fetch(ahead[j] + column * bytes_ahead);
        outer_step<Rows, Wide>(
            acc, [&](int r) { return F8::all(p[r][j]); },
            [&](int w) { return load_lanes<Type>(v[j], size_t(column) + 8 * size_t(w)); });
    }
    for (int r = 0; r < Rows; r++)
        for (int w = 0; w < Wide; w++) acc[r][w].store(out[r] + column + 8 * w);
}

// Calls f(std::integral_constant<int, n>) for n = count in 1 … 6.
template <class Function> inline void with_rows(int count, Function f) {
    switch (count) {
    case 1: f(std::integral_constant<int, 1>{}); break;
    case 2: f(std::integral_constant<int, 2>{}); break;
    case 3: f(std::integral_constant<int, 3>{}); break;
    case 4: f(std::integral_constant<int, 4>{}); break;
    case 5: f(std::integral_constant<int, 5>{}); break;
    default: f(std::integral_constant<int, 6>{});
    }
}

constexpr int kRowsAtOnce = 6;

// Where a position lies: eight keys of a head from a multiple of eight on, or one value.
inline const uint8_t* key_at(const KvLayout& kv, const int32_t* blocks, int head, int position) {
    size_t slot = size_t(position) & size_t(kv.block_size - 1);
    return kv.k_block(head, blocks[position >> kv.block_shift]) + slot * size_t(kv.head_dim) * element_bytes(kv.type_k);
}
inline const uint8_t* value_at(const KvLayout& kv, const int32_t* blocks, int head, int position) {
    size_t slot = size_t(position) & size_t(kv.block_size - 1);
    return kv.v_block(head, blocks[position >> kv.block_shift]) +
           slot * size_t(padded_dim(kv.head_dim)) * element_bytes(kv.type_v);
}

template <int Type> void chunk_scores(const AttentionTile& t, int begin, int end, int chunk_start, float* scores) {
    const KvLayout& kv = *t.kv;
    const int d = kv.head_dim, value_bytes = int(element_bytes(kv.type_v));
    auto octet = [&](int position) { return key_at(kv, t.blocks, t.kv_head, position); };
    auto values = [&](int position) { return value_at(kv, t.blocks, t.kv_head, position); };
    for (int r0 = 0; r0 < t.rows; r0 += kRowsAtOnce) {
        int n = t.rows - r0 < kRowsAtOnce ? t.rows - r0 : kRowsAtOnce;
        with_rows(n, [&](auto rows) {
            constexpr int kRows = decltype(rows)::value, kOctets = kRows <= 3 ? 4 : 2;
            float* out[kRows];
            int position = begin;
            for (; position + 8 * kOctets <= end; position += 8 * kOctets) {
                const uint8_t *k[kOctets], *ahead[kOctets];
                for (int o = 0; o < kOctets; o++) {
                    k[o] = octet(position + 8 * o);
                    ahead[o] = r0 == 0 ? values(position + 8 * o) : k[o];
                }
                for (int r = 0; r < kRows; r++) out[r] = scores + size_t(r0 + r) * kChunk + (position - chunk_start);
                score_octets<Type, kRows, kOctets>(k, t.q + r0, d, ahead, value_bytes, out);
            }
            for (; position < end; position += 8) {
                const uint8_t *k[1] = {octet(position)}, *ahead[1] = {r0 == 0 ? values(position) : k[0]};
                for (int r = 0; r < kRows; r++) out[r] = scores + size_t(r0 + r) * kChunk + (position - chunk_start);
                score_octets<Type, kRows, 1>(k, t.q + r0, d, ahead, value_bytes, out);
            }
        });
    }
}

template <int Type>
void chunk_values(const AttentionTile& t, int begin, int end, int chunk_start, const float* probabilities, float* out) {
    const KvLayout& kv = *t.kv;
    const int dv = padded_dim(kv.head_dim), key_bytes = int(element_bytes(kv.type_k));
    const size_t value_stride = size_t(dv) * element_bytes(Type), key_stride = size_t(kv.head_dim) * size_t(key_bytes);
    int last = 0; // the block table ends with it
    for (int r = 0; r < t.rows; r++) last = t.last[r] > last ? t.last[r] : last;
    // Eight positions never straddle blocks, here or in the next chunk.
    const uint8_t *v[kChunk], *next_keys[kChunk];
    for (int position = begin; position < end; position += 8) {
        int j = position - chunk_start, ahead = t.next_chunk * kChunk + j;
        const uint8_t* value = value_at(kv, t.blocks, t.kv_head, position);
        bool fetch_keys = t.next_chunk >= 0 && ahead <= last;
        const uint8_t* key = fetch_keys ? key_at(kv, t.blocks, t.kv_head, ahead) : value;
        const size_t step = fetch_keys ? key_stride : value_stride;
        for (int i = 0; i < 8; i++) {
            v[j + i] = value + size_t(i) * value_stride;
            next_keys[j + i] = key + size_t(i) * step;
        }
    }
    for (int r0 = 0; r0 < t.rows; r0 += kRowsAtOnce) {
        const uint8_t* const* ahead = r0 == 0 ? next_keys : v;
        int n = t.rows - r0 < kRowsAtOnce ? t.rows - r0 : kRowsAtOnce;
        with_rows(n, [&](auto rows) {
            constexpr int kRows = decltype(rows)::value, kWide = kRows <= 3 ? 4 : 2;
            const float* p[kRows];
            float* o[kRows];
            for (int r = 0; r < kRows; r++) {
                p[r] = probabilities + size_t(r0 + r) * kChunk;
                o[r] = out + size_t(r0 + r) * dv;
            }
            int column = 0;
            for (; column + 8 * kWide <= dv; column += 8 * kWide)
                weigh_values<Type, kRows, kWide>(v, p, begin - chunk_start, end - chunk_start, column, ahead,
                                                 key_bytes, o);
            for (; column < dv; column += 8)
                weigh_values<Type, kRows, 1>(v, p, begin - chunk_start, end - chunk_start, column, ahead,
                                                 key_bytes, o);
        });
    }
}

// Multiplies a row's values, lane by lane, by the int8 scales of the positions they belong to.
inline void apply_scales(const KvLayout& kv, const int32_t* blocks, int kv_head, bool keys, int begin, int end,
                         int chunk_start, float* row) {
    for (int position = begin; position < end; position += 8) {
        int32_t block = blocks[position >> kv.block_shift];
        const uint8_t* base = keys ? kv.k_block(kv_head, block) + kv.scales_k : kv.v_block(kv_head, block) + kv.scales_v;
        const float* scales = (const float*)base + (position & (kv.block_size - 1));
        float* p = row + (position - chunk_start);
        (F8::load(p) * F8::load(scales)).store(p);
    }
}

void attend_chunk(const AttentionTile& t, int32_t chunk, float* maximum, float* total, float* out, float* scratch) {
    const KvLayout& kv = *t.kv;
    const int chunk_start = chunk * kChunk;
    int first = chunk_start + kChunk, last = chunk_start - 1;
    for (int r = 0; r < t.rows; r++) {
        first = t.first[r] < first ? t.first[r] : first;
        last = t.last[r] > last ? t.last[r] : last;
    }
    // Whole octets, so that every vector access stays inside its block.
    int begin = (first > chunk_start ? first : chunk_start) / 8 * 8;
    int end = (last < chunk_start + kChunk - 1 ? last : chunk_start + kChunk - 1) / 8 * 8 + 8;

    if (kv.type_k == li::kKvF16) chunk_scores<li::kKvF16>(t, begin, end, chunk_start, scratch);
    else if (kv.type_k == li::kKvBf16) chunk_scores<li::kKvBf16>(t, begin, end, chunk_start, scratch);
    else chunk_scores<li::kKvInt8>(t, begin, end, chunk_start, scratch);

    const float kNever = -INFINITY;
    for (int r = 0; r < t.rows; r++) {
        float* row = scratch + size_t(r) * kChunk;
        if (kv.type_k == li::kKvInt8) apply_scales(kv, t.blocks, t.kv_head, true, begin, end, chunk_start, row);
        F8 factor = F8::all(t.scale), top = F8::all(kNever);
        for (int position = begin; position < end; position += 8) {
            float* p = row + (position - chunk_start);
            F8 s = F8::load(p) * factor;
            if (t.softcap > 0.0f) s = capped(s, F8::all(t.softcap));
            if (position < t.first[r] || position + 7 > t.last[r]) {
                float lanes[8];
                s.store(lanes);
                for (int i = 0; i < 8; i++)
                    if (position + i < t.first[r] || position + i > t.last[r]) lanes[i] = kNever;
                s = F8::load(lanes);
            }
            s.store(p);
            top = max(top, s);
        }
        float m = largest(top);
        maximum[r] = m;
        F8 l = F8::zero();
        for (int position = begin; position < end; position += 8) {
            float* p = row + (position - chunk_start);
            F8 e = m == kNever ? F8::zero() : exponential(F8::load(p) - F8::all(m));
            l = l + e;
            e.store(p);
        }
        total[r] = sum(l);
        if (kv.type_v == li::kKvInt8) apply_scales(kv, t.blocks, t.kv_head, false, begin, end, chunk_start, row);
    }

    // Beyond the last visible position the cache may hold anything, even NaN: 0 * NaN must not happen.
    int seen = last + 1 < end ? last + 1 : end;
    if (kv.type_v == li::kKvF16) chunk_values<li::kKvF16>(t, begin, seen, chunk_start, scratch, out);
    else if (kv.type_v == li::kKvBf16) chunk_values<li::kKvBf16>(t, begin, seen, chunk_start, scratch, out);
    else chunk_values<li::kKvInt8>(t, begin, seen, chunk_start, scratch, out);
}

void merge(float chunk_maximum, float chunk_sum, const float* chunk_out, int head_dim, float* maximum, float* total,
           float* out) {
    if (chunk_maximum == -INFINITY) return;
    float m = *maximum > chunk_maximum ? *maximum : chunk_maximum;
    float weights[8] = {*maximum - m, chunk_maximum - m, 0, 0, 0, 0, 0, 0};
    exponential(F8::load(weights)).store(weights);
    F8 old_weight = F8::all(weights[0]), new_weight = F8::all(weights[1]);
    *maximum = m;
    *total = std::fma(*total, weights[0], chunk_sum * weights[1]);
    map_lanes(head_dim, out, [=](F8 o, F8 c) { return fma(o, old_weight, c * new_weight); }, (const float*)out,
              chunk_out);
}

} // namespace
