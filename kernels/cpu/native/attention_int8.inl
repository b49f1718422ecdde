// Scores and weighted sums of keys and values in int8. Queries and probabilities are rounded to int16, some hundred times
// finer than the cache is, so that products and their sums are integers: exact, and thus the same in any order.

namespace {

constexpr int kInt16Limit = 32767;

// The largest that a query's integers may be, so that a sum of d products with int8 fits 31 bits.
inline int query_limit(int d) {
    const int fits = INT32_MAX / 127 / d;
    return fits < kInt16Limit ? fits : kInt16Limit;
}

// Rounds n floats to integers of at most `limit`, which times the returned unit are near them. `out` is in the order of Quads
// and padded to a multiple of eight with zeros. All zero for tiny x, and a NaN for unit where x is not finite.
inline float round_to_int16(const float* x, int n, int limit, int16_t* out) {
    auto lanes = [&](int i) {
        if (i + 8 <= n) return F8::load(x + i);
        float padded[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        std::memcpy(padded, x + i, size_t(n - i) * 4);
        return F8::load(padded);
    };
    F8 top = F8::zero(), finite = F8::zero();
    for (int i = 0; i < n; i += 8) {
        F8 magnitude = abs(lanes(i));
        top = max(magnitude, top);
        finite = fma(magnitude, F8::zero(), finite); // NaN where it is not
    }
    const float largest_size = largest(top);
    const bool is_finite = sum(finite) == 0.0f, regular = is_finite && largest_size >= 0x1p-100f;
    const F8 factor = F8::all(regular ? float(limit) / largest_size : 0.0f);
    for (int i = 0; i < n; i += 8) store_int16_quads(regular ? lanes(i) * factor : F8::zero(), out + i);
    return regular ? largest_size / float(limit) : is_finite ? 0.0f : NAN;
}

// As score_octets, for `dim` columns (a multiple of eight).
template <int Rows, int Octets>
LI_NOINLINE void score_octets_int8(const uint8_t* const* k, const int16_t* const* q, int dim,
                                   const uint8_t* const* ahead, int ahead_bytes, float* const* out) {
    I8 acc[Rows][Octets];
    for (int r = 0; r < Rows; r++)
        for (int o = 0; o < Octets; o++) acc[r][o] = I8::zero();
    const int columns_per_line = 8 / ahead_bytes;
    for (int i = 0; i < dim; i += 4) {
        if (i % columns_per_line == 0)
            for (int o = 0; o < Octets; o++) fetch(ahead[o] + i * 8 * ahead_bytes);
        for (int o = 0; o < Octets; o++) {
            Quads x = Quads::load(k[o] + i * 8);
            for (int r = 0; r < Rows; r++) {
                acc[r][o] = dot(x.even, Pairs::all(q[r] + i), acc[r][o]);
                acc[r][o] = dot(x.odd, Pairs::all(q[r] + i + 2), acc[r][o]);
            }
        }
    }
    for (int r = 0; r < Rows; r++)
        for (int o = 0; o < Octets; o++) to_float(acc[r][o]).store(out[r] + 8 * o);
}

// As weigh_values, for whole octets: p is 0 where no row sees a position. Row r is multiplied by unit[r].
template <int Rows, int Wide>
LI_NOINLINE void weigh_values_int8(const uint8_t* const* v, size_t row_bytes, const int16_t* const* p, const float* unit,
                                   int begin, int end, int column, const uint8_t* const* ahead, size_t ahead_row,
                                   int ahead_bytes, float* const* out) {
    I8 acc[Rows][Wide];
    for (int r = 0; r < Rows; r++)
        for (int w = 0; w < Wide; w++) acc[r][w] = I8::zero();
    for (int j = begin; j < end; j += 4) {
        const size_t in_octet = size_t(j % 8);
        const uint8_t* values = v[j / 8] + in_octet * row_bytes + column * 4;
        const uint8_t* next = ahead[j / 8] + in_octet * ahead_row + column * 4 * ahead_bytes;
        for (int line = 0; line < Wide * ahead_bytes; line += 2) fetch(next + line * 32);
        for (int w = 0; w < Wide; w++) {
            Quads x = Quads::load(values + 32 * w);
            for (int r = 0; r < Rows; r++) {
                acc[r][w] = dot(x.even, Pairs::all(p[r] + j), acc[r][w]);
                acc[r][w] = dot(x.odd, Pairs::all(p[r] + j + 2), acc[r][w]);
            }
        }
    }
    for (int r = 0; r < Rows; r++)
        for (int w = 0; w < Wide; w++) (to_float(acc[r][w]) * F8::all(unit[r])).store(out[r] + column + 8 * w);
}

// Scores without the keys' scales and the units of the queries, which q [rows, padded_dim] holds.
void chunk_scores_int8(const AttentionTile& t, const Chunk& c, const int16_t* q, float* scores) {
    const KvLayout& kv = *t.kv;
    const int dim = li::padded_dim(kv.head_dim);
    for_rows(t.rows, [&](auto rows, int r0) {
        constexpr int kRows = decltype(rows)::value, kOctets = kRows <= 3 ? 4 : 2;
        const uint8_t* const* ahead = r0 == 0 ? c.values : c.keys;
        const int16_t* queries[kRows];
        float* out[kRows];
        for (int r = 0; r < kRows; r++) queries[r] = q + size_t(r0 + r) * size_t(dim);
        auto score = [&](auto octets, int o) {
            for (int r = 0; r < kRows; r++) out[r] = scores + size_t(r0 + r) * kChunk + 8 * o;
            score_octets_int8<kRows, decltype(octets)::value>(c.keys + o, queries, dim, ahead + o,
                                                              li::element_bytes(kv.type_v), out);
        };
        int o = c.begin / 8;
        for (; (o + kOctets) * 8 <= c.end; o += kOctets) score(std::integral_constant<int, kOctets>{}, o);
        for (; o * 8 < c.end; o++) score(std::integral_constant<int, 1>{}, o);
    });
}

// The probabilities have the values' scales in them.
void chunk_values_int8(const AttentionTile& t, const Chunk& c, const int16_t* probabilities, const float* units,
                       float* out) {
    const KvLayout& kv = *t.kv;
    const int dv = li::padded_dim(kv.head_dim);
    for_rows(t.rows, [&](auto rows, int r0) {
        constexpr int kRows = decltype(rows)::value, kWide = kRows <= 3 ? 4 : 2;
        const uint8_t* const* ahead = r0 == 0 ? c.next_keys : c.values;
        const int16_t* p[kRows];
        float* o[kRows];
        for (int r = 0; r < kRows; r++) {
            p[r] = probabilities + size_t(r0 + r) * kChunk;
            o[r] = out + size_t(r0 + r) * size_t(dv);
        }
        auto weigh = [&](auto wide, int column) {
            weigh_values_int8<kRows, decltype(wide)::value>(c.values, kv.row_bytes_v, p, units + r0, c.begin, c.end,
                                                            column, ahead, kv.row_bytes_k,
                                                            li::element_bytes(kv.type_k), o);
        };
        int column = 0;
        for (; column + 8 * kWide <= dv; column += 8 * kWide) weigh(std::integral_constant<int, kWide>{}, column);
        for (; column < dv; column += 8) weigh(std::integral_constant<int, 1>{}, column);
    });
}

} // namespace
