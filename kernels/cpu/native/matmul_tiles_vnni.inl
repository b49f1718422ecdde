// Tokens over a panel with 32 registers: T (up to 6) tokens at a time against 16 rows, integer and float sums in
// registers. 256-bit vectors: 512-bit broadcasts would be bound by the loads. Included by matmul_x86.inl.

// sum[t][side] += sums over 16 k, for T tokens and 16 rows.
template <int T>
LI_INLINE void dot_tokens(const uint8_t (*steps)[2][32], const int8_t* q, size_t stride, __m256i (*sum)[2]) {
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        const __m256i w0 = load(steps[c][0]), w1 = load(steps[c][1]);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m256i x = broadcast4(q + t * stride + 4 * c);
            sum[t][0] = _mm256_dpbusd_epi32(sum[t][0], w0, x);
            sum[t][1] = _mm256_dpbusd_epi32(sum[t][1], w1, x);
        }
    }
}

template <Weight weight, bool HasMin, int T>
LI_INLINE void tile_simple(const Panel& p, int subs, const Rows& rows, size_t first, int, float (*acc)[16]) {
#pragma GCC unroll 1
    for (int s = 0; s < subs; s++) {
        __m256 partial[T][2];
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const size_t g = 2 * (first + s) + half;
            __m256i sum[T][2];
#pragma GCC unroll 8
            for (int t = 0; t < T; t++)
                sum[t][0] = sum[t][1] = weight == Weight::s8
                                            ? _mm256_set1_epi32(rows.offset[t * rows.offset_stride + g])
                                            : _mm256_setzero_si256();
            dot_tokens<T>(p.w[s] + 4 * half, rows.q + 16 * g, rows.q_stride, sum);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                const __m256 a = broadcast(rows.scale + t * rows.scale_stride + g);
#pragma GCC unroll 2
                for (int r = 0; r < 2; r++) {
                    const __m256 i = _mm256_cvtepi32_ps(sum[t][r]);
                    partial[t][r] = half ? _mm256_fmadd_ps(i, a, partial[t][r]) : _mm256_mul_ps(i, a);
                }
            }
        }
        const __m256 d[2] = {_mm256_load_ps(p.d[s]), _mm256_load_ps(p.d[s] + 8)};
        const __m256 m[2] = {_mm256_load_ps(p.m[s]), _mm256_load_ps(p.m[s] + 8)};
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m256 sum32 = broadcast(rows.sum32 + t * rows.sum32_stride + first + s);
#pragma GCC unroll 2
            for (int r = 0; r < 2; r++) {
                __m256 total = _mm256_fmadd_ps(d[r], partial[t][r], _mm256_load_ps(acc[t] + 8 * r));
                if (HasMin)
                    total = _mm256_fmadd_ps(m[r], sum32, total);
                _mm256_store_ps(acc[t] + 8 * r, total);
            }
        }
    }
}

// A block of 256: the chain of scaled sums, then that of the mins (8 per block, or 16), then both into acc.
template <int T, int Mins, bool Negate>
LI_INLINE void tile_block(const Panel& p, const Rows& rows, size_t first, const float* mins, size_t mins_stride,
                          float (*acc)[16]) {
    __m256 total[T][2];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
        total[t][0] = total[t][1] = _mm256_setzero_ps();
#pragma GCC unroll 1
    for (int g = 0; g < 2 * kPanelSubs; g++) {
        __m256i sum[T][2];
#pragma GCC unroll 8
        for (int t = 0; t < T; t++)
            sum[t][0] = sum[t][1] = _mm256_setzero_si256();
        dot_tokens<T>(p.w[g / 2] + 4 * (g % 2), rows.q + 32 * first + 16 * g, rows.q_stride, sum);
        const uint8_t* stored = p.scale[Mins == 16 ? g : g / 2];
        const __m256i scale[2] = {load(stored), load(stored + 32)};
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m256 a = broadcast(rows.scale + t * rows.scale_stride + 2 * first + g);
#pragma GCC unroll 2
            for (int r = 0; r < 2; r++)
                total[t][r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_mullo_epi32(sum[t][r], scale[r])), a,
                                              total[t][r]);
        }
    }
    const __m256 d[2] = {_mm256_load_ps(p.d[0]), _mm256_load_ps(p.d[0] + 8)};
    __m256 low[T][2];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 2
        for (int r = 0; r < 2; r++) {
            total[t][r] = _mm256_fmadd_ps(d[r], total[t][r], _mm256_load_ps(acc[t] + 8 * r));
            low[t][r] = _mm256_setzero_ps();
        }
#pragma GCC unroll 1
    for (int j = 0; j < Mins; j++) {
        const __m256 min[2] = {_mm256_load_ps(p.min[j]), _mm256_load_ps(p.min[j] + 8)};
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            const __m256 x = broadcast(mins + t * mins_stride + j);
            low[t][0] = _mm256_fmadd_ps(min[0], x, low[t][0]);
            low[t][1] = _mm256_fmadd_ps(min[1], x, low[t][1]);
        }
    }
    const __m256 m[2] = {_mm256_load_ps(p.m[0]), _mm256_load_ps(p.m[0] + 8)};
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 2
        for (int r = 0; r < 2; r++)
            _mm256_store_ps(acc[t] + 8 * r, Negate ? _mm256_fnmadd_ps(m[r], low[t][r], total[t][r])
                                                   : _mm256_fmadd_ps(m[r], low[t][r], total[t][r]));
}

template <Weight weight, int T>
LI_INLINE void tile_k(const Panel& p, const Rows& rows, size_t first, int, float (*acc)[16]) {
    tile_block<T, 8, true>(p, rows, first, rows.sum32 + first, rows.sum32_stride, acc);
}

template <int T>
LI_INLINE void tile_q6_k(const Panel& p, const Rows& rows, size_t first, int, float (*acc)[16]) {
    tile_block<T, 16, false>(p, rows, first, rows.sum16 + 2 * first, rows.scale_stride, acc);
}
