// Attention of an encoder: softmax over a whole text, which is in the step, without a cache. Orders of sums are those of
// attention.inl, positions being those within the text.

namespace {

using li::TextTile;

void attend_text(const TextTile& t, int32_t chunk, float* maximum, float* total, float* out, float* scratch) {
    const int start = chunk * kChunk, d = t.head_dim;
    const int seen = t.length - start < kChunk ? t.length - start : kChunk, end = (seen + 7) / 8 * 8;
    float* scores = scratch;                               // [rows, kChunk]
    float* keys = scratch + size_t(t.rows) * size_t(kChunk); // [position / 8][d][8]
    const uint8_t *key_octets[kChunk / 8], *value_octets[kChunk / 8];
    for (int j = 0; j < end; j += 8) {
        float* octet = keys + size_t(j) * size_t(d);
        for (int lane = 0; lane < 8; lane++) {
            const bool inside = j + lane < seen;
            const float* key = t.k + size_t(start + (inside ? j + lane : 0)) * t.stride;
            for (int i = 0; i < d; i++) octet[i * 8 + lane] = inside ? key[i] : 0.0f;
        }
        key_octets[j / 8] = (const uint8_t*)octet;
        value_octets[j / 8] = (const uint8_t*)(t.v + size_t(start + j) * t.stride);
    }

    for_rows(t.rows, [&](auto rows, int r0) {
        constexpr int kRows = decltype(rows)::value, kOctets = kRows <= 3 ? 4 : 2;
        float* to[kRows];
        auto score = [&](auto octets, int o) {
            for (int r = 0; r < kRows; r++) to[r] = scores + size_t(r0 + r) * kChunk + 8 * o;
            score_octets<kFloat, kRows, decltype(octets)::value>(key_octets + o, t.q + r0, d, key_octets + o, 4, to);
        };
        int o = 0;
        for (; (o + kOctets) * 8 <= end; o += kOctets) score(std::integral_constant<int, kOctets>{}, o);
        for (; o * 8 < end; o++) score(std::integral_constant<int, 1>{}, o);
    });

    for (int r = 0; r < t.rows; r++) {
        float* row = scores + size_t(r) * kChunk;
        F8 top = F8::all(-INFINITY);
        for (int j = seen; j < end; j++) row[j] = -INFINITY;
        for (int j = 0; j < end; j += 8) {
            F8 s = F8::load(row + j) * F8::all(t.scale);
            s.store(row + j);
            top = max(top, s);
        }
        maximum[r] = largest(top);
        F8 l = F8::zero();
        for (int j = 0; j < end; j += 8) {
            F8 e = exponential(F8::load(row + j) - F8::all(maximum[r]));
            e.store(row + j);
            l = l + e;
        }
        total[r] = sum(l);
    }

    for_rows(t.rows, [&](auto rows, int r0) {
        constexpr int kRows = decltype(rows)::value, kWide = kRows <= 3 ? 4 : 2;
        const float* p[kRows];
        float* o[kRows];
        for (int r = 0; r < kRows; r++) {
            p[r] = scores + size_t(r0 + r) * kChunk;
            o[r] = out + size_t(r0 + r) * size_t(d);
        }
        auto weigh = [&](auto wide, int column) {
            weigh_values<kFloat, kRows, decltype(wide)::value>(value_octets, t.stride * sizeof(float), p, 0, seen, column,
                                                               value_octets, 0, 4, o);
        };
        int column = 0;
        for (; column + 8 * kWide <= d; column += 8 * kWide) weigh(std::integral_constant<int, kWide>{}, column);
        for (; column < d; column += 8) weigh(std::integral_constant<int, 1>{}, column);
    });
}

} // namespace
