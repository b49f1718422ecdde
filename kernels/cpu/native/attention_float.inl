// Scores and weighted sums of keys and values in f16 and bf16, and of encoders in float32: one chain of fused multiply-adds per result.

namespace {

constexpr int kFloat = -1; // beside the types of a cache

template <int Type> inline F8 load_lanes(const uint8_t* p, size_t index) {
    if constexpr (Type == kFloat) return F8::load((const float*)p + index);
    if constexpr (Type == li::kKvF16) return F8::load_f16((const uint16_t*)p + index);
    if constexpr (Type == li::kKvBf16) return F8::load_bf16((const uint16_t*)p + index);
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

// Scores of `Rows` queries against `Octets` groups of eight keys, k[o] each. Meanwhile ahead[o] is fetched, whose rows have
// as many elements, of `ahead_bytes` bytes each.
template <int Type, int Rows, int Octets>
LI_NOINLINE void score_octets(const uint8_t* const* k, const float* const* q, int d, const uint8_t* const* ahead,
                              int ahead_bytes, float* const* out) {
    F8 acc[Rows][Octets];
    for (int r = 0; r < Rows; r++)
        for (int o = 0; o < Octets; o++) acc[r][o] = F8::zero();
    const int steps_per_line = 8 / ahead_bytes;
    for (int i = 0; i < d; i++) {
        if (i % steps_per_line == 0)
            for (int o = 0; o < Octets; o++) fetch(ahead[o] + i * 8 * ahead_bytes);
        outer_step<Rows, Octets>(
            acc, [&](int r) { return F8::all(q[r][i]); }, [&](int o) { return load_lanes<Type>(k[o], size_t(i) * 8); });
    }
    for (int r = 0; r < Rows; r++)
        for (int o = 0; o < Octets; o++) acc[r][o].store(out[r] + 8 * o);
}

// Columns [column, column + 8 * Wide) of `Rows` rows of the output, over positions [begin, end) of a chunk. Meanwhile the
// octets `ahead` are fetched, whose rows have `ahead_row` bytes, `ahead_bytes` per column.
template <int Type, int Rows, int Wide>
LI_NOINLINE void weigh_values(const uint8_t* const* v, size_t row_bytes, const float* const* p, int begin, int end,
                              int column, const uint8_t* const* ahead, size_t ahead_row, int ahead_bytes,
                              float* const* out) {
    F8 acc[Rows][Wide];
    for (int r = 0; r < Rows; r++)
        for (int w = 0; w < Wide; w++) acc[r][w] = F8::zero();
    for (int octet = begin / 8; octet * 8 < end; octet++) {
        const uint8_t *value = v[octet], *next = ahead[octet] + column * ahead_bytes;
        const int stop = end < octet * 8 + 8 ? end : octet * 8 + 8;
        for (int j = octet * 8; j < stop; j++, value += row_bytes, next += ahead_row) {
            fetch(next);
            outer_step<Rows, Wide>(
                acc, [&](int r) { return F8::all(p[r][j]); },
                [&](int w) { return load_lanes<Type>(value, size_t(column) + 8 * size_t(w)); });
        }
    }
    for (int r = 0; r < Rows; r++)
        for (int w = 0; w < Wide; w++) acc[r][w].store(out[r] + column + 8 * w);
}

template <int Type> void chunk_scores(const AttentionTile& t, const Chunk& c, float* scores) {
    const KvLayout& kv = *t.kv;
    for_rows(t.rows, [&](auto rows, int r0) {
        constexpr int kRows = decltype(rows)::value, kOctets = kRows <= 3 ? 4 : 2;
        const uint8_t* const* ahead = r0 == 0 ? c.values : c.keys;
        float* out[kRows];
        auto score = [&](auto octets, int o) {
            for (int r = 0; r < kRows; r++) out[r] = scores + size_t(r0 + r) * kChunk + 8 * o;
            score_octets<Type, kRows, decltype(octets)::value>(c.keys + o, t.q + r0, kv.head_dim, ahead + o,
                                                               li::element_bytes(kv.type_v), out);
        };
        int o = c.begin / 8;
        for (; (o + kOctets) * 8 <= c.end; o += kOctets) score(std::integral_constant<int, kOctets>{}, o);
        for (; o * 8 < c.end; o++) score(std::integral_constant<int, 1>{}, o);
    });
}

template <int Type> void chunk_values(const AttentionTile& t, const Chunk& c, const float* probabilities, float* out) {
    const KvLayout& kv = *t.kv;
    const int dv = li::padded_dim(kv.head_dim);
    for_rows(t.rows, [&](auto rows, int r0) {
        constexpr int kRows = decltype(rows)::value, kWide = kRows <= 3 ? 4 : 2;
        const uint8_t* const* ahead = r0 == 0 ? c.next_keys : c.values;
        const float* p[kRows];
        float* o[kRows];
        for (int r = 0; r < kRows; r++) {
            p[r] = probabilities + size_t(r0 + r) * kChunk;
            o[r] = out + size_t(r0 + r) * size_t(dv);
        }
        auto weigh = [&](auto wide, int column) {
            weigh_values<Type, kRows, decltype(wide)::value>(c.values, kv.row_bytes_v, p, c.begin, c.seen, column, ahead,
                                                             kv.row_bytes_k, li::element_bytes(kv.type_k), o);
        };
        int column = 0;
        for (; column + 8 * kWide <= dv; column += 8 * kWide) weigh(std::integral_constant<int, kWide>{}, column);
        for (; column < dv; column += 8) weigh(std::integral_constant<int, 1>{}, column);
    });
}

} // namespace
