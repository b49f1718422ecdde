// Paged flash attention (Dao et al. 2022, arXiv:2205.14135; Kwon et al. 2023, arXiv:2309.06180) on F8 lanes.
//
// The order of every sum of floats is fixed by absolute positions, never by the tile, the step or the threads:
//   score   one fma chain over d per (query, key)
//   sum     lane i adds the keys with position % 8 == i, ascending, within a chunk; then sum()'s fixed tree
//   output  one fma chain over the chunk's positions, ascending, per element
// With int8 keys, scores are sums of integers; with int8 values, the chunk's output is.
// The cache is read once per step and rarely in an order that the hardware foresees: scores are computed while the
// chunk's values are fetched, and values are summed while the next chunk's keys are (into the second-level
// cache: fetching into the first stalls on its few miss buffers).
//
// Positions that a row may not see get probability exactly 0, and fma(0, v, acc) == acc.

#include "kv_cache.inl"

// Kernels with many accumulators: inlined into larger functions, GCC spills them.
#define LI_NOINLINE __attribute__((noinline))

namespace {

using li::AttentionTile;
using li::kChunk;

inline void fetch(const void* p) { __builtin_prefetch(p, 0, 2); }

// What a tile sees of a chunk: positions from its start, and where each octet of them lies.
struct Chunk {
    int begin, end; // all visible positions, and those before and behind that make up whole octets
    int seen;       // end of the visible positions
    const uint8_t *keys[kChunk / 8], *values[kChunk / 8];
    const uint8_t* next_keys[kChunk / 8]; // the next chunk's, to be fetched; where there is none, something in reach
    float key_scales[kChunk], value_scales[kChunk]; // int8 only; 0 behind `seen`, where the cache may hold anything

    Chunk(const AttentionTile& t, int start) {
        const KvLayout& kv = *t.kv;
        int first = start + kChunk, last = start - 1, table_end = 0; // the block table ends with the tile's last position
        for (int r = 0; r < t.rows; r++) {
            first = t.first[r] < first ? t.first[r] : first;
            table_end = t.last[r] > table_end ? t.last[r] : table_end;
        }
        last = table_end < start + kChunk - 1 ? table_end : start + kChunk - 1;
        begin = (first > start ? first - start : 0) / 8 * 8;
        seen = last + 1 - start;
        end = (seen + 7) / 8 * 8;
        for (int j = begin; j < end; j += 8) {
            const Octet octet(kv, t.blocks, t.kv_head, start + j);
            keys[j / 8] = octet.keys;
            values[j / 8] = next_keys[j / 8] = octet.values;
            if (kv.type_k == li::kKvInt8) F8::load(octet.key_scales).store(key_scales + j);
            if (kv.type_v == li::kKvInt8) fetch(octet.value_scales);
            const int ahead = t.next_chunk * kChunk + j;
            if (t.next_chunk < 0 || ahead > table_end) continue;
            const Octet next(kv, t.blocks, t.kv_head, ahead);
            next_keys[j / 8] = next.keys;
            if (kv.type_k == li::kKvInt8) fetch(next.key_scales);
        }
        for (int j = seen; j < end; j++) key_scales[j] = 0.0f;
    }

    // Once they have been fetched.
    void load_value_scales(const AttentionTile& t, int start) {
        for (int j = begin; j < end; j += 8)
            F8::load(Octet(*t.kv, t.blocks, t.kv_head, start + j).value_scales).store(value_scales + j);
        for (int j = seen; j < end; j++) value_scales[j] = 0.0f;
    }
};

constexpr int kRowsAtOnce = 6;

// Calls f(std::integral_constant<int, n>, first row) for runs of n <= kRowsAtOnce rows.
template <class Function> inline void for_rows(int rows, Function f) {
    for (int r = 0; r < rows; r += kRowsAtOnce) switch (rows - r) {
        case 1: f(std::integral_constant<int, 1>{}, r); break;
        case 2: f(std::integral_constant<int, 2>{}, r); break;
        case 3: f(std::integral_constant<int, 3>{}, r); break;
        case 4: f(std::integral_constant<int, 4>{}, r); break;
        case 5: f(std::integral_constant<int, 5>{}, r); break;
        default: f(std::integral_constant<int, kRowsAtOnce>{}, r);
        }
}

} // namespace

#include "attention_float.inl"
#include "attention_int8.inl"

namespace {

void attend_chunk(const AttentionTile& t, int32_t chunk, float* maximum, float* total, float* out, float* scratch) {
    const KvLayout& kv = *t.kv;
    const int start = chunk * kChunk, dim = li::padded_dim(kv.head_dim);
    const bool int8_keys = kv.type_k == li::kKvInt8, int8_values = kv.type_v == li::kKvInt8;
    Chunk c(t, start);
    float* scores = scratch;
    int16_t* probabilities = (int16_t*)(scores + size_t(t.rows) * kChunk); // with int8 values
    int16_t* queries = probabilities + size_t(t.rows) * kChunk;            // with int8 keys
    float units[li::kMaxTileRows];

    if (int8_keys) {
        for (int r = 0; r < t.rows; r++)
            units[r] = round_to_int16(t.q[r], kv.head_dim, query_limit(kv.head_dim), queries + size_t(r) * size_t(dim));
        chunk_scores_int8(t, c, queries, scores);
    } else if (kv.type_k == li::kKvF16) {
        chunk_scores<li::kKvF16>(t, c, scores);
    } else {
        chunk_scores<li::kKvBf16>(t, c, scores);
    }
    if (int8_values) c.load_value_scales(t, start);

    const float kNever = -INFINITY;
    for (int r = 0; r < t.rows; r++) {
        float* row = scores + size_t(r) * kChunk;
        const int first = t.first[r] - start, last = t.last[r] - start;
        F8 factor = F8::all(int8_keys ? t.scale * units[r] : t.scale), top = F8::all(kNever);
        for (int j = c.begin; j < c.end; j += 8) {
            F8 s = F8::load(row + j);
            if (int8_keys) s = s * F8::load(c.key_scales + j);
            s = s * factor;
            if (t.softcap > 0.0f) s = capped(s, F8::all(t.softcap));
            if (j < first || j + 7 > last) {
                float lanes[8];
                s.store(lanes);
                for (int i = 0; i < 8; i++)
                    if (j + i < first || j + i > last) lanes[i] = kNever;
                s = F8::load(lanes);
            }
            s.store(row + j);
            top = max(top, s);
        }
        float m = largest(top);
        maximum[r] = m;
        F8 l = F8::zero();
        for (int j = c.begin; j < c.end; j += 8) {
            F8 e = m == kNever ? F8::zero() : exponential(F8::load(row + j) - F8::all(m));
            l = l + e;
            if (int8_values) e = e * F8::load(c.value_scales + j);
            e.store(row + j);
        }
        total[r] = sum(l);
        if (int8_values)
            units[r] = round_to_int16(row + c.begin, c.end - c.begin, kInt16Limit,
                                      probabilities + size_t(r) * kChunk + c.begin);
    }

    if (int8_values) chunk_values_int8(t, c, probabilities, units, out);
    else if (kv.type_v == li::kKvF16) chunk_values<li::kKvF16>(t, c, scores, out);
    else chunk_values<li::kKvBf16>(t, c, scores, out);
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
